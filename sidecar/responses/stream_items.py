"""The output items of a stream while they grow, and the events that tell of it."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from sidecar.chat_answer import mapping, text
from sidecar.responses.answer import Asked, text_part

Json = dict[str, Any]


class Events:
    """Numbers events and writes them as server-sent ones."""

    def __init__(self) -> None:
        self.begun = False
        """Whether any event was written."""
        self._number = 0
        self._written: list[bytes] = []

    def put(self, kind: str, **fields: Any) -> None:
        """Write an event."""
        data = orjson.dumps({"type": kind, **fields, "sequence_number": self._number})
        self._written.append(b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n")
        self._number += 1
        self.begun = True

    def take(self) -> bytes:
        """What was written since the last time."""
        written, self._written = b"".join(self._written), []
        return written


class Item:
    """One output item. `whole` is the item as it is now."""

    kind = ""

    def __init__(self, events: Events, asked: Asked, index: int) -> None:
        self.open = True
        """More may come."""
        self.index = index
        self._events = events
        self._asked = asked

    def whole(self, status: str) -> Json:
        """The item as it is now."""
        raise NotImplementedError

    def close(self) -> None:
        """End the parts of the item."""
        self.open = False

    def _put(self, kind: str, **fields: Any) -> None:
        item_id = self._asked.item_id(self.kind, self.index)
        self._events.put(f"response.{kind}", item_id=item_id, output_index=self.index, **fields)


class Reasoning(Item):
    """What a model thinks before it answers."""

    kind = "reasoning"

    def __init__(self, events: Events, asked: Asked, index: int) -> None:
        super().__init__(events, asked, index)
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self._pieces)

    def add(self, piece: str) -> None:
        """More of it."""
        if not self._pieces:
            self._put("content_part.added", content_index=0, part={"type": "reasoning_text", "text": ""})
        self._pieces.append(piece)
        self._put("reasoning_text.delta", content_index=0, delta=piece)

    def whole(self, status: str) -> Json:
        """The item as it is now."""
        return self._asked.reasoning(self.index, self.text, status)

    def close(self) -> None:
        """No more will come."""
        super().close()
        self._put("reasoning_text.done", content_index=0, text=self.text)
        self._put("content_part.done", content_index=0, part={"type": "reasoning_text", "text": self.text})


class Message(Item):
    """What a model says. `logprobs` gives those of a text."""

    kind = "message"

    def __init__(self, events: Events, asked: Asked, index: int, logprobs: Callable[[str], list[Json]]) -> None:
        super().__init__(events, asked, index)
        self._logprobs = logprobs
        self._parts: list[tuple[str, list[str]]] = []

    def add(self, kind: str, piece: str, logprobs: list[Json]) -> None:
        """More of a part of the kind `output_text` or `refusal`, or a new part."""
        if not self._parts or self._parts[-1][0] != kind:
            self._close_part()
            self._parts.append((kind, []))
            empty = text_part("", []) if kind == "output_text" else {"type": kind, "refusal": ""}
            self._put("content_part.added", content_index=len(self._parts) - 1, part=empty)
        if piece:
            self._parts[-1][1].append(piece)
            more = {"logprobs": logprobs} if kind == "output_text" else {}
            self._put(f"{kind}.delta", content_index=len(self._parts) - 1, delta=piece, **more)

    def whole(self, status: str) -> Json:
        """The item as it is now."""
        return self._asked.message(self.index, [self._part(place) for place in range(len(self._parts))], status)

    def close(self) -> None:
        """No more will come."""
        super().close()
        self._close_part()

    def _part(self, place: int) -> Json:
        kind, pieces = self._parts[place]
        joined = "".join(pieces)
        return text_part(joined, self._logprobs(joined)) if kind == "output_text" else {"type": kind, "refusal": joined}

    def _close_part(self) -> None:
        if not self._parts:
            return
        place = len(self._parts) - 1
        kind, part = self._parts[place][0], self._part(place)
        if kind == "output_text":
            self._put("output_text.done", content_index=place, text=part["text"], logprobs=part["logprobs"])
        else:
            self._put("refusal.done", content_index=place, refusal=part["refusal"])
        self._put("content_part.done", content_index=place, part=part)


class FunctionCall(Item):
    """A function that the model wants called."""

    kind = "function_call"

    def __init__(self, events: Events, asked: Asked, index: int, call: Mapping[str, Any]) -> None:
        super().__init__(events, asked, index)
        self._call = call
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        """More of the arguments."""
        self._pieces.append(piece)
        self._put("function_call_arguments.delta", delta=piece)

    def whole(self, status: str) -> Json:
        """The item as it is now."""
        return self._asked.function_call(self.index, self._call, "".join(self._pieces), status)

    def close(self) -> None:
        """No more will come."""
        super().close()
        name = text(mapping(self._call.get("function")).get("name")) or ""
        self._put("function_call_arguments.done", name=name, arguments="".join(self._pieces))
