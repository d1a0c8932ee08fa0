"""What the client of another API gets of the engine's stream of chat chunks."""

from typing import Any

import orjson

from sidecar.chat_answer import mapping, text
from sidecar.dialect import NativeStream, StreamWriter
from sidecar.failures import INVALID_ANSWER
from sidecar.sse import DONE, Event, EventReader


class Translation:
    """What the client of another API gets of a native stream."""

    def __init__(self, stream: NativeStream, writer: StreamWriter) -> None:
        self.writer = writer
        self._stream = stream
        self._failed = False

    def pass_on(self, event: Event) -> bytes:
        """The other API's events for one native event."""
        return self._events(self._stream.pass_on(event))

    def flush(self) -> bytes:
        """What is held back."""
        return self._events(self._stream.flush())

    def _events(self, native: bytes) -> bytes:
        written = []
        for event in EventReader().feed(native):
            if self._failed or event.data is None:
                continue
            if event.data == DONE:
                written.append(self.writer.end())
                continue
            if (chunk := _chunk(event.data)) is None:
                self._failed = True
                written.append(self.writer.error("the engine sent data that is not a JSON object", INVALID_ANSWER))
            elif error := chunk.get("error"):
                self._failed = True
                message = text(mapping(error).get("message")) or text(error) or ""
                written.append(self.writer.error(message, "upstream_error"))
            else:
                written.append(self.writer.chunk(chunk))
        return b"".join(written)


def _chunk(data: bytes) -> dict[str, Any] | None:
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return chunk if isinstance(chunk, dict) else None
