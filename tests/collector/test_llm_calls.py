"""`llm_calls` shows whole prompts and messages, whatever the sidecar left out: against what the engine saw."""

import json
import random
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from collector.engine import Engine
from collector.migrations import FILES, migrate
from sidecar.call import Call, call_spans
from sidecar.chat_answer import Answer, Choice, Numbers
from sidecar.earlier import MOST_FORKS
from sidecar.history import Growth, History
from sidecar.identity import Target, identify
from sidecar.messages import input_messages
from sidecar.replica import Stamp
from tracegrad import names
from tracegrad.otlp import attributes

START = 1_790_000_000_000_000_000
Json = dict[str, Any]


@dataclass
class Told:
    """What one row must show."""

    prompt: list[int]
    response: list[int]
    messages: list[Json]
    untrainable: str = ""
    extends: str = ""
    """The span that holds more of it."""


@dataclass
class State:
    """A conversation so far, from which an agent may go on in several ways."""

    messages: list[Json]
    prompt: list[int]
    response: list[int]


@dataclass
class World:
    """Calls of one rollout, recorded as the sidecar does.

    `drift`: how often the template rewrites what was said. `late`: how often a call waits for its place in the queue
    while others end.
    """

    random: random.Random
    drift: float = 0.3
    late: float = 0.3
    rollout_id: str = field(default_factory=lambda: secrets.token_hex(8))
    history: History = field(default_factory=History)
    told: dict[str, Told] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    waiting: list[Growth] = field(default_factory=list)
    clock: int = START

    def ids(self, n: int) -> list[int]:
        return [self.random.choice([1, 11, 111, 1111, self.random.randrange(150_000)]) for _ in range(n)]

    def message(self, role: str) -> Json:
        return {"role": role, "content": secrets.token_hex(self.random.choice([3, 40, 300]))}

    def call(self, state: State | None = None, *, n: int = 1, fails: bool = False, repeats: bool = False) -> None:
        """One call: the first of a conversation, one that goes on from a state, or the same again."""
        if state is None:
            messages, prompt = (
                [self.message("system"), self.message("user")],
                self.ids(self.random.choice([20, 80, 300])),
            )
        elif repeats:
            messages, prompt = state.messages, state.prompt
        else:
            messages = [*state.messages, self.message("assistant"), self.message("tool")]
            prompt = [*state.prompt, *state.response]
            if self.random.random() < self.drift:
                prompt = prompt[: self.random.randrange(1, len(prompt))]
            prompt = [*prompt, *self.ids(self.random.choice([0, 1, 30]))]
        responses = [self.ids(self.random.choice([1, 5, 40])) for _ in range(n)]
        self.record(messages, prompt, responses, fails=fails)
        if not fails:
            self.states += [State(messages, prompt, response) for response in responses]

    def record(self, messages: list[Json], prompt: list[int], responses: list[list[int]], *, fails: bool) -> None:
        self.clock += 1000
        identity = identify(Target("/v1/chat/completions", self.rollout_id, 0), {})
        call = Call(identity, self.clock, policy="policy", body={"model": "policy", "messages": messages})
        call.start = call.end = Stamp(0, 1)
        call.ended_ns = self.clock + 1
        if fails:
            call.fail("500", "it broke")
        else:
            choices = tuple(
                Choice(index, {"role": "assistant"}, "stop", Numbers.of(ids), Numbers.of([-0.5] * len(ids)))
                for index, ids in enumerate(responses)
            )
            sampled = sum(map(len, responses))
            call.answer = Answer("id", "policy", choices, Numbers.of(prompt), len(prompt), sampled)
        call.growth = self.history.grow(identity, call.body, call.answer, tenant="", kind="policy")
        assert call.growth is not None
        for encoded in call_spans(call):
            span = Span.FromString(encoded)
            self.spans.append(span)
            values = {pair.key: pair.value for pair in span.attributes}
            if names.TRAINABLE in values:
                choice = values[names.CHOICE_INDEX].int_value if not fails else 0
                response = [] if fails else responses[choice]
                told = Told([] if fails else prompt, response, messages, "error" if fails else "")
                told.extends = values[names.EXTENDS_SPAN_ID].string_value if names.EXTENDS_SPAN_ID in values else ""
                self.told[span.span_id.hex()] = told
        self.waiting.append(call.growth)
        if self.random.random() >= self.late:
            self.ship()

    def ship(self) -> None:
        """What waits is queued: later calls may extend it."""
        for growth in self.random.sample(self.waiting, len(self.waiting)):
            growth.shipped()
        self.waiting.clear()

    def grow(self, n_calls: int) -> None:
        """Calls of every kind at random, going on from late states more often than from early ones."""
        self.call()
        for _ in range(n_calls):
            near = max(0, len(self.states) - self.random.choice([1, 1, 1, 1, 4, 1000]))
            state = self.random.choice(self.states[near:])
            kind = self.random.random()
            if kind < 0.05:
                self.call()
            else:
                self.call(state, n=3 if kind < 0.15 else 1, fails=kind > 0.9, repeats=0.8 < kind <= 0.9)

    def whole(self, span_id: str, lost: set[str]) -> bool:
        """Whether nothing that the span is put together from is lost."""
        while span_id:
            if span_id in lost:
                return False
            span_id = self.told[span_id].extends
        return True


