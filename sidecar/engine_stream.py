"""What the streams of both native APIs have in common: how they end, their usage, and the chunks that must wait."""

from collections.abc import Sequence
from typing import Any

import orjson

from sidecar.chat_answer import mapping, text
from sidecar.held import Held, encoded
from sidecar.sse import DONE, Event

Json = dict[str, Any]


class EngineStream:
    """Reads the events of one stream of an engine."""

    def __init__(self) -> None:
        self.done = False
        """The stream came to its own end: `[DONE]` was seen."""
        self.error: str | None = None
        """The message of an error event, if one came."""
        self.garbled = False
        """Data came that is no JSON object: tokens may be missing."""
        self.held = Held()
        self._usage: Json = {}
        self._usage_is_forced = False
        """Usage comes with choices, asked for or not: it is no chunk of its own that could be left out."""

    def flush(self) -> bytes:
        """What is held back, for when the stream ends without a usage chunk."""
        return self.held.flush()

    def _chunk(self, data: bytes) -> Json | None:
        """The JSON object in an event; None, and noted, where it is something else."""
        if data == DONE:
            self.done = True
            return None
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            chunk = None
        if isinstance(chunk, dict):
            return chunk
        self.garbled = True
        return None

    def _note_usage(self, chunk: Json, choices: Sequence[Json]) -> None:
        if usage := chunk.get("usage"):
            self._usage_is_forced = self._usage_is_forced or bool(choices)
            self._usage = dict(mapping(usage))

    def _note_error(self, chunk: Json) -> None:
        if error := chunk.get("error"):
            self.error = text(mapping(error).get("message")) or str(error)

    def _shown(self, event: Event, chunk: Json, choices: Sequence[Json], *, changed: bool, hide_usage: bool) -> bytes:
        """The bytes that the client gets for a chunk, now or later; those that came where nothing was changed."""
        raw = None if changed else event.raw
        if hide_usage and any(choice.get("finish_reason") for choice in choices):
            return self.held.hold(chunk, raw)
        waited = self.held.flush() if self._usage_is_forced else b""
        return waited + (raw or encoded(chunk))


def extended(values: list[Any] | None, more: list[Any]) -> list[Any]:
    """`values`, which may not have begun, with more of them; changed in place."""
    if values is None:
        return list(more)
    values.extend(more)
    return values
