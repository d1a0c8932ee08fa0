"""A streamed chat completion: every chunk is read for its tokens and passed on as the client would have got it.

Differences between a vLLM stream with and without what we add, all undone here: `token_ids`, `prompt_token_ids` and
`logprobs` are null; chunks that exist only to carry them (empty delta, not finished) are not sent; there is no usage
chunk; `system_fingerprint` stands on the chunks that finish a choice instead of on the usage chunk, so those are held
back until it comes, which is at once unless n > 1.

One thing cannot be undone. vLLM (0.32) makes the same empty delta where its parser had nothing to say, and would send
no chunk without us, as where it would: for the second of several tool calls under `parallel_tool_calls: false`, and
after the calls of a Mistral tokenizer older than v11. No chunk is sent for either. An empty delta that came without
ids and log-probs, as where `include_reasoning: false` withholds them, is vLLM's own, and passes.
"""

from collections.abc import Mapping
from typing import Any

from sidecar.chat_answer import Answer, Choice, Numbers, count, finite, mapping, objects, text, token_ids
from sidecar.chat_request import Hidden
from sidecar.chat_wire import Piece, read_piece
from sidecar.engine_stream import EngineStream, extended
from sidecar.held import blanked
from sidecar.sse import Event

Json = dict[str, Any]

REASONING = {"reasoning_content": "reasoning"}
"""An older name of a field, and the one it has now."""


class _PartialChoice:
    def __init__(self) -> None:
        self.role: str | None = None
        self.parts: dict[str, list[str]] = {}
        """The texts of a message by field: content, reasoning, refusal."""
        self.tool_calls: dict[int, Json] = {}
        self.finish_reason: str | None = None
        self.token_ids: list[int] | None = None
        self.logprobs: list[Any] | None = None

    def add(self, choice: Json) -> None:
        if reason := choice.get("finish_reason"):
            self.finish_reason = text(reason)
        if isinstance(ids := choice.get("token_ids"), list):
            self.token_ids = extended(self.token_ids, ids)
        if isinstance(entries := mapping(choice.get("logprobs")).get("content"), list):
            self.logprobs = extended(self.logprobs, [mapping(entry).get("logprob") for entry in entries])
        self.add_delta(mapping(choice.get("delta")))

    def add_delta(self, delta: Mapping[str, Any]) -> None:
        """Take note of one piece of the message."""
        for name, part in delta.items():
            if name == "tool_calls":
                for call in objects(part):
                    self._add_tool_call(call)
            elif name == "role":
                self.role = text(part)  # some providers say it in every chunk
            elif isinstance(part, str):
                self.parts.setdefault(REASONING.get(name, name), []).append(part)

    def _add_tool_call(self, part: Json) -> None:
        index = count(part.get("index")) or 0
        call = self.tool_calls.setdefault(index, {"id": None, "type": "function", "name": [], "arguments": []})
        call["id"] = text(part.get("id")) or call["id"]
        function = mapping(part.get("function"))
        for name in ("name", "arguments"):
            if piece := text(function.get(name)):
                call[name].append(piece)

    def finished(self, index: int) -> Choice:
        message: Json = {"role": self.role}
        message |= {name: "".join(parts) for name, parts in self.parts.items() if any(parts)}
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": call["type"],
                    "function": {"name": "".join(call["name"]), "arguments": "".join(call["arguments"])},
                }
                for _, call in sorted(self.tool_calls.items())
            ]
        return Choice(index, message, self.finish_reason, token_ids(self.token_ids), finite(self.logprobs))


class ChatStream(EngineStream):
    """Reads the events of one stream. `hidden` None: nothing is changed, only read."""

    def __init__(self, hidden: Hidden | None) -> None:
        super().__init__()
        self._hidden = hidden
        self._quick = hidden is not None and hidden.token_ids and hidden.logprobs
        self._id: str | None = None
        self._model: str | None = None
        self._prompt_token_ids: Numbers | None = None
        self._choices: dict[int, _PartialChoice] = {}

    def answer(self) -> Answer:
        """What has arrived so far."""
        return Answer(
            id=self._id,
            model=self._model,
            choices=tuple(partial.finished(index) for index, partial in sorted(self._choices.items())),
            prompt_token_ids=self._prompt_token_ids,
            prompt_tokens=count(self._usage.get("prompt_tokens")),
            completion_tokens=count(self._usage.get("completion_tokens")),
        )

    def pass_on(self, event: Event) -> bytes:
        """Read one event; returns the bytes that the client gets for it, which may be none."""
        if event.data is None:
            return event.raw
        if self._quick and (piece := read_piece(event.data)) is not None and piece.index in self._choices:
            return self._pass_piece(piece)
        chunk = self._chunk(event.data)
        if chunk is None:
            return self.flush() + event.raw
        choices = objects(chunk.get("choices"))
        self._read(chunk, choices)
        if self._hidden is None or self._hidden.nothing or chunk.get("error"):
            return self.flush() + event.raw
        return self._hide(event, chunk, choices, self._hidden)

    def _pass_piece(self, piece: Piece) -> bytes:
        choice = self._choices[piece.index]
        choice.token_ids = extended(choice.token_ids, piece.token_ids)
        choice.logprobs = extended(choice.logprobs, piece.logprobs)
        if not piece.delta:
            return b""
        choice.add_delta(piece.delta)
        return b"data: " + piece.shown + b"\n\n"

    def _read(self, chunk: Json, choices: list[Json]) -> None:
        self._id = self._id or text(chunk.get("id"))
        self._model = self._model or text(chunk.get("model"))
        if (ids := token_ids(chunk.get("prompt_token_ids"))) is not None:
            self._prompt_token_ids = ids
        self._note_usage(chunk, choices)
        self._note_error(chunk)
        for choice in choices:
            index = count(choice.get("index")) or 0
            if index not in self._choices:
                self._choices[index] = _PartialChoice()
            self._choices[index].add(choice)

    def _hide(self, event: Event, chunk: Json, choices: list[Json], hidden: Hidden) -> bytes:
        hide_usage = hidden.usage and not self._usage_is_forced
        if hide_usage and not choices and chunk.get("usage"):
            return self.held.release(chunk)
        changed = hide(chunk, hidden)
        if changed and choices and hidden.token_ids and hidden.logprobs and all(map(_is_empty, choices)):
            return b""
        if hide_usage and chunk.get("usage", 0) is None:
            del chunk["usage"]
            changed = True
        return self._shown(event, chunk, choices, changed=changed, hide_usage=hide_usage)


def hide(body: Json, hidden: Hidden) -> bool:
    """Make an answer or a chunk what it would have been without the fields that we added; whether it changed."""
    changed = hidden.token_ids and blanked(body, "prompt_token_ids")
    for choice in objects(body.get("choices")):
        changed = (hidden.token_ids and blanked(choice, "token_ids")) or changed
        changed = (hidden.logprobs and blanked(choice, "logprobs")) or changed
    return changed


def _is_empty(choice: Json) -> bool:
    return choice.get("delta") == {} and choice.get("finish_reason") is None
