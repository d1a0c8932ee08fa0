"""Streams of Anthropic messages: written out of the chunks of a chat completion, and read as a provider sent them.

Invariant of what is written: blocks follow one another, each is started, filled and stopped before the next begins,
and a client that puts the events together has the message that the whole answer would have been.
"""

from typing import Any

import orjson

from sidecar.anthropic.answer import (
    empty_message,
    message_id,
    read_message,
    stop_reason,
    thinking_block,
    tool_block,
    tool_input,
    usage,
)
from sidecar.anthropic.error import error_event
from sidecar.chat_answer import Answer, count, mapping, objects, text
from sidecar.dialect import Json
from sidecar.sse import Event

TEXT, THINKING, TOOL = "text", "thinking", "tool_use"


class MessageWriter:
    """Turns chunks into events."""

    def __init__(self) -> None:
        self._head: Json | None = None
        """The first chunk, with the newest usage."""
        self._finished: Json = {}
        """The choice of the chunk that ended the answer."""
        self._block: str | None = None
        """The kind of the open block; None: none is open."""
        self._blocks = 0
        self._tool: int | None = None
        """Which of the answer's tool calls was begun last."""
        self._held: list[tuple[str, str]] = []
        """What was said while a tool's input is written."""
        self._refused = False

    def chunk(self, chunk: Json) -> bytes:
        """The events for one chunk."""
        events: list[bytes] = []
        if self._head is None:
            self._head = chunk
            events.append(event("message_start", message=empty_message(chunk)) + event("ping"))
        if chunk.get("usage"):
            self._head = {**self._head, "usage": chunk["usage"]}
        for choice in objects(chunk.get("choices")):
            delta = mapping(choice.get("delta"))
            self._refused = self._refused or bool(delta.get("refusal"))
            self._say(events, THINKING, text(delta.get("reasoning")) or text(delta.get("reasoning_content")))
            self._say(events, TEXT, text(delta.get("content")) or text(delta.get("refusal")))
            for call in objects(delta.get("tool_calls")):
                self._call(events, call)
            if choice.get("finish_reason"):
                self._finished = choice
        return b"".join(events)

    def end(self) -> bytes:
        """The events that end the message well."""
        events: list[bytes] = []
        self._close(events)
        if self._head is None:
            return error_event("the engine sent no answer", "upstream_error")
        if not self._blocks:
            self._open(events, TEXT, {"type": "text", "text": ""})
            self._close(events)
        stop = stop_reason(self._finished, used_tools=self._tool is not None, refused=self._refused)
        events += [event("message_delta", delta=stop, usage=usage(self._head)), event("message_stop")]
        return b"".join(events)

    def error(self, message: str, code: str) -> bytes:
        """The event that ends it badly."""
        return error_event(message, code)

    def _say(self, events: list[bytes], kind: str, said: str | None) -> None:
        if not said:
            return
        if self._block == TOOL:
            self._held.append((kind, said))
            return
        if self._block != kind:
            self._close(events)
            empty = {"type": "text", "text": ""} if kind == TEXT else thinking_block("", "")
            self._open(events, kind, empty)
        self._fill(events, {"type": f"{kind}_delta", kind: said})

    def _call(self, events: list[bytes], call: Json) -> None:
        index, function = count(call.get("index")) or 0, mapping(call.get("function"))
        if index != self._tool:
            self._close(events)
            self._tool = index
            self._open(events, TOOL, tool_block(call.get("id"), function.get("name")))
        if arguments := text(function.get("arguments")):
            self._fill(events, {"type": "input_json_delta", "partial_json": arguments})

    def _open(self, events: list[bytes], kind: str, block: Json) -> None:
        self._block = kind
        events.append(event("content_block_start", index=self._blocks, content_block=block))

    def _fill(self, events: list[bytes], delta: Json) -> None:
        events.append(event("content_block_delta", index=self._blocks, delta=delta))

    def _close(self, events: list[bytes]) -> None:
        if self._block is None:
            return
        if self._block == THINKING:
            self._fill(events, {"type": "signature_delta", "signature": message_id(self._head or {})})
        events.append(event("content_block_stop", index=self._blocks))
        self._block, self._blocks = None, self._blocks + 1
        held, self._held = self._held, []
        for kind, said in held:
            self._say(events, kind, said)
        if held:
            self._close(events)


def event(kind: str, **values: Any) -> bytes:
    """One server-sent event as Anthropic writes it."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **values}))


class MessageReader:
    """Reads a stream that passes through, for the record."""

    def __init__(self) -> None:
        self.done = False
        """`message_stop` was seen."""
        self.error: str | None = None
        """The message of an error event, if one came."""
        self._message: Json = {}
        self._blocks: dict[int, Json] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}

    def read(self, event: Event) -> None:
        """Take note of one event."""
        try:
            given = mapping(orjson.loads(event.data or b"null"))
        except orjson.JSONDecodeError:
            return
        index = count(given.get("index")) or 0
        delta = mapping(given.get("delta"))
        match given.get("type"):
            case "message_start":
                self._message = dict(mapping(given.get("message")))
            case "content_block_start":
                self._blocks[index] = dict(mapping(given.get("content_block")))
            case "content_block_delta":
                for name in ("text", "thinking", "partial_json"):
                    if piece := text(delta.get(name)):
                        self._pieces.setdefault((index, name), []).append(piece)
            case "message_delta":
                known = {**mapping(self._message.get("usage"))}
                known |= {name: value for name, value in mapping(given.get("usage")).items() if value is not None}
                self._message |= {**delta, "usage": known}
            case "message_stop":
                self.done = True
            case kind if kind == "error" or given.get("error"):
                failure = given.get("error")
                self.error = text(mapping(failure).get("message")) or text(failure) or "the provider reported an error"

    def answer(self) -> Answer:
        """What has arrived so far."""
        blocks = [self._filled(index, block) for index, block in sorted(self._blocks.items())]
        return read_message({**self._message, "content": blocks})

    def _filled(self, index: int, block: Json) -> Json:
        block = dict(block)
        for name in ("text", "thinking"):
            if pieces := self._pieces.get((index, name)):
                block[name] = "".join((text(block.get(name)) or "", *pieces))
        if pieces := self._pieces.get((index, "partial_json")):
            block["input"] = tool_input("".join(pieces))
        return block
