"""Why a call does not continue the one before it, token for token: what to repair so that rows can be merged.

`template`: the agent sent the history as it was, and it was rendered with other scaffolding, such as a chat template
that leaves out earlier reasoning. `retokenized`: the same text came back as other token ids. `rewritten`: the agent
changed its history. `unclassified`: what is recorded does not tell which.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tracegrad.errors import SettingsError

BreakClass = Literal["template", "retokenized", "rewritten", "unclassified"]

Decode = Callable[[NDArray[np.int64]], str]
"""Token ids to the text they stand for, special tokens included."""

AROUND = 8
"""Tokens before the first difference that are decoded with it: a character can be spread over several."""


@dataclass(frozen=True, eq=False)
class CallText:
    """A call's token ids, and its messages as JSON text of GenAI conventions; empty where they are not recorded."""

    prompt_token_ids: NDArray[np.int64]
    response_token_ids: NDArray[np.int64]
    input_messages: str = ""
    output_messages: str = ""


@dataclass(frozen=True)
class Break:
    """`kind`, and the reason in a sentence. `at`: the first token of the later prompt that is another."""

    kind: BreakClass
    reason: str
    at: int


def classify(before: CallText, after: CallText, decode: Decode | None) -> Break:
    """Why `after` does not begin with the prompt and response of `before`. `decode`: None without a tokenizer."""
    whole = np.concatenate([before.prompt_token_ids, before.response_token_ids])
    prompt = after.prompt_token_ids
    at = _first_difference(whole, prompt)
    where = "response" if at >= len(before.prompt_token_ids) else "prompt"
    if decode is not None and len(prompt) > at and _same_text(whole, prompt, at, decode):
        return Break("retokenized", f"the same text came back as other token ids, from the {where}'s token {at} on", at)
    change = _change_of_history(before, after)
    if change is None:
        return Break("unclassified", "the messages of the two calls are not recorded", at)
    if change:
        return Break("rewritten", change, at)
    if decode is None:
        return Break("unclassified", "there is no tokenizer.json beside the model to tell whether the text differs", at)
    return Break("template", f"the same messages were rendered in another way, from the {where}'s token {at} on", at)


def decoder_of_model(directory: Path) -> Decode | None:
    """Of the tokenizer beside a model; None where there is none. Raises SettingsError where it cannot be read."""
    file = directory / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer  # takes a moment, and only breaks need it

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing more precise
        raise SettingsError(f"the tokenizer {file} cannot be read ({error}): copy the model's own there") from error
    return lambda ids: str(tokenizer.decode(ids.tolist(), skip_special_tokens=False))


def _first_difference(first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
    shorter = min(len(first), len(second))
    different = np.flatnonzero(first[:shorter] != second[:shorter])
    return int(different[0]) if len(different) else shorter


def _same_text(whole: NDArray[np.int64], prompt: NDArray[np.int64], at: int, decode: Decode) -> bool:
    """Whether the later prompt begins with the earlier call's text; a character that was cut off at its end is open."""
    begin = max(at - AROUND, 0)
    return decode(prompt[begin:]).startswith(decode(whole[begin:]).rstrip("\N{REPLACEMENT CHARACTER}"))


def _change_of_history(before: CallText, after: CallText) -> str | None:
    """What the agent changed, in a sentence; empty where it changed nothing, None where that is not recorded."""
    asked, answered, now = (
        _messages(text) for text in (before.input_messages, before.output_messages, after.input_messages)
    )
    if not asked or not answered or not now:
        return None
    history = [*asked, *answered]
    for number, (then, found) in enumerate(zip(history, now, strict=False)):
        if then != found:
            return _told(number, number >= len(asked), then, found)
    if len(now) < len(history):
        return f"the history ends after {len(now)} of {len(history)} messages"
    return ""


def _told(number: int, is_answer: bool, then: dict[str, Any], found: dict[str, Any]) -> str:
    if not is_answer:
        return f"message {number} of the history, from {then['role'] or 'nobody'}, is another"
    without = [part for part in then["parts"] if part.get("type") != "reasoning"]
    if {**then, "parts": without} == found:
        return f"the history leaves out the reasoning of the answer, message {number}"
    return f"the history has another answer than the one that was sampled, message {number}"


def _messages(recorded: str) -> list[dict[str, Any]]:
    """Messages in a form that is equal where they say the same; empty where nothing can be read."""
    try:
        messages = json.loads(recorded) if recorded else []
    except ValueError:
        return []
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return []
    return [{"role": message.get("role") or "", "parts": _parts(message)} for message in messages]


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Without what says nothing: empty fields, empty parts, and where one text is cut into several."""
    parts: list[dict[str, Any]] = []
    for part in message.get("parts") or []:
        told = part if isinstance(part, dict) else {"type": "text", "content": part}
        said = {name: value for name, value in told.items() if value not in (None, "", [], {})}
        if not said.keys() - {"type"}:
            continue
        if parts and said.get("type") == parts[-1].get("type") == "text":
            parts[-1] = {**said, "content": str(parts[-1]["content"]) + str(said["content"])}
        else:
            parts.append(said)
    return parts
