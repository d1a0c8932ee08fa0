"""Breaks: what is told of two calls of which the second does not continue the first."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tracegrad.errors import SettingsError
from trainer.merge_breaks import Break, CallText, classify, decoder_of_model

ASKED = [{"role": "system", "parts": [{"type": "text", "content": "be brief"}]}]
ASKED += [{"role": "user", "parts": [{"type": "text", "content": "2+2"}]}]
ANSWER = {"role": "assistant", "parts": [{"type": "text", "content": "4!"}], "finish_reason": "stop"}
SENT_BACK = {"role": "assistant", "parts": [{"type": "text", "content": "4!"}]}
MORE = {"role": "user", "parts": [{"type": "text", "content": "sure?"}]}


def letters(ids: np.ndarray[Any, Any]) -> str:
    """A tokenizer: 1 is `a`, 2 is `b`, ...; 100 is `ab`."""
    return "".join("ab" if token == 100 else chr(96 + token) for token in ids.tolist())


def call(prompt: list[int], response: list[int], asked: Any = None, answered: Any = None) -> CallText:
    return CallText(
        np.array(prompt, np.int64),
        np.array(response, np.int64),
        "" if asked is None else json.dumps(asked),
        "" if answered is None else json.dumps([answered]),
    )


def judged(history: Any, *, before: Any = (ASKED, ANSWER), prompt: list[int] | None = None) -> Break:
    """The break after a call with prompt 5 6 and response 7 8, of which the next prompt has only 5 6 7."""
    first = call([5, 6], [7, 8], *before)
    return classify(first, call(prompt or [5, 6, 7, 9, 9], [1], history), letters)


def test_the_same_text_in_other_tokens_is_retokenized() -> None:
    first, second = call([5], [1, 2, 3]), call([5, 100, 3, 9], [1])
    found = classify(first, second, letters)
    assert (found.kind, found.at) == ("retokenized", 1)
    assert found.reason == "the same text came back as other token ids, from the response's token 1 on"
    assert classify(first, call([5, 100, 4, 9], [1]), letters).kind != "retokenized"


def test_other_tokens_of_the_same_messages_are_the_templates() -> None:
    found = judged([*ASKED, SENT_BACK, MORE])
    assert (found.kind, found.at) == ("template", 3)
    assert found.reason == "the same messages were rendered in another way, from the response's token 3 on"
    assert "from the prompt's token 1 on" in judged([*ASKED, SENT_BACK, MORE], prompt=[5, 5]).reason


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([*ASKED, {**SENT_BACK, "parts": [{"type": "text", "content": "4"}]}, MORE], "has another answer"),
        ([ASKED[0], MORE, SENT_BACK, MORE], "message 1 of the history, from user, is another"),
        ([*ASKED, MORE], "has another answer than the one that was sampled, message 2"),
        (ASKED, "the history ends after 2 of 3 messages"),
        ([ASKED[1], SENT_BACK, MORE], "message 0 of the history, from system, is another"),
    ],
)
def test_another_history_is_rewritten(history: Any, reason: str) -> None:
    found = judged(history)
    assert found.kind == "rewritten"
    assert reason in found.reason


def test_an_answer_without_its_reasoning_is_rewritten_and_said_to_be() -> None:
    thought = {**ANSWER, "parts": [{"type": "reasoning", "content": "hm"}, *ANSWER["parts"]]}
    found = judged([*ASKED, SENT_BACK, MORE], before=(ASKED, thought))
    assert (found.kind, found.reason) == ("rewritten", "the history leaves out the reasoning of the answer, message 2")


def test_how_messages_are_written_does_not_matter() -> None:
    tool_call = {"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 2, "b": 2}}
    answer = {"role": "assistant", "parts": [{"type": "text", "content": ""}, tool_call], "finish_reason": "tool_calls"}
    back = {"parts": [{"arguments": {"b": 2, "a": 2}, "name": "add", "id": "c1", "type": "tool_call"}]}
    assert judged([*ASKED, {**back, "role": "assistant"}], before=(ASKED, answer)).kind == "template"
    other = {"parts": [{**tool_call, "arguments": {"a": 3, "b": 2}}], "role": "assistant"}
    assert judged([*ASKED, other], before=(ASKED, answer)).kind == "rewritten"
    halves = {"role": "assistant", "parts": [{"type": "text", "content": "4"}, {"type": "text", "content": "!"}]}
    assert judged([*ASKED, halves]).kind == "template"


@pytest.mark.parametrize(
    ("before", "history"), [((None, ANSWER), ASKED), ((ASKED, None), ASKED), ((ASKED, ANSWER), None), (("{", 1), [1])]
)
def test_without_messages_only_retokenizing_can_be_told(before: Any, history: Any) -> None:
    found = judged(history, before=before)
    assert (found.kind, found.reason) == ("unclassified", "the messages of the two calls are not recorded")


def test_without_a_tokenizer_only_rewriting_can_be_told() -> None:
    first = call([5, 6], [7, 8], ASKED, ANSWER)
    kept, changed = call([5, 6, 9], [1], [*ASKED, SENT_BACK, MORE]), call([5, 6, 9], [1], [MORE])
    assert classify(first, kept, None).kind == "unclassified"
    assert "no tokenizer.json beside the model" in classify(first, kept, None).reason
    assert classify(first, changed, None).kind == "rewritten"


def test_the_models_own_tokenizer_decodes(tmp_path: Path) -> None:
    """A real byte-level tokenizer: a character is two tokens in one call, one in the next, and cut off in the third."""
    assert decoder_of_model(tmp_path) is None
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {letter: number for number, letter in enumerate([*alphabet, "Ã¤"])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[("Ã", "¤")]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    decode = decoder_of_model(tmp_path)
    assert decode is not None
    halves, one, a = [ids["Ã"], ids["¤"]], ids["Ã¤"], ids["a"]
    assert decode(np.array(halves)) == decode(np.array([one])) == "ä"
    assert classify(call([a], halves), call([a, one, a], [a]), decode).kind == "retokenized"
    assert classify(call([a], halves[:1]), call([a, one, a], [a]), decode).kind == "retokenized"
    assert classify(call([a], [a, *halves]), call([a, one, a], [a]), decode).kind == "unclassified"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SettingsError, match="copy the model's own there"):
        decoder_of_model(tmp_path)
