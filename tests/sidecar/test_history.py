"""What calls leave out because an earlier one of their rollout holds it, and what is remembered for that."""

import json
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import orjson
import pytest
from fake_vllm import FakeVllm
from hypothesis import given
from hypothesis import strategies as st
from sidecar_harness import Harness

from sidecar import shared_ids
from sidecar.call import Call
from sidecar.chat_answer import Answer, Choice, Numbers
from sidecar.earlier import ENTRY_BYTES
from sidecar.history import LEAST_TOKENS, Growth, History
from sidecar.identity import Target, identify
from sidecar.metrics import Metrics
from sidecar.recorder import Recorder
from sidecar.replica import Stamp
from tracegrad import names
from tracegrad.otlp_span import Value

Json = dict[str, Any]
IDS = st.lists(st.integers(0, 1200), max_size=20)
FIRST = [{"role": "user", "content": "Hi"}]
MORE = [*FIRST, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Well?"}]
PROMPT = list(range(100, 200))


@given(IDS, IDS, st.integers(0, 20))
def test_shared_ids_are_those_of_the_lists(one: list[int], other: list[int], common: int) -> None:
    other = one[:common] + other
    first, second = (shared_ids.inner(Numbers.of(ids)) for ids in (one, other))
    n = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    characters = shared_ids.shared(first, second)
    assert shared_ids.count(second[:characters]) == n
    assert json.loads(f"[{shared_ids.rest(second, characters)}]") == other[n:]
    assert shared_ids.joined(first, second) == shared_ids.inner(Numbers.of(one + other))


def identity(rollout: str | None = "r", attempt: int = 0, **headers: str) -> Any:
    return identify(Target("/v1/chat/completions", rollout, attempt), headers)


def answer(prompt: list[int] | None, *responses: list[int]) -> Answer:
    choices = tuple(Choice(place, {}, "stop", Numbers.of(ids)) for place, ids in enumerate(responses))
    return Answer("a", "policy", choices, None if prompt is None else Numbers.of(prompt))


def grown(history: History, messages: list[Json], found: Answer, *, who: Any = None, **changes: Any) -> Growth:
    kind, tenant = changes.pop("kind", "policy"), changes.pop("tenant", "red")
    growth = history.grow(who or identity(), {"messages": messages, **changes}, found, tenant=tenant, kind=kind)
    assert growth is not None
    return growth


def told(
    history: History, messages: list[Json], found: Answer, *, ship: bool = True, **changes: Any
) -> Mapping[str, Value]:
    """What the call's span says of an earlier one; of the last choice where there are several."""
    growth = grown(history, messages, found, **changes)
    if ship:
        growth.shipped()
    return growth.values(max(len(found.choices) - 1, 0))


def test_a_call_that_extends_another_holds_what_is_new() -> None:
    history = History()
    first = identity()
    assert told(history, FIRST, answer(PROMPT, [1, 2]), who=first) == {}
    span_id = first.context.span_id.hex()
    assert told(history, MORE, answer([*PROMPT, 1, 2, 3], [4])) == {
        names.EXTENDS_SPAN_ID: span_id,
        names.EXTENDS_ROOT: span_id,
        names.EXTENDS_DEPTH: 1,
        names.EXTENDS_TOKENS: len(PROMPT) + 2,
        names.EXTENDS_MESSAGES: 1,
        names.EXTENDS_TOOLS: None,
        names.EXTENDS_LINE: None,
        names.EXTENDS_PATH: None,
        names.PROMPT_TOKEN_IDS: "[3]",
        names.PROMPT_LENGTH: len(PROMPT) + 3,
        names.PROMPT_CRC32: crc32(orjson.dumps([*PROMPT, 1, 2, 3])),
    }


def test_a_template_that_takes_something_back_shares_what_is_left() -> None:
    history = History()
    told(history, FIRST, answer(PROMPT, [1, 2]))
    values = told(history, MORE, answer([*PROMPT[:-1], 7, 8], [4]))
    assert (values[names.EXTENDS_TOKENS], values[names.PROMPT_TOKEN_IDS]) == (len(PROMPT) - 1, "[7,8]")


def test_what_is_not_on_its_way_is_not_extended() -> None:
    history = History()
    told(history, FIRST, answer(PROMPT, [1, 2]), ship=False)
    assert told(history, MORE, answer([*PROMPT, 1, 2, 3], [4])) == {}


@pytest.mark.parametrize(
    "other",
    [
        {"who": identity("another")},
        {"who": identity("r", attempt=1)},
        {"kind": "another policy"},
        {"tenant": "blue"},
    ],
)
def test_calls_of_others_are_not_extended(other: Json) -> None:
    history = History()
    told(history, FIRST, answer(PROMPT, [1, 2]))
    assert told(history, MORE, answer([*PROMPT, 1, 2, 3], [4]), **other) == {}


def test_few_shared_ids_are_not_worth_it() -> None:
    history = History()
    told(history, FIRST, answer(PROMPT[: LEAST_TOKENS - 1], [1]))
    assert told(history, MORE, answer([*PROMPT[: LEAST_TOKENS - 1], 9], [4])) == {}


def test_the_second_to_extend_a_call_begins_a_line_of_its_own() -> None:
    history = History()
    told(history, FIRST, answer(PROMPT, [1, 2]))
    assert told(history, MORE, answer([*PROMPT, 1, 2, 3], [4]))[names.EXTENDS_LINE] is None
    again, later = identity(), identity()
    values = told(history, MORE, answer([*PROMPT, 1, 2, 3], [5]), who=again)
    assert values[names.EXTENDS_LINE] is None, "nothing has extended the call that it repeats"
    assert (values[names.EXTENDS_DEPTH], values[names.PROMPT_TOKEN_IDS]) == (2, "[]")
    values = told(history, MORE, answer([*PROMPT, 1, 2, 3, 9], [5]), who=later)
    assert values[names.EXTENDS_LINE] == later.context.span_id.hex()
    assert values[names.EXTENDS_PATH] is None, "the root's line is before it"


def test_calls_that_end_together_have_places_of_their_own() -> None:
    history = History()
    told(history, FIRST, answer(PROMPT, [1, 2]))
    together = [grown(history, MORE, answer([*PROMPT, 1, 2, 3], [sampled])) for sampled in range(4)]
    places = {(one.values()[names.EXTENDS_LINE], one.values()[names.EXTENDS_DEPTH]) for one in together}
    assert len(places) == 4
    assert (None, 1) in places
    together[2].shipped()
    later = told(history, [*MORE, *MORE], answer([*PROMPT, 1, 2, 3, 2, 9], [5]))
    assert later[names.EXTENDS_SPAN_ID] == together[2].context(0, b"").span_id.hex()


def test_the_place_of_a_call_that_was_lost_stays_its_own() -> None:
    history = History()
    told(history, FIRST, answer(PROMPT, [1, 2]))
    told(history, MORE, answer([*PROMPT, 1, 2, 3], [4], [5]), ship=False)
    again = identity()
    values = told(history, MORE, answer([*PROMPT, 1, 2, 3], [6]), who=again)
    assert values[names.EXTENDS_LINE] == again.context.span_id.hex()


def test_of_several_choices_the_one_that_was_gone_on_from_is_extended() -> None:
    history = History()
    values = told(history, FIRST, answer(PROMPT, [1, 2], [3, 4]))
    assert values[names.PROMPT_TOKEN_IDS] == values[names.INPUT_MESSAGES] == "[]", "the first choice has them"
    values = told(history, MORE, answer([*PROMPT, 3, 4, 5], [6]))
    assert (values[names.EXTENDS_TOKENS], values[names.EXTENDS_DEPTH]) == (len(PROMPT) + 2, 2)


def test_ids_are_shared_where_messages_changed() -> None:
    history = History()
    told(history, FIRST, answer(PROMPT, [1, 2]))
    values = told(history, [{"role": "user", "content": "Hi, well?"}], answer([*PROMPT, 1, 2, 3], [4]))
    assert (values[names.EXTENDS_TOKENS], values[names.EXTENDS_MESSAGES]) == (len(PROMPT) + 2, 0)


def test_tools_are_left_out_only_where_they_are_the_same() -> None:
    history = History()
    tools = [{"type": "function", "function": {"name": "add"}}]
    told(history, FIRST, answer(PROMPT, [1]), tools=tools)
    assert told(history, MORE, answer([*PROMPT, 1, 2], [3]), tools=tools)[names.EXTENDS_TOOLS] is True
    assert told(history, MORE, answer([*PROMPT, 1, 2], [4]), tools=[*tools, *tools])[names.EXTENDS_TOOLS] is None


def test_a_call_that_nobody_can_extend_is_not_remembered() -> None:
    history = History()
    chat, kept = {"messages": FIRST}, {"tenant": "", "kind": "policy"}
    assert history.grow(identity(None), chat, answer(PROMPT, [1]), **kept) is None
    parent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    growth = history.grow(identity(None, traceparent=parent), chat, answer(PROMPT, [1]), **kept)
    assert growth is not None
    assert history.grow(identity(), {"prompt": "Hi"}, answer(PROMPT, [1]), **kept) is None


def test_memory_is_bounded_and_the_quiet_rollout_goes_first() -> None:
    history = History(max_bytes=40 * ENTRY_BYTES)
    for place in range(100):
        told(history, FIRST, answer(PROMPT, [1, 2]), who=identity(f"r{place}"))
        told(history, FIRST, answer(PROMPT, [1, 2]), who=identity("endless"))
        assert history.n_bytes <= 40 * ENTRY_BYTES
    assert told(history, MORE, answer([*PROMPT, 1, 2, 3], [4]), who=identity("r0")) == {}
    assert told(history, MORE, answer([*PROMPT, 1, 2, 3], [4]), who=identity("r99")) != {}


def test_what_is_remembered_of_a_rollout_grows_with_what_is_new() -> None:
    def size(turns: int) -> int:
        history, messages, prompt = History(), FIRST, PROMPT
        for turn in range(turns):
            told(history, messages, answer(prompt, [turn] * 50))
            messages, prompt = [*messages, {"role": "user", "content": str(turn)}], [*prompt, *[turn] * 50, 7]
        return history.n_bytes

    assert size(400) / size(200) < 2.5


class _FullDelivery:
    def put(self, record: bytes) -> bool:
        return False


def test_a_span_that_was_refused_is_not_extended() -> None:
    recorder = Recorder(_FullDelivery(), Metrics())  # type: ignore[arg-type]
    calls = []
    for messages, prompt in ((FIRST, PROMPT), (MORE, [*PROMPT, 1, 2, 3])):
        call = Call(identity(), 1, policy="policy", body={"model": "policy", "messages": messages})
        call.start, call.end, call.answer = Stamp(0, 1), Stamp(0, 1), answer(prompt, [1, 2])
        recorder.finish(call)
        calls.append(call)
    assert calls[1].growth is not None
    assert calls[1].growth.values() == {}


async def test_a_span_without_history_is_whole(harness: Harness, fake: FakeVllm) -> None:
    messages = [{"role": "user", "content": "word " * 200}]
    for _ in range(2):
        async with await harness.chat({"messages": messages}):
            pass
    spans = await harness.receiver.wait(2)
    for span in spans:
        assert not any(name.startswith("tracegrad.extends.") for name in span.attributes)
        assert len(orjson.loads(span.attributes[names.INPUT_MESSAGES])) == 1
