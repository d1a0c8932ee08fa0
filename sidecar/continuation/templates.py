"""The templates of a policy's engines, each examined once."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from sidecar.continuation.render import Renderer, RenderError, template_variables
from sidecar.continuation.template import Template, examine

RETRY_S = 30.0
"""After this an engine that could not be examined is asked again."""
MAX_KNOWN = 64
"""As many sets of template variables are told apart; the first is forgotten for one more."""

_Key = tuple[str, bytes]
"""An engine, and what requests hand to its template beside messages and tools."""
PLAIN = b"{}"


class Templates:
    """Knows, asks, and says so: `changed` is called after each examination."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._known: dict[_Key, Template] = {}
        self._failed: dict[_Key, tuple[float, RenderError]] = {}
        self._running: dict[_Key, asyncio.Task[Template | RenderError]] = {}

    @property
    def plain(self) -> list[Template]:
        """Those of every engine that was examined, without variables."""
        return [template for (_, variables), template in self._known.items() if variables == PLAIN]

    @property
    def problem(self) -> str:
        """Why an engine could not be examined; empty where none failed."""
        return next((str(error) for _, error in self._failed.values()), "")

    def known(self, renderer: Renderer, chat: Mapping[str, Any]) -> Template | None:
        """What is known already."""
        return self._known.get(_key(renderer, chat))

    async def of(self, renderer: Renderer, chat: Mapping[str, Any]) -> Template:
        """The engine's template under a request's variables. Raises RenderError."""
        key = _key(renderer, chat)
        if (found := self._known.get(key)) is not None:
            return found
        if (failed := self._failed.get(key)) is not None:
            if time.monotonic() < failed[0]:
                raise failed[1]
            del self._failed[key]
        task = self._running.get(key)
        if task is None:
            # Of its own: a call that is cut off does not end what others wait for.
            task = self._running[key] = asyncio.create_task(self._examine(key, renderer, dict(chat)))
        result = await asyncio.shield(task)
        if isinstance(result, RenderError):
            raise result
        return result

    async def _examine(self, key: _Key, renderer: Renderer, chat: dict[str, Any]) -> Template | RenderError:
        try:
            found = await examine(renderer, chat)
        except RenderError as error:
            self._failed[key] = (time.monotonic() + RETRY_S, error)
            self._trim(self._failed)
            self._changed()
            return error
        finally:
            del self._running[key]
        self._known[key] = found
        self._trim(self._known)
        self._changed()
        return found

    @staticmethod
    def _trim(kept: dict[_Key, Any]) -> None:
        if len(kept) > MAX_KNOWN:
            del kept[next(iter(kept))]


def _key(renderer: Renderer, chat: Mapping[str, Any]) -> _Key:
    variables = template_variables(chat)
    if chat.get("chat_template") is not None:
        variables["chat_template"] = chat["chat_template"]
    return renderer.url, orjson.dumps(variables, option=orjson.OPT_SORT_KEYS) if variables else PLAIN
