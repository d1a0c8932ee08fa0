"""Calls to transitions: the Markov decision process of an agent's run, as the policy saw it.

Invariants: one transition per sampled choice that the agent received; the calls of one agent in one attempt
of a rollout form one sequence, ordered by start and span id; a call is a retry of another because its client
said so or because the other one failed, never because two prompts are equal.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Attempt = tuple[str, int]
"""Rollout id and attempt: one run of an agent."""

BROKEN_OFF = frozenset({"aborted", "client_disconnected"})
"""Untrainable reasons of calls whose response the agent had in part, or not at all."""


@dataclass(frozen=True, eq=False)
class Call:
    """One sampled choice, as the sidecar recorded it: one row of the view `llm_calls`.

    `started_ns`: unix time. `policy_version`: None when no single version is known. `response_id`: shared by
    the choices of one request; empty when unknown. `retry_count`: the client's number of this try, 0 for the
    first. `sampling`: JSON text, empty when it was not recorded. `input_hash`: of the request's messages,
    0 where no request of the attempt has to be known by them.
    `tool_call_ids`: of the tools that the response asks for. `answer_faults`: what is wrong with the response itself,
    `malformed_tool_call` or `refusal`.
    """

    rollout_id: str
    attempt: int
    task_id: str
    agent: str
    trace_id: str
    span_id: str
    policy: str
    policy_version: int | None
    started_ns: int
    prompt_token_ids: NDArray[np.int64]
    response_token_ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    trainable: bool
    untrainable_reason: str
    error_type: str
    input_hash: int
    sampling: str
    response_id: str
    retry_count: int
    ended_ns: int = 0
    finish_reason: str = ""
    tool_call_ids: tuple[str, ...] = ()
    answer_faults: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether no response came: the agent could take no action from this call."""
        return self.untrainable_reason == "error"

    @property
    def broken_off(self) -> bool:
        """Whether the response ended early: the agent may have used what it had, or asked again."""
        return self.untrainable_reason in BROKEN_OFF


@dataclass(frozen=True, eq=False)
class Transition:
    """State (the call's prompt), action (its response), reward and next state, all in token ids.

    `index`: place in the agent's sequence, from 0. `reward`: what was given to this call itself.
    `next_call`: the agent's next request, whose prompt is the next state; None when terminal.
    """

    call: Call
    index: int
    reward: float
    next_call: Call | None

    @property
    def terminal(self) -> bool:
        """Whether the agent made no further call."""
        return self.next_call is None


def transitions_of(calls: Iterable[Call], rewards: Mapping[str, float]) -> list[Transition]:
    """The transitions of one attempt of one rollout, ordered by start and span id.

    `calls`: all of the attempt's calls, in any order, of every agent and policy; those without a policy are
    left out. `rewards`: span id to the sum of what was given to that span.
    """
    by_agent: dict[str, list[Call]] = defaultdict(list)
    for call in sorted(calls, key=order_of):
        if call.policy:
            by_agent[call.agent].append(call)
    transitions = [
        transition for sequence in by_agent.values() for transition in _of_one_agent(_received(sequence), rewards)
    ]
    return sorted(transitions, key=lambda transition: order_of(transition.call))


def order_of(call: Call) -> tuple[int, str]:
    """Calls of an attempt are in order of start and span id."""
    return call.started_ns, call.span_id


def _of_one_agent(calls: Sequence[Call], rewards: Mapping[str, float]) -> list[Transition]:
    following: list[Call | None] = [None] * len(calls)
    for index in range(len(calls) - 2, -1, -1):
        after = calls[index + 1]
        following[index] = following[index + 1] if _one_request(calls[index], after) else after
    return [
        Transition(call, index, rewards.get(call.span_id, 0.0), following[index]) for index, call in enumerate(calls)
    ]


def _one_request(first: Call, second: Call) -> bool:
    """Whether two calls are choices of one request (n > 1): they share their state and their next state."""
    return first.response_id != "" and first.response_id == second.response_id


def _received(calls: Sequence[Call]) -> list[Call]:
    """Without the calls whose response the agent never had: failed ones, and those that were tried again.

    `calls`: of one agent, in order. Each retry explains one earlier call.
    """
    unused = {call.span_id for call in calls if call.failed}
    explained: set[str] = set()
    for index, call in enumerate(calls):
        if call.retry_count > 0:
            explained.update(_retried_by(call, calls[:index], explained))
        if call.broken_off and any(_same_request(call, later) for later in calls[index + 1 :]):
            unused.add(call.span_id)
    return [call for call in calls if call.span_id not in unused | explained]


def _retried_by(retry: Call, earlier: Sequence[Call], explained: set[str]) -> set[str]:
    """Span ids of the request that `retry` repeats: an equal one whose count is one lower.

    Of several it is one that ended badly, then the last: a client asks again at once.
    """
    candidates = [
        call
        for call in earlier
        if call.retry_count == retry.retry_count - 1
        and call.span_id not in explained
        and _same_request(call, retry)
        and not _one_request(call, retry)
    ]
    original = max(candidates, key=lambda call: (call.failed, call.broken_off, order_of(call)), default=None)
    if original is None:
        return set()
    return {call.span_id for call in candidates if call is original or _one_request(call, original)}


def _same_request(first: Call, second: Call) -> bool:
    """Equal requests as far as recorded: a failed call may lack its token ids."""
    if len(first.prompt_token_ids) and len(second.prompt_token_ids):
        return np.array_equal(first.prompt_token_ids, second.prompt_token_ids)
    return first.input_hash == second.input_hash
