"""What proves a prompt that `llm_calls` puts together, and what becomes of one that is not proved."""

import json
import secrets
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from recorded_calls import World, check, line, rows, send

from tracegrad import names
from tracegrad.otlp import attributes


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


def change(span: Span, name: str, *, by: int) -> None:
    (value,) = (pair.value for pair in span.attributes if pair.key == name)
    value.int_value += by


def shown(collector: Any, world: World, *more: Span) -> list[tuple[list[int], bool, str]]:
    """Of each call: its prompt, and whether it is trainable, and why not."""
    send(collector, [*world.spans, *more])
    found = rows(collector, f"rollout_id = '{world.rollout_id}'")
    ordered = [found[span.span_id.hex()] for span in world.spans]
    return [(row["prompt_token_ids"], row["trainable"], row["untrainable_reason"]) for row in ordered]
