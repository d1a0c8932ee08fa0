"""The chunks of a streamed chat completion as the events of the Responses API.

One item is open at a time; the next one closes it. What the last event holds is what the whole answer would have been.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sidecar.chat_answer import count, mapping, objects, text
from sidecar.responses.answer import INCOMPLETE, Asked, ended, logprob_entries, own_entries
from sidecar.responses.request import wants_logprobs
from sidecar.responses.stream_items import Events, FunctionCall, Item, Message, Reasoning

Json = dict[str, Any]
_Kind = TypeVar("_Kind", bound=Item)


class ResponsesWriter:
    """Writes one stream. `finished` is told the response once it is whole."""

    def __init__(self, asked: Asked, finished: Callable[[Json], None]) -> None:
        self._asked = asked
        self._finished = finished
        self._wants_logprobs = wants_logprobs(asked.body)
        self._events = Events()
        self._model: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._finish_reason: str | None = None
        self._entries: list[Json] = []
        self._items: list[Item] = []
        self._calls: dict[int, FunctionCall] = {}

    def chunk(self, chunk: Json) -> bytes:
        """The events for one chunk."""
        self._model = self._model or text(chunk.get("model"))
        self._begin()
        self._usage = mapping(chunk.get("usage")) or self._usage
        for choice in objects(chunk.get("choices")):
            entries = objects(mapping(choice.get("logprobs")).get("content")) if self._wants_logprobs else []
            self._entries += entries
            self._finish_reason = text(choice.get("finish_reason")) or self._finish_reason
            self._add(mapping(choice.get("delta")), entries)
        return self._events.take()

    def end(self) -> bytes:
        """The events that end the stream."""
        self._begin()
        if not self._items:
            self._message().add("output_text", "", [])
        self._close("incomplete" if self._finish_reason in INCOMPLETE else "completed")
        output = [item.whole("completed") for item in self._items]
        response = ended(self._asked, self._model, output, self._finish_reason, self._usage)
        self._finished(response)
        self._events.put(f"response.{response['status']}", response=response)
        return self._events.take()

    def error(self, message: str, code: str) -> bytes:
        """The events that end the stream badly: what there is stays as it is."""
        self._begin()
        self._events.put("error", code=code, message=message, param=None)
        error = {"code": "server_error", "message": message}
        output = [item.whole("incomplete" if item.open else "completed") for item in self._items]
        response = self._asked.response("failed", self._model, output, error=error)
        self._events.put("response.failed", response=response)
        return self._events.take()

    def _begin(self) -> None:
        if not self._events.begun:
            response = self._asked.response("in_progress", self._model, [])
            self._events.put("response.created", response=response)
            self._events.put("response.in_progress", response=response)

    def _add(self, delta: Mapping[str, Any], entries: list[Json]) -> None:
        if piece := text(delta.get("reasoning")) or text(delta.get("reasoning_content")):
            item = self._last(Reasoning) or self._open(Reasoning(self._events, self._asked, len(self._items)))
            item.add(piece)
        if piece := text(delta.get("content")):
            self._message().add("output_text", piece, logprob_entries(entries))
        if piece := text(delta.get("refusal")):
            self._message().add("refusal", piece, [])
        for part in objects(delta.get("tool_calls")):
            index = count(part.get("index")) or 0
            if (call := self._calls.get(index)) is None:
                call = self._open(FunctionCall(self._events, self._asked, len(self._items), part))
                self._calls[index] = call
            if piece := text(mapping(part.get("function")).get("arguments")):
                call.add(piece)

    def _message(self) -> Message:
        return self._last(Message) or self._open(
            Message(self._events, self._asked, len(self._items), self._own_logprobs)
        )

    def _own_logprobs(self, content: str) -> list[Json]:
        reasoning = "".join(item.text for item in self._items if isinstance(item, Reasoning))
        return own_entries(self._entries, content, after=reasoning)

    def _last(self, kind: type[_Kind]) -> _Kind | None:
        last = self._items[-1] if self._items else None
        return last if isinstance(last, kind) else None

    def _open(self, item: _Kind) -> _Kind:
        self._close("completed")
        self._items.append(item)
        self._events.put("response.output_item.added", output_index=item.index, item=item.whole("in_progress"))
        return item

    def _close(self, status: str) -> None:
        if self._items and self._items[-1].open:
            item = self._items[-1]
            item.close()
            self._events.put("response.output_item.done", output_index=item.index, item=item.whole(status))
