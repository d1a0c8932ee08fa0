"""What an engine answered to a text completion."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sidecar.chat_answer import Answer, Choice, Numbers, count, finite, mapping, objects, text, token_ids
from sidecar.chat_request import Hidden
from sidecar.completions.request import Asked
from sidecar.dialect import Json
from sidecar.held import blanked


def read_answer(body: Mapping[str, Any], asked: Asked) -> Answer:
    """The answer in a `text_completion` object; what is missing or of another shape is None."""
    found = []
    for place, choice in enumerate(objects(body.get("choices"))):
        index = count(choice.get("index"))
        found.append(
            read_choice(
                place if index is None else index,
                text(choice.get("text")) or "",
                text(choice.get("finish_reason")),
                prompt=choice.get("prompt_token_ids"),
                ids=choice.get("token_ids"),
                logprobs=mapping(choice.get("logprobs")).get("token_logprobs"),
            )
        )
    return answer_of(found, asked, head=body, usage=mapping(body.get("usage")))


def read_choice(index: int, said: str, finish_reason: str | None, *, prompt: Any, ids: Any, logprobs: Any) -> Choice:
    """One choice, whose prompt stands in it."""
    asked, sampled = token_ids(prompt), token_ids(ids)
    message = {"role": "assistant", "content": said}
    return Choice(
        index, message, finish_reason, sampled, _sampled_logprobs(logprobs, asked, sampled), prompt_token_ids=asked
    )


def _sampled_logprobs(values: Any, prompt: Numbers | None, sampled: Numbers | None) -> Numbers | None:
    """With `echo` the log-probs of the prompt come first."""
    if prompt and sampled and isinstance(values, list) and len(values) == prompt.count + sampled.count:
        values = values[prompt.count :]
    return finite(values)


def answer_of(choices: Sequence[Choice], asked: Asked, *, head: Mapping[str, Any], usage: Mapping[str, Any]) -> Answer:
    """The whole answer. Where there was one prompt its ids are the answer's."""
    n = asked.n if asked.n is not None and any(choice.index >= asked.n for choice in choices) else None
    told = tuple(_placed(choice, n, asked.sampled) for choice in choices)
    prompts = [choice.prompt_token_ids for choice in choices]
    return Answer(
        id=text(head.get("id")),
        model=text(head.get("model")),
        choices=told,
        prompt_token_ids=prompts[0] if prompts and asked.sampled and n is None else None,
        prompt_tokens=count(usage.get("prompt_tokens")),
        completion_tokens=count(usage.get("completion_tokens")),
    )


def _placed(choice: Choice, n: int | None, sampled: bool) -> Choice:
    """`n`: choices per prompt, where there are several prompts."""
    return replace(
        choice,
        token_ids=choice.token_ids if sampled else None,
        logprobs=choice.logprobs if sampled else None,
        prompt=None if n is None else choice.index // n,
        prompt_token_ids=choice.prompt_token_ids if sampled and n is not None else None,
    )


def hide(choice: Json, hidden: Hidden) -> bool:
    """Make a choice, whole or of a chunk, what it would have been without the fields that we added."""
    changed = False
    for name in ("prompt_token_ids", "token_ids"):
        changed = (hidden.token_ids and blanked(choice, name)) or changed
    return (hidden.logprobs and blanked(choice, "logprobs")) or changed
