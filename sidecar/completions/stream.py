"""A streamed text completion: every chunk is read for its tokens and passed on as the client would have got it.

Differences between a vLLM stream with and without what we add, all undone here: ids and log-probs in the choices, the
usage chunk, and `system_fingerprint`, which stands on the chunks that finish a choice instead of on the usage chunk:
those are held back until it comes, which is at once unless there are several choices.
"""

from typing import Any

from sidecar.chat_answer import Answer, count, mapping, objects, text
from sidecar.completions.answer import answer_of, hide, read_choice
from sidecar.completions.request import Asked
from sidecar.dialect import Json
from sidecar.engine_stream import EngineStream, extended
from sidecar.sse import Event


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
            self.ids = extended(self.ids, ids)
        if isinstance(values := mapping(choice.get("logprobs")).get("token_logprobs"), list):
            self.logprobs = extended(self.logprobs, values)


class CompletionsStream(EngineStream):
    """Reads the events of one stream of an engine."""

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self._asked = asked
        self._head: Json = {}
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
        chunk = self._chunk(event.data)
        if chunk is None:
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
        return self._shown(event, chunk, choices, changed=any(hid), hide_usage=hide_usage)

    def _read(self, chunk: Json, choices: list[Json]) -> None:
        if chunk.get("error"):
            self._note_error(chunk)
            return
        self._head = self._head or {"id": chunk.get("id"), "model": chunk.get("model")}
        self._note_usage(chunk, choices)
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
