"""What an engine answered to a chat completion, and the gate: is every sampled token proved exact?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

ABORTED, INCOMPLETE = "aborted", "incomplete_token_ids"


@dataclass(frozen=True, slots=True)
class Numbers:
    """A list of numbers as compact JSON text, which is what spans carry and what came over the wire."""

    text: str
    count: int

    @staticmethod
    def of(values: list[int] | list[float]) -> "Numbers":
        """The text of a list."""
        return Numbers(orjson.dumps(values).decode(), len(values))

    @property
    def values(self) -> list[Any]:
        """The numbers."""
        found: list[Any] = orjson.loads(self.text)
        return found


@dataclass(frozen=True, slots=True)
class Choice:
    """One sampled answer. `token_ids` and `logprobs` None: the engine did not send them, or not as numbers."""

    index: int
    message: Mapping[str, Any]
    finish_reason: str | None
    token_ids: Numbers | None = None
    logprobs: Numbers | None = None
    prompt: int | None = None
    """Which of several prompts of one call it answers; None: there was one."""
    prompt_token_ids: Numbers | None = None
    """The ids of that prompt; those of the only one are the answer's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, out of one JSON body or out of the chunks of a stream."""

    id: str | None = None
    model: str | None = None
    choices: tuple[Choice, ...] = ()
    prompt_token_ids: Numbers | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    def prompt_of(self, choice: Choice) -> Numbers | None:
        """The ids of the prompt that a choice answers."""
        return self.prompt_token_ids if choice.prompt is None else choice.prompt_token_ids

    @property
    def prompt_ids_count(self) -> int:
        """How many prompt ids there are, each prompt counted once, as the engine's usage does."""
        found = {choice.prompt: self.prompt_of(choice) for choice in self.choices}
        return sum(ids.count for ids in found.values() if ids is not None)


def read_answer(body: Mapping[str, Any]) -> Answer:
    """The answer in a `chat.completion` object; what is missing or of another shape is None."""
    choices = [_read_choice(place, one) for place, one in enumerate(objects(body.get("choices")))]
    usage = mapping(body.get("usage"))
    return Answer(
        id=text(body.get("id")),
        model=text(body.get("model")),
        choices=tuple(choices),
        prompt_token_ids=token_ids(body.get("prompt_token_ids")),
        prompt_tokens=count(usage.get("prompt_tokens")),
        completion_tokens=count(usage.get("completion_tokens")),
    )


def _read_choice(place: int, choice: Mapping[str, Any]) -> Choice:
    index = count(choice.get("index"))
    return Choice(
        index=place if index is None else index,
        message=mapping(choice.get("message")),
        finish_reason=text(choice.get("finish_reason")),
        token_ids=token_ids(choice.get("token_ids")),
        logprobs=logprobs(choice.get("logprobs")),
    )


def inexact_reason(answer: Answer, choice: Choice) -> str | None:
    """Why this choice must not be trained on; None when its tokens are proved exact.

    Proof: prompt ids and one id per sampled token, as many as the engine counted; one finite log-prob per token; a
    finish reason. Which weights sampled it is proved elsewhere (`sidecar.policy`).
    """
    if choice.finish_reason in (None, "abort"):
        return ABORTED
    if choice.finish_reason == "error":
        return "error"
    prompt, sampled = answer.prompt_of(choice), choice.token_ids
    if prompt is None or not prompt.count or sampled is None or not sampled.count:
        return "no_token_ids"
    total = sum(one.token_ids.count for one in answer.choices if one.token_ids is not None)
    if total != answer.completion_tokens or answer.prompt_ids_count != answer.prompt_tokens:
        return INCOMPLETE
    if choice.logprobs is None or choice.logprobs.count != sampled.count:
        return "no_logprobs"
    return None


def logprobs(value: Any) -> Numbers | None:
    """The sampled tokens' log-probs of a choice's `logprobs`; None where one is not a number."""
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, list):
        return None
    found: list[Any] = [entry.get("logprob") if isinstance(entry, dict) else None for entry in content]
    return finite(found)


def finite(values: Any) -> Numbers | None:
    """A list of finite numbers; None for anything else."""
    if not isinstance(values, list) or not set(map(type, values)) <= {float, int}:
        return None
    text = orjson.dumps(values).decode()
    return None if "null" in text else Numbers(text, len(values))  # orjson writes NaN and infinities as null


def token_ids(value: Any) -> Numbers | None:
    """A list of token ids; None for anything else."""
    return Numbers.of(value) if isinstance(value, list) and set(map(type, value)) <= {int} else None


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` where it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """The JSON objects of a list; empty for anything else."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text(value: Any) -> str | None:
    """`value` where it is a string."""
    return value if isinstance(value, str) else None


def count(value: Any) -> int | None:
    """`value` where it is a whole number, not a boolean."""
    return value if type(value) is int else None
