"""A streamed text completion: every chunk is read for its tokens and passed on as the client would have got it.

Differences between a vLLM stream with and without what we add, all undone here: ids and log-probs in the choices, the
usage chunk, and `system_fingerprint`, which stands on the chunks that finish a choice instead of on the usage chunk:
those are held back until it comes, which is at once unless there are several choices.
"""

from typing import Any

import orjson

from sidecar.chat_answer import Answer, count, mapping, objects, text
from sidecar.completions.answer import answer_of, hide, read_choice
from sidecar.completions.request import Asked
from sidecar.dialect import Json
from sidecar.held import Held, encoded
from sidecar.sse import DONE, Event


class _PartialChoice:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.finish_reason: str | None = None
        self.prompt: Any = None
        self.ids: list[Any] | None = None
        self.logprobs: list[Any] | None = None

    def add(self, choice: Json) -> None:
        self.said.append(text(choice.get("text")) or "")
        self.finish_reason = text(choice.get("finish_reason")) or self.finish_reason
        if choice.get("prompt_token_ids") is not None:
            self.prompt = choice["prompt_token_ids"]
        if isinstance(ids := choice.get("token_ids"), list):
            self.ids = _grown(self.ids, ids)
        if isinstance(values := mapping(choice.get("logprobs")).get("token_logprobs"), list):
            self.logprobs = _grown(self.logprobs, values)


class CompletionsStream:
    """Reads the events of one stream of an engine."""

    def __init__(self, asked: Asked) -> None:
        self.done = False
        """The stream came to its own end: `[DONE]` was seen."""
        self.error: str | None = None
        """The message of an error event, if one came."""
        self.garbled = False
        """Data came that is no JSON object: tokens may be missing."""
        self._asked = asked
        self._usage_is_forced = False
        self.held = Held()
        self._head: Json = {}
        self._usage: Json = {}
        self._choices: dict[int, _PartialChoice] = {}

    def answer(self) -> Answer:
        """What has arrived so far."""
        choices = [
            read_choice(
                index,
                "".join(one.said),
                one.finish_reason,
                prompt=one.prompt,
                ids=one.ids,
                logprobs=one.logprobs,
            )
            for index, one in sorted(self._choices.items())
        ]
        return answer_of(choices, self._asked, head=self._head, usage=self._usage)

    def pass_on(self, event: Event) -> bytes:
        """Read one event; returns the bytes that the client gets for it, which may be none."""
        if event.data is None:
            return event.raw
        chunk = _chunk(event.data)
        if chunk is None:
            self._note(event.data)
            return self.flush() + event.raw
        choices = objects(chunk.get("choices"))
        self._read(chunk, choices)
        hidden = self._asked
        if chunk.get("error") or not (hidden.token_ids or hidden.logprobs or hidden.usage):
            return self.flush() + event.raw
        hide_usage = hidden.usage and not self._usage_is_forced
        if hide_usage and not choices and chunk.get("usage"):
            return self.held.release(chunk)
        hid = [hide(choice, hidden) for choice in choices]
        raw = None if any(hid) else event.raw
        if hide_usage and any(choice.get("finish_reason") for choice in choices):
            return self.held.hold(chunk, raw)
        waited = self.held.flush() if self._usage_is_forced else b""
        return waited + (raw or encoded(chunk))

    def _note(self, data: bytes) -> None:
        """Take note of data that is no chunk."""
        if data == DONE:
            self.done = True
        else:
            self.garbled = True

    def flush(self) -> bytes:
        """What is held back, for when the stream ends without a usage chunk."""
        return self.held.flush()

    def _read(self, chunk: Json, choices: list[Json]) -> None:
        if error := chunk.get("error"):
            self.error = text(mapping(error).get("message")) or str(error)
            return
        self._head = self._head or {"id": chunk.get("id"), "model": chunk.get("model")}
        if usage := chunk.get("usage"):
            self._usage_is_forced = self._usage_is_forced or bool(choices)
            self._usage = dict(mapping(usage))
        for choice in choices:
            index = count(choice.get("index")) or 0
            if index not in self._choices:
                self._choices[index] = _PartialChoice()
            self._choices[index].add(choice)


class CompletionsReader(CompletionsStream):
    """Reads a stream that passes through."""

    def read(self, event: Event) -> None:
        """Take note of one event."""
        self.pass_on(event)


def _chunk(data: bytes) -> Json | None:
    """The JSON object in an event; None where it is something else, as `[DONE]` is."""
    if data == DONE:
        return None
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return chunk if isinstance(chunk, dict) else None


def _grown(values: list[Any] | None, more: list[Any]) -> list[Any]:
    if values is None:
        return list(more)
    values.extend(more)
    return values