def send(collector: Any, spans: list[Span]) -> None:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "tracegrad.sidecar"
    resource.scope_spans.add().spans.extend(spans)
    assert collector.send(request).status == 200


def rows(collector: Any, where: str, columns: str = "*") -> dict[str, Json]:
    """By span."""
    answer = collector.sql(f"SELECT {columns} FROM llm_calls WHERE {where} FORMAT JSONEachRow")
    found = [json.loads(line) for line in answer.splitlines()]
    assert len({row["span_id"] for row in found}) == len(found), "one row per choice"
    return {row["span_id"]: row for row in found}


def check(world: World, found: dict[str, Json]) -> None:
    for span_id, row in found.items():
        told = world.told[span_id]
        assert row["prompt_token_ids"] == told.prompt
        assert row["response_token_ids"] == told.response
        assert row["input_messages"] == input_messages(told.messages)
        assert (row["trainable"], row["untrainable_reason"]) == (told.untrainable == "", told.untrainable)


@pytest.mark.parametrize("drift", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_every_row_is_whole_whatever_the_order_of_arrival(collector: Any, seed: int, drift: float) -> None:
    world = World(random.Random(seed), drift)
    world.grow(60)
    assert sum(told.extends != "" for told in world.told.values()) > len(world.told) / 4
    spans = world.random.sample(world.spans, len(world.spans))
    for start in range(0, len(spans), 25):
        send(collector, spans[start : start + 25])
    send(collector, spans[:10])  # and some again
    found = rows(collector, f"rollout_id = '{world.rollout_id}'")
    assert found.keys() == world.told.keys()
    check(world, found)
    span_id = world.random.choice(list(world.told))
    one = rows(collector, f"span_id = '{span_id}'")
    assert one.keys() == {span_id}
    check(world, one)
    (trace_id,) = {row["trace_id"] for row in one.values()}
    check(world, rows(collector, f"trace_id = '{trace_id}' AND policy = 'policy' AND trainable IN (true, false)"))


def test_hundreds_of_turns(collector: Any) -> None:
    world = World(random.Random(9), drift=0.0, late=0.0)
    world.call()
    for _ in range(400):
        world.call(world.states[-1])
    assert max(map(_depth, world.spans)) == 400
    send(collector, world.spans)
    found = rows(collector, f"rollout_id = '{world.rollout_id}'")
    assert found.keys() == world.told.keys()
    check(world, found)


def test_forks_from_forks_end_in_a_whole_call(collector: Any) -> None:
    world = World(random.Random(10), drift=0.0, late=0.0)
    world.call()
    for _ in range(100):
        world.call(world.states[-1], n=2)  # the second choice is always the one that is gone on from
    assert sum(told.extends == "" for told in world.told.values()) == 1 + 100 // MOST_FORKS
    send(collector, world.spans)
    check(world, rows(collector, f"rollout_id = '{world.rollout_id}'"))


def test_rows_of_an_older_store_read_as_before(tmp_path: Path) -> None:
    older = tmp_path / "schema"
    older.mkdir()
    for file in FILES.glob("000[1-6]_*.sql"):
        shutil.copy(file, older)
    with Engine(tmp_path / "store") as engine, engine.connection() as connection:
        assert migrate(connection, older) == 6
        connection.query(
            """INSERT INTO otel.otel_traces (Timestamp, TraceId, SpanId, SpanAttributes) VALUES (now64(9), 't', 's',
            {'tracegrad.trainable': 'true', 'tracegrad.prompt.token_ids': '[5,6]', 'gen_ai.input.messages': '[{}]'})"""
        )
        shown = "SELECT prompt_token_ids, input_messages, trainable, untrainable_reason FROM otel.llm_calls"
        before = connection.query(shown).body
        assert migrate(connection) > 6
        assert connection.query(shown).body == before == b"[5,6]\t[{}]\ttrue\t\n"


def _depth(span: Span) -> int:
    return sum(pair.value.int_value for pair in span.attributes if pair.key == names.EXTENDS_DEPTH)


@pytest.mark.parametrize("seed", range(2))
def test_what_hangs_on_a_lost_span_is_not_trainable(collector: Any, seed: int) -> None:
    world = World(random.Random(seed + 100))
    world.grow(60)
    lost = set(world.random.sample(sorted(world.told), 6))
    send(collector, [span for span in world.spans if span.span_id.hex() not in lost])
    found = rows(collector, f"rollout_id = '{world.rollout_id}'")
    assert found.keys() == world.told.keys() - lost
    whole = {span_id for span_id in found if world.whole(span_id, lost)}
    assert whole < found.keys()
    check(world, {span_id: found[span_id] for span_id in whole})
    for span_id in found.keys() - whole:
        row, told = found[span_id], world.told[span_id]
        assert row["prompt_token_ids"] == []
        assert (row["trainable"], row["untrainable_reason"]) == (False, told.untrainable or "incomplete_token_ids")
        assert row["response_token_ids"] == told.response


def test_a_prompt_of_another_length_than_the_engine_counted_is_not_trainable(collector: Any) -> None:
    world = line(4)
    change(world.spans[-1], names.PROMPT_LENGTH, by=1)
    assert shown(collector, world)[-1] == ([], False, "incomplete_token_ids")


def test_a_prompt_whose_length_nobody_told_is_not_trainable(collector: Any) -> None:
    world = line(4)
    change(world.spans[-1], names.PROMPT_LENGTH, by=-len(world.states[-1].prompt))
    assert shown(collector, world)[-1] == ([], False, "incomplete_token_ids")


def test_another_prompt_than_the_engine_saw_is_never_shown(collector: Any) -> None:
    world = line(4)
    prompts = [state.prompt for state in world.states]
    (ids,) = (pair.value for pair in world.spans[1].attributes if pair.key == names.RESPONSE_TOKEN_IDS)
    first, *more = json.loads(ids.string_value)
    ids.string_value = json.dumps([first + 1, *more])
    assert [one[0] for one in shown(collector, world)] == [*prompts[:2], [], []]


@pytest.mark.parametrize("repeated", [1, 2])
def test_below_a_place_that_two_calls_have_nothing_is_trainable(collector: Any, repeated: int) -> None:
    world = line(5)
    twin = Span.FromString(world.spans[repeated].SerializeToString())
    twin.span_id = secrets.token_bytes(8)
    found = shown(collector, world, twin)
    assert [one[1] for one in found] == [True] * repeated + [False] * (5 - repeated)
    assert all(one == ([], False, "incomplete_token_ids") for one in found if not one[1])


def test_calls_that_ended_together_keep_their_prompts(collector: Any) -> None:
    world = line(2)
    state = world.states[-1]
    world.late = 1.0
    for _ in range(3):
        world.call(state)
    world.ship()
    for together in world.states[-3:]:
        world.call(together)
        world.call(together)
    send(collector, world.spans)
    check(world, rows(collector, f"rollout_id = '{world.rollout_id}'"))


def test_a_call_that_was_lost_in_part_costs_no_other(collector: Any) -> None:
    world = line(2)
    state = world.states[-1]
    world.late = 1.0
    world.call(state, n=2)
    world.waiting.clear()
    lost = world.spans.pop()  # the call's own; its choices had been queued
    assert lost.name.startswith("chat")
    world.late = 0.0
    world.call(state, repeats=True)
    world.call(world.states[-1])
    send(collector, world.spans)
    found = rows(collector, f"rollout_id = '{world.rollout_id}'")
    assert found.keys() == world.told.keys()
    check(world, found)


@pytest.mark.parametrize("order", [1, -1])
def test_of_a_span_that_came_twice_the_proved_one_counts_as_a_whole(collector: Any, order: int) -> None:
    world = line(3)
    proved = world.spans[1]
    other = Span.FromString(proved.SerializeToString())
    kept = [pair for pair in other.attributes if pair.key not in (names.POLICY_VERSION, names.TRAINABLE)]
    del other.attributes[:]
    other.attributes.extend(kept)
    other.attributes.extend(attributes({names.TRAINABLE: False, names.UNTRAINABLE_REASON: "mixed_versions"}))
    for span in [proved, other][::order]:
        send(collector, [span])
    send(collector, world.spans[::2])
    found = rows(collector, f"rollout_id = '{world.rollout_id}'")
    assert {row["policy_version"] for row in found.values()} == {1}
    assert len(found) == 3
    check(world, found)


def line(n: int) -> World:
    """Calls that each extend the one before."""
    world = World(random.Random(5), drift=0.0, late=0.0)
    message = {"role": "user", "content": "x" * 300}
    world.record([message], world.ids(80), [world.ids(9)], fails=False)
    world.states.append(State([message], *next((one.prompt, one.response) for one in world.told.values())))
    for _ in range(n - 1):
        world.call(world.states[-1])
    assert [_depth(span) for span in world.spans] == list(range(n))
    return world


def change(span: Span, name: str, *, by: int) -> None:
    (value,) = (pair.value for pair in span.attributes if pair.key == name)
    value.int_value += by


def shown(collector: Any, world: World, *more: Span) -> list[tuple[list[int], bool, str]]:
    """Of each call: its prompt, and whether it is trainable, and why not."""
    send(collector, [*world.spans, *more])
    found = rows(collector, f"rollout_id = '{world.rollout_id}'")
    ordered = [found[span.span_id.hex()] for span in world.spans]
    return [(row["prompt_token_ids"], row["trainable"], row["untrainable_reason"]) for row in ordered]
