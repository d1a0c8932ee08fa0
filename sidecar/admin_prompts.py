"""Prompt overrides at the operators' port."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from sidecar.openai_error import JSON
from sidecar.prompt_definition import NAME, Definition
from sidecar.prompt_store import LOOK_S, PromptStore, VersionTakenError
from tracegrad.errors import InputError, SettingsError


class PromptAdmin:
    """`/prompts`: what is put here is in force in every process of the sidecar when the answer comes."""

    def __init__(self, store: PromptStore) -> None:
        self._store = store

    def register(self, app: web.Application) -> None:
        """Add the paths."""
        app.router.add_get("/prompts", self.list)
        app.router.add_get("/prompts/{name}", self.show)
        app.router.add_put("/prompts/{name}", self.put)
        app.router.add_delete("/prompts/{name}", self.delete)

    async def list(self, _: web.Request) -> web.Response:
        """Every prompt, in the order in which they are tried."""
        return await self._answer(lambda: {"prompts": [one.shown for one in self._store.fresh()]})

    async def show(self, request: web.Request) -> web.Response:
        """One prompt with its texts; 404 where there is none of that name."""
        name = request.match_info["name"]

        def found() -> dict[str, Any] | None:
            return next((one.shown for one in self._store.fresh() if one.name == name), None)

        return await self._answer(found, name)

    async def put(self, request: web.Request) -> web.Response:
        """Define a prompt: 400 where the definition is bad, 409 where a version would change its text."""
        name, content = request.match_info["name"], await request.read()

        def stored() -> dict[str, Any]:
            if not NAME.fullmatch(name):
                raise InputError(f"bad prompt name {name!r}: at most 100 letters, digits, dots, dashes, underscores")
            return self._store.put(name, Definition.read(content)).shown

        return await self._answer(stored, changes=True)

    async def delete(self, request: web.Request) -> web.Response:
        """Take a prompt out of force; its versions keep their texts."""
        name = request.match_info["name"]
        return await self._answer(
            lambda: {"name": name, "deleted": True} if self._store.delete(name) else None, name, changes=True
        )

    async def _answer(
        self, ask: Callable[[], dict[str, Any] | None], name: str = "", *, changes: bool = False
    ) -> web.Response:
        status, value = 200, None
        try:
            value = await asyncio.to_thread(ask)
            if value is None:
                status, value = 404, {"error": f"no prompt {name!r}: `tracegrad prompt list` shows which there are"}
        except InputError as error:
            status, value = 400, {"error": str(error)}
        except VersionTakenError as error:
            status, value = 409, {"error": str(error)}
        except SettingsError as error:
            status, value = 500, {"error": str(error)}
        except OSError as error:
            reason = error.strerror or type(error).__name__
            message = f"prompts cannot be kept in {self._store.path} ({reason}): make room there, or let it be written"
            status, value = 500, {"error": message}
        if changes and status == 200:
            await asyncio.sleep(LOOK_S)  # by then, every process looks at the file before its next call
        return web.Response(status=status, body=orjson.dumps(value), headers=JSON)
