"""`credits` and `transitions`: what they say of any tree is what the trainer says of it."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from random_trees import RandomTrees
from recorded_rollout import Recorder, read

from tracegrad import names
from tracegrad.otlp import SpanContext
from trainer.credit import SCHEMES, Execution
from trainer.listing import Wanted, list_transitions
from trainer.reward_sets import RewardSet
from trainer.since import Since
from trainer.spans import SpanTree
from trainer.store import Store
from trainer.tool_requests import tool_requests
from trainer.transitions import transitions_of

EVERYTHING = Since(0, untrained_only=False)
STEP = "step_id job policy from_version to_version algorithm config metrics started_at ended_at"
SAMPLE = "step_id span_id trace_id rollout_id attempt agent reward advantage n_tokens used drop_reason"
Credits = dict[tuple[str, int, str, str], dict[str, float]]
"""Rollout id, attempt, policy and span id to the credit by each scheme."""


@pytest.fixture(scope="module")
def own(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A collector whose store has nothing but many random trees, since starting and asking cost more than they do."""
    with start(tmp_path_factory.mktemp("credits") / "store") as collector:
        trees = RandomTrees(collector, seed=5)
        for _ in range(200):
            trees.task(trees.random.choice([1, 2, 4]))
        trees.send()
        yield collector


def of_trainer(collector: Any, gamma: float) -> Credits:
    store = Store(collector.clickhouse)
    found: Credits = {}
    for rollout in map(RewardSet().weighed, store.filled(store.rollouts(EVERYTHING))):
        transitions = transitions_of(rollout.calls, rollout.rewards)
        tree = SpanTree(rollout.spans, rollout.root_span_id)
        for policy in {transition.call.policy for transition in transitions}:
            selected = [transition for transition in transitions if transition.call.policy == policy]
            requests = tool_requests(tree, rollout.calls, [transition.call for transition in selected])
            execution = Execution(selected, rollout.rewards, tree, requests, gamma)
            by_scheme = {name: scheme(execution).tolist() for name, scheme in SCHEMES.items()}
            for place, transition in enumerate(selected):
                key = *rollout.key, policy, transition.call.span_id
                found[key] = {name: credits[place] for name, credits in by_scheme.items()}
    store.close()
    return found


def of_view(collector: Any, gamma: float, condition: str = "true") -> Credits:
    rows = read(collector, f"SELECT * FROM credits(gamma = {gamma}) WHERE {condition}")
    found = {
        (row["rollout_id"], row["attempt"], row["policy"], row["span_id"]): {name: row[name] for name in SCHEMES}
        for row in rows
    }
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
def test_random_trees_have_the_trainers_credits(own: Any, gamma: float) -> None:
    found, expected = of_view(own, gamma), of_trainer(own, gamma)
    assert found.keys() == expected.keys()
    assert len(found) > 400
    for key, credits in expected.items():
        assert found[key] == pytest.approx(credits, rel=1e-12, abs=1e-12), key
    differing = [len({round(credit, 6) for credit in credits.values()}) for credits in expected.values()]
    assert sum(number > 2 for number in differing) > 100, Counter(differing)


def consume(collector: Any, seed: int) -> None:
    """Steps take some attempts as wholes, as training does, some of them twice."""
    chance, client = random.Random(seed), collector.client()
    calls = read(collector, "SELECT rollout_id, attempt, policy, span_id FROM received_calls ORDER BY ALL")
    attempts = sorted({(call["policy"], call["rollout_id"], call["attempt"]) for call in calls})
    for number in range(6):
        policy = chance.choice(attempts)[0]
        taken = {attempt for attempt in attempts if attempt[0] == policy and chance.random() < 0.2}
        step_id = f"{chance.random()}"
        started = datetime(2030, 1, 1 + number, tzinfo=UTC)
        step = [step_id, "job", policy, number, number + 1, "grpo", "{}", "{}", started, started]
        client.insert("train_steps", [step], column_names=STEP.split())
        samples = [
            [step_id, call["span_id"], "t", call["rollout_id"], call["attempt"], "", 1.0, 0.5, 2, not reason, reason]
            for call in calls
            if (call["policy"], call["rollout_id"], call["attempt"]) in taken
            for reason in [chance.choice(["", "", "stale"])]
        ]
        client.insert("train_samples", samples, column_names=SAMPLE.split())
    client.close()


