"""Calls become transitions: order, next state, retries, several choices."""

import random
from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.transitions import Call, transitions_of

MakeCall = Callable[..., Call]


def spans(calls: list[Call]) -> list[str]:
    return [transition.call.span_id for transition in transitions_of(calls, {})]


def test_a_sequence_ends_in_a_terminal_transition(make_call: MakeCall) -> None:
    first, second = transitions_of([make_call("b", 2), make_call("a", 1)], {"a": 0.5})
    assert (first.call.span_id, second.call.span_id) == ("a", "b")
    assert first.next_call is second.call
    assert not first.terminal
    assert second.terminal
    assert (first.reward, second.reward) == (0.5, 0.0)
    assert (first.index, second.index) == (0, 1)


def test_each_agent_has_its_own_sequence(make_call: MakeCall) -> None:
    calls = [
        make_call("a", 1, agent="writer"),
        make_call("b", 2, agent="critic"),
        make_call("c", 3, agent="writer"),
        make_call("d", 4, agent="critic"),
    ]
    found = {item.call.span_id: item for item in transitions_of(calls, {})}
    following = {name: item.next_call and item.next_call.span_id for name, item in found.items()}
    assert following == {"a": "c", "b": "d", "c": None, "d": None}
    assert {name: item.index for name, item in found.items()} == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_a_model_without_policy_makes_no_transition(make_call: MakeCall) -> None:
    assert spans([make_call("a", 1), make_call("b", 2, policy="", policy_version=None), make_call("c", 3)]) == [
        "a",
        "c",
    ]


def test_equal_prompts_are_two_transitions(make_call: MakeCall) -> None:
    same = np.array([1, 2, 3], np.int64)
    assert spans([make_call("a", 1, prompt_token_ids=same), make_call("b", 2, prompt_token_ids=same)]) == ["a", "b"]


def test_a_failed_call_is_not_a_transition_and_not_a_next_state(make_call: MakeCall) -> None:
    failed = make_call("b", 2, trainable=False, untrainable_reason="error", error_type="502")
    first, second = transitions_of([make_call("a", 1), failed, make_call("c", 3)], {})
    assert first.next_call is second.call
    assert (first.call.span_id, second.call.span_id) == ("a", "c")


def test_a_retry_supersedes_the_answer_that_was_lost_on_the_way(make_call: MakeCall) -> None:
    same = np.array([1, 2, 3], np.int64)
    lost = make_call("a", 1, prompt_token_ids=same)
    retry = make_call("b", 2, prompt_token_ids=same, retry_count=1)
    again = make_call("c", 3, prompt_token_ids=same, retry_count=2)
    assert spans([lost, retry, again]) == ["c"]


def test_a_retry_explains_one_call_only(make_call: MakeCall) -> None:
    same = np.array([1, 2, 3], np.int64)
    twins = [make_call("a", 1, prompt_token_ids=same), make_call("b", 2, prompt_token_ids=same)]
    failed = make_call(
        "c",
        3,
        prompt_token_ids=np.array([], np.int64),
        input_hash=4,
        trainable=False,
        untrainable_reason="error",
    )
    retry = make_call("d", 4, prompt_token_ids=same, retry_count=1)
    assert spans([*twins, failed, retry]) == ["a", "b", "d"]
    other_retry = make_call("e", 5, prompt_token_ids=same, retry_count=1)
    assert spans([*twins, failed, retry, other_retry]) == ["a", "d", "e"]


def test_a_retry_of_another_request_supersedes_nothing(make_call: MakeCall) -> None:
    assert spans([make_call("a", 1), make_call("b", 2, retry_count=1)]) == ["a", "b"]


def test_a_broken_off_answer_is_kept_unless_it_was_asked_again(make_call: MakeCall) -> None:
    same = np.array([1, 2, 3], np.int64)
    broken = make_call("a", 1, prompt_token_ids=same, trainable=False, untrainable_reason="client_disconnected")
    assert spans([broken, make_call("b", 2)]) == ["a", "b"]
    assert spans([broken, make_call("b", 2, prompt_token_ids=same)]) == ["b"]


def test_choices_of_one_request_share_the_next_state(make_call: MakeCall) -> None:
    calls = [
        make_call("a", 1, response_id="one"),
        make_call("b", 1, response_id="one"),
        make_call("c", 2, response_id="two"),
        make_call("d", 2, response_id="two"),
        make_call("e", 3, response_id="three"),
    ]
    following = {item.call.span_id: item.next_call and item.next_call.span_id for item in transitions_of(calls, {})}
    assert following == {"a": "c", "b": "c", "c": "e", "d": "e", "e": None}


def test_a_lost_request_takes_all_its_choices_with_it(make_call: MakeCall) -> None:
    same = np.array([1, 2, 3], np.int64)
    lost = [make_call(name, 1, response_id="one", prompt_token_ids=same) for name in "ab"]
    retry = [make_call(name, 2, response_id="two", prompt_token_ids=same, retry_count=1) for name in "cd"]
    assert spans([*lost, *retry]) == ["c", "d"]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["x", "y"])), max_size=12),
    st.randoms(use_true_random=False),
)
def test_every_received_call_is_in_exactly_one_sequence(
    make_call: MakeCall, shapes: list[tuple[int, str]], shuffler: random.Random
) -> None:
    calls = [make_call(f"{index:02}", at, agent=agent) for index, (at, agent) in enumerate(shapes)]
    shuffled = list(calls)
    shuffler.shuffle(shuffled)
    found = transitions_of(shuffled, {})
    assert [item.call.span_id for item in found] == [
        item.span_id for item in sorted(calls, key=lambda item: (item.started_ns, item.span_id))
    ]
    for agent in ("x", "y"):
        sequence = [item for item in found if item.call.agent == agent]
        assert [item.index for item in sequence] == list(range(len(sequence)))
        assert [item.next_call for item in sequence[:-1]] == [item.call for item in sequence[1:]]
        assert [item.terminal for item in sequence] == [False] * (len(sequence) - 1) + [True] * bool(sequence)
