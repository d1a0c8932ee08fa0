"""One call's part in exact continuation: what it extends, and what it leaves for others to extend."""

import logging
from dataclasses import dataclass
from typing import Any

import orjson

from sidecar.chat_answer import Answer, Choice, inexact_reason
from sidecar.continuation.conversation import Conversation, thought
from sidecar.continuation.memory import Key, Memory, Turn, ids_text

log = logging.getLogger(__name__)

TOKENS = "tokens"
IGNORED = "ignored"
"""The engine answered the messages all the same: it does not take a chat's prompt as ids."""

FIELD = "kv_transfer_params"
"""Where vLLM (0.32) takes a chat completion's prompt as ids, in the member `prompt_token_ids`."""


@dataclass
class Continued:
    """What one call extends. `outcome` is what its span says."""

    outcome: str | None
    """`tokens`, or why not; None where the request holds no earlier answer."""
    memory: Memory | None = None
    """None: nothing is kept of this call, or it was kept."""
    key: Key = ("", "", 0)
    talk: Conversation | None = None
    before: Turn | None = None
    """The turn that the prompt begins with, where the outcome is `tokens`."""
    new: str = ""
    """The ids after those."""
    stops: bool = False
    """Whether stop strings may end the answer."""

    @property
    def fields(self) -> dict[str, Any]:
        """What to set in the engine's request; empty on the ordinary road."""
        if self.before is None:
            return {}
        return {FIELD: {"prompt_token_ids": orjson.Fragment(f"[{self._prompt}]")}}

    @property
    def _prompt(self) -> str:
        return f"{self.before.tokens},{self.new}" if self.before is not None else ""

    @property
    def waits(self) -> bool:
        """Whether `answered` is still to be called."""
        return self.memory is not None

    def answered(self, answer: Answer) -> None:
        """Keep what came back, where its tokens are complete. To be called before the client has the whole answer."""
        prompt, memory, talk = answer.prompt_token_ids, self.memory, self.talk
        self.memory = None
        if prompt is None or memory is None or talk is None:
            return
        if self.before is not None and ids_text(prompt) != self._prompt:
            self.outcome, self.before = IGNORED, None
            log.warning("the engine does not take a chat's prompt as ids: exact continuation needs vLLM 0.32 or newer")
        new = self.new if self.before is not None else ids_text(prompt)
        for choice in answer.choices:
            if choice.token_ids is not None and inexact_reason(answer, choice) in (None, "no_logprobs"):
                turn = self._turn(talk, choice, new, ids_text(choice.token_ids))
                memory.add(self.key, talk.answered(choice), talk.settings, turn)

    def _turn(self, talk: Conversation, choice: Choice, new: str, response: str) -> Turn:
        thinking = {place: found for place, one in enumerate(talk.messages) if (found := thought(one).text)}
        if self.before is not None:
            thinking |= self.before.thinking
        if found := thought(choice.message).text:
            thinking[len(talk.messages)] = found
        broken_off = choice.finish_reason == "length" or (choice.finish_reason == "stop" and self.stops)
        return Turn(self.before, new, response, broken_off, thinking)