def test_random_trees_have_the_trainers_verdicts(own: Any) -> None:
    consume(own, seed=6)
    store = Store(own.clickhouse)
    columns = ("rollout_id", "attempt", "policy", "span_id", "reward", "used", "drop_reason")
    expected = {}
    for line in list_transitions(store, Wanted(EVERYTHING, advantages=False)):
        expected[tuple(line[name] for name in columns[:4])] = line
    store.close()
    rows = read(own, f"SELECT {', '.join(columns)}, credit FROM transitions")
    assert len(rows) == len(expected)
    for row in rows:
        line = expected[tuple(row[name] for name in columns[:4])]
        assert {name: row[name] for name in columns} == {name: line[name] for name in columns}
        assert row["credit"] == pytest.approx(line["credit"], rel=1e-12, abs=1e-12)
    reasons = Counter(row["drop_reason"] for row in rows)
    met = {None, "eval", "no_reward", "running", "singleton_group", "no_signal", "aborted", "no_logprobs", "stale"}
    assert met <= reasons.keys(), reasons
    # Asked for alone, it is measured with its task all the same.
    measured = next(row["rollout_id"] for row in rows if row["drop_reason"] == "no_signal")
    asked = f"SELECT {', '.join(columns)}, credit FROM transitions WHERE rollout_id = '{measured}' ORDER BY ALL"
    alone = sorted((row for row in rows if row["rollout_id"] == measured), key=lambda row: [*row.values()][:4])
    assert read(own, asked) == alone


def in_order(recorder: Recorder, *spans: Any) -> None:
    """One begins after the other, a millisecond apart."""
    for place, span in enumerate(spans):
        span.start_time_unix_nano = recorder.start + place * 1_000_000
        span.end_time_unix_nano = span.start_time_unix_nano + 1


def of_calls(recorder: Recorder, gamma: float, calls: list[Any], scheme: str) -> list[float]:
    found = of_view(recorder.collector, gamma, f"rollout_id = '{recorder.rollout_id}'")
    return [found[recorder.rollout_id, 0, "policy", call.span_id.hex()][scheme] for call in calls]


def test_worked_example_3_discounted(own: Any) -> None:
    recorder = Recorder(own)
    calls = [recorder.call(RETRY_COUNT=0, RESPONSE_ID=None) for _ in range(3)]
    in_order(recorder, *calls)
    recorder.send(*calls, recorder.root_span(), recorder.reward(1.0, recorder.start))
    assert of_calls(recorder, 0.9, calls, "discounted") == pytest.approx([0.81, 0.9, 1.0], rel=1e-15)


def test_worked_example_4_a_tools_reward_goes_to_the_call_that_asked(own: Any) -> None:
    recorder = Recorder(own)
    agent = recorder.agent("v", recorder.root.span_id)
    parts = [{"type": "tool_call", "id": "id", "name": "x", "arguments": {}}]
    asks = json.dumps([{"role": "assistant", "parts": parts}])
    calls = [recorder.call(agent.span_id, RETRY_COUNT=0, RESPONSE_ID=None, OUTPUT_MESSAGES=said) for said in (asks, "")]
    told = {names.OPERATION_NAME: "execute_tool", "gen_ai.tool.call.id": "id"}
    tool = recorder.plain("execute_tool x", agent.span_id, told)
    in_order(recorder, calls[0], tool, calls[1])
    recorder.send(
        *(agent, tool, *calls, recorder.root_span()),
        recorder.reward(1.0, recorder.start),
        recorder.reward(0.1, recorder.start, context=SpanContext(tool.trace_id, tool.span_id)),
    )
    assert of_calls(recorder, 1, calls, "identical") == pytest.approx([1.1, 1.1], rel=1e-15)
    assert of_calls(recorder, 1, calls, "hierarchical") == pytest.approx([1.1, 1.0], rel=1e-15)
    assert of_calls(recorder, 1, calls, "step") == pytest.approx([0.1, 0.0], rel=1e-15)


def test_in_a_shared_trace_only_an_own_agent_tells_whose_tool_it_is(own: Any) -> None:
    first, second = Recorder(own), Recorder(own)
    second.root = SpanContext.new(first.root.trace_id)
    lost = SpanContext.new().span_id
    agent = first.agent("v", lost)
    calls = [first.call(above, RETRY_COUNT=0, RESPONSE_ID=None) for above in (agent.span_id, lost)]
    tools = [
        first.plain("execute_tool x", above, {names.OPERATION_NAME: "execute_tool"}) for above in (agent.span_id, lost)
    ]
    in_order(first, *calls, *tools)
    rewards = [
        first.reward(score, first.start, context=SpanContext(tool.trace_id, tool.span_id))
        for score, tool in zip((1.0, 2.0), tools, strict=True)
    ]
    first.send(agent, *calls, *tools, first.root_span(), *rewards, second.call(lost), second.root_span())
    # The second tool may as well be what the other attempt's call asked for.
    assert of_calls(first, 1, calls, "step") == [1.0, 0.0]
