"""Rollouts with their credits, before they are measured against each other: what a failure policy leaves of each.

Invariant: what is left out here counts nowhere; all else counts in what the others of its group are measured against,
whether or not it is trained on.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from trainer.advantage import Measured
from trainer.batch_choices import Choices
from trainer.choices import OnFailure
from trainer.credit import Execution, scheme_named
from trainer.failures import errors_of_call, errors_of_rollout, overflowed
from trainer.reasons import FAILED
from trainer.rollout import Rollout
from trainer.spans import Span, SpanTree
from trainer.tool_requests import tool_requests
from trainer.transitions import Transition, transitions_of

NO_REWARD = "no_reward"


@dataclass(frozen=True, eq=False)
class Member:
    """One rollout, or one agent in it, as its group measures it: `transitions` with their `credits`, and the return of
    the whole rollout. `masked`: span id to why a transition is measured and not trained on.
    """

    rollout: Rollout
    group: str
    execution: Execution
    transitions: Sequence[Transition]
    credits: NDArray[np.float64]
    masked: Mapping[str, str]

    def of_agents(self) -> "list[Member]":
        """One member for each agent."""
        places: dict[str, list[int]] = defaultdict(list)
        for place, transition in enumerate(self.transitions):
            places[transition.call.agent].append(place)
        return [
            replace(
                self,
                group=_group_of_agent(self.group, agent),
                transitions=[self.transitions[place] for place in of_agent],
                credits=self.credits[of_agent],
            )
            for agent, of_agent in places.items()
        ]

    @property
    def measured(self) -> Measured:
        """What an estimator sees of it."""
        calls = [transition.call for transition in self.transitions]
        states = [blake2b(call.prompt_token_ids.tobytes(), digest_size=16).digest() for call in calls]
        return Measured(
            group=self.group,
            credits=self.credits,
            ret=self.execution.ret,
            states=tuple(states) or (b"",),
            n_tokens=np.array([len(call.response_token_ids) for call in calls] or [0], np.int64),
            values=None,
        )


def execution_of(rollout: Rollout, policy: str, choices: Choices) -> Execution | None:
    """One rollout as its credits are assigned, penalties included; None where it is out of everything."""
    members = Members(policy, choices)
    members.add(choices.reward_set.weighed(rollout))
    return members.all[0].execution if members.all else None


class Members:
    """Rollouts with their credits, before they are measured against each other."""

    def __init__(self, policy: str, choices: Choices) -> None:
        self._policy = policy
        self._choices = choices
        self._scheme = scheme_named(choices.scheme)
        self.all: list[Member] = []
        self.left_out: list[tuple[Transition, str]] = []
        self.failures: Counter[tuple[str, str]] = Counter()

    def add(self, rollout: Rollout) -> None:
        """Assign the rollout's credits; where it is out of everything, only say so of each transition."""
        rewards = dict(rollout.rewards)
        error, action = self._failure_of(rollout)
        penalized = action == "penalize"
        selected = [
            item
            for item in transitions_of(rollout.calls, rewards)
            if item.call.policy == self._policy and self._choices.takes(item.call.agent)
        ]
        if action == "drop" or not (rewards or penalized):
            self._leave_out(selected, f"{FAILED}{error}" if action == "drop" else NO_REWARD)
            return
        masked = {item.call.span_id: f"{FAILED}{error}" for item in selected if action == "mask"}
        tree = SpanTree(rollout.spans, rollout.root_span_id)
        requests = tool_requests(tree, rollout.calls, [item.call for item in selected])
        selected = self._without_failed_calls(rollout, selected, requests, rewards, masked)
        if not (rewards or penalized):
            self._leave_out(selected, NO_REWARD)
            return
        if penalized:
            # `step` hears of no reward but the calls' own, and the last call is where it ended.
            on_call = self._choices.scheme == "step" and selected
            _add(rewards, selected[-1].call.span_id if on_call else rollout.root_span_id, self._choices.penalty)
        execution = Execution(selected, rewards, tree, requests, self._choices.credit_gamma)
        credits = self._scheme(execution) if selected else np.array([execution.ret])
        self.all.append(Member(rollout, rollout.group, execution, selected, credits, masked))

    def by_agent(self) -> list[Member]:
        """The members, one for each agent. A rollout without transitions is one of every agent's group of its task."""
        agents: dict[str, set[str]] = defaultdict(set)
        for member in self.all:
            agents[member.group].update(transition.call.agent for transition in member.transitions)
        found: list[Member] = []
        for member in self.all:
            if member.transitions:
                found += member.of_agents()
            else:
                found += [
                    replace(member, group=_group_of_agent(member.group, agent))
                    for agent in sorted(agents[member.group])
                ]
        return found

    def _failure_of(self, rollout: Rollout) -> tuple[str | None, OnFailure]:
        if self._choices.failures is None:
            return None, "keep"
        error = errors_of_rollout(rollout.status, rollout.error_type, rollout.calls, rollout.spans)
        if error is None:
            return None, "keep"
        action = self._choices.failures.of(error)
        self.failures[error, action] += 1
        return error, action

    def _without_failed_calls(
        self,
        rollout: Rollout,
        selected: Sequence[Transition],
        requests: Mapping[str, str],
        rewards: dict[str, float],
        masked: dict[str, str],
    ) -> list[Transition]:
        """The transitions that stay. What the others did to `rewards` and `masked` is noted there."""
        policy = self._choices.failures
        if policy is None:
            return list(selected)
        tools: dict[str, list[Span]] = defaultdict(list)
        for span in rollout.spans:
            if (asking := requests.get(span.span_id)) is not None:
                tools[asking].append(span)
        full = overflowed(rollout.calls, rollout.spans)
        staying: list[Transition] = []
        for item in selected:
            span_id = item.call.span_id
            errors = errors_of_call(item.call, tools.get(span_id, ()), context_full=span_id in full)
            self.failures.update((error, policy.of(error)) for error in errors)
            error, action = policy.strictest(errors)
            if action == "drop":
                self._leave_out([item], f"{FAILED}{error}")
                for gone in (span_id, *(tool.span_id for tool in tools.get(span_id, ()))):
                    rewards.pop(gone, None)
                continue
            if action == "mask":
                masked.setdefault(span_id, f"{FAILED}{error}")
            elif action == "penalize":
                _add(rewards, span_id, self._choices.penalty)
            staying.append(replace(item, reward=rewards.get(span_id, 0.0)))
        return staying

    def _leave_out(self, transitions: Iterable[Transition], reason: str) -> None:
        self.left_out += [(transition, reason) for transition in transitions]


def _group_of_agent(group: str, agent: str) -> str:
    return f"{group} agent {agent}"


def _add(rewards: dict[str, float], span_id: str, reward: float) -> None:
    rewards[span_id] = rewards.get(span_id, 0.0) + reward
