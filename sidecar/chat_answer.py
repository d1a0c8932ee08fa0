"""What an engine answered to a chat completion, and the gate: is every sampled token proved exact?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ABORTED = "aborted"


@dataclass(frozen=True)
class Choice:
    """One sampled answer. `token_ids` and `logprobs` None: the engine did not send them."""

    index: int
    message: Mapping[str, Any]
    finish_reason: str | None
    token_ids: Sequence[int] | None
    logprobs: Sequence[float] | None


@dataclass(frozen=True)
class Answer:
    """A whole answer, out of one JSON body or out of the chunks of a stream."""

    id: str | None = None
    model: str | None = None
    choices: tuple[Choice, ...] = ()
    prompt_token_ids: Sequence[int] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


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
    if not answer.prompt_token_ids or not choice.token_ids:
        return "no_token_ids"
    sampled = sum(len(one.token_ids or ()) for one in answer.choices)
    if sampled != answer.completion_tokens or len(answer.prompt_token_ids) != answer.prompt_tokens:
        return "incomplete_token_ids"
    if choice.logprobs is None or len(choice.logprobs) != len(choice.token_ids):
        return "no_logprobs"
    return None if all(map(math.isfinite, choice.logprobs)) else "no_logprobs"


def logprobs(value: Any) -> list[float] | None:
    """The sampled tokens' log-probs of a choice's `logprobs`; one that is not a number becomes NaN."""
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, list):
        return None
    found: list[Any] = [entry.get("logprob") if isinstance(entry, dict) else None for entry in content]
    if set(map(type, found)) <= {float}:
        return found
    return [float(one) if isinstance(one, int | float) else math.nan for one in found]


def token_ids(value: Any) -> list[int] | None:
    """A list of token ids; None for anything else."""
    return value if isinstance(value, list) and set(map(type, value)) <= {int} else None


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
