"""Calls of one rollout at random, recorded as the sidecar does, with what `llm_calls` must show of each."""

import json
import random
import secrets
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sidecar.call import Call, bare_spans, verdicts
from sidecar.chat_answer import Answer, Choice, Numbers
from sidecar.history import Growth, History
from sidecar.identity import Target, identify
from sidecar.messages import input_messages
from sidecar.replica import Stamp
from tracegrad import names

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
        for bare, verdict in zip(bare_spans(call), verdicts(call, call.why_untrainable()), strict=True):
            span = Span.FromString(bare + verdict)
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


def depth(span: Span) -> int:
    """How many calls there are above."""
    return sum(pair.value.int_value for pair in span.attributes if pair.key == names.EXTENDS_DEPTH)


def line(n: int) -> World:
    """Calls that each extend the one before."""
    world = World(random.Random(5), drift=0.0, late=0.0)
    message = {"role": "user", "content": "x" * 300}
    world.record([message], world.ids(80), [world.ids(9)], fails=False)
    world.states.append(State([message], *next((one.prompt, one.response) for one in world.told.values())))
    for _ in range(n - 1):
        world.call(world.states[-1])
    assert [depth(span) for span in world.spans] == list(range(n))
    return world
