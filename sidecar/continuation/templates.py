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

    def asked(self, renderer: Renderer, chat: Mapping[str, Any]) -> bool:
        """See to it that an engine not yet known is being examined. False: it failed lately, and is left alone."""
        key = _key(renderer, chat)
        failed = self._failed.get(key)
        if failed is not None and time.monotonic() < failed[0]:
            return False
        if key not in self._running:
            # A task of its own: a call that is cut off does not end what others wait for.
            self._running[key] = asyncio.create_task(self._examine(key, renderer, dict(chat)))
        return True

    async def of(self, renderer: Renderer, chat: Mapping[str, Any]) -> Template:
        """The engine's template under a request's variables. Raises RenderError."""
        key = _key(renderer, chat)
        if (found := self._known.get(key)) is not None:
            return found
        if not self.asked(renderer, chat):
            raise self._failed[key][1]
        result = await asyncio.shield(self._running[key])
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
        self._failed.pop(key, None)
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
