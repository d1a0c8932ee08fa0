"""Conversations for SFT: what each call was asked and answered, also of calls that have no token ids.

One line is one call whose answer its agent received: the messages that it was asked with, then the answer. To learn
from a line is to learn its last message.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from trainer.chat_messages import chat_messages, chat_tools
from trainer.listing import Wanted, iso_time
from trainer.rollout import Rollout
from trainer.store import Store
from trainer.transitions import Attempt

ROLLOUTS_AT_ONCE = 100


@dataclass
class Skipped:
    """Calls that make no conversation, because nothing was recorded of what was asked or what was answered."""

    calls: int = 0


def list_conversations(store: Store, wanted: Wanted, skipped: Skipped) -> Iterator[dict[str, Any]]:
    """One dictionary per call, by rollout id, start and span id: `messages`, `tools`, and where they are from."""
    chosen = store.rollouts(wanted.since, _given(wanted.rollout_id), _given(wanted.task_id))
    chosen.sort(key=lambda rollout: rollout.key)
    for start in range(0, len(chosen), ROLLOUTS_AT_ONCE):
        part = chosen[start : start + ROLLOUTS_AT_ONCE]
        rewards = _rewards(store, part, wanted)
        tools = _Tools(store, [rollout.rollout_id for rollout in part])
        for row in store.call_messages([rollout.rollout_id for rollout in part]):
            if (row["rollout_id"], row["attempt"]) not in rewards or not _matches(row, wanted):
                continue
            asked, answered = _messages(row["input_messages"]), _messages(row["output_messages"])
            if not asked or not answered:
                skipped.calls += 1
                continue
            yield _line(row, asked + answered, tools.of(row), rewards[row["rollout_id"], row["attempt"]])


def _given(value: str | None) -> list[str]:
    return [] if value is None else [value]


def _rewards(store: Store, rollouts: Sequence[Rollout], wanted: Wanted) -> dict[Attempt, float | None]:
    reward_set = wanted.choices.reward_set
    if reward_set.weights is None:
        return {rollout.key: rollout.reward for rollout in rollouts}
    given = store.given([rollout.rollout_id for rollout in rollouts])
    by_span = {rollout.key: reward_set.by_span(given.get(rollout.key, ())) for rollout in rollouts}
    return {key: sum(rewards.values()) if rewards else None for key, rewards in by_span.items()}


def _matches(row: Mapping[str, Any], wanted: Wanted) -> bool:
    return wanted.agent in (None, row["agent"]) and wanted.policy in (None, row["policy"])


def _messages(text: str) -> list[dict[str, Any]]:
    told = orjson.loads(text) if text else []
    return chat_messages([one for one in told if isinstance(one, dict)]) if isinstance(told, list) else []


def _line(
    row: Mapping[str, Any], messages: list[dict[str, Any]], tools: list[dict[str, Any]], reward: float | None
) -> dict[str, Any]:
    return {
        "messages": messages,
        **({"tools": tools} if tools else {}),
        "rollout_id": row["rollout_id"],
        "attempt": row["attempt"],
        "task_id": row["task_id"],
        "agent": row["agent"],
        "trace_id": row["trace_id"],
        "span_id": row["span_id"],
        "model": row["model"],
        "policy": row["policy"],
        "policy_version": row["policy_version"],
        "started_at": iso_time(row["started_ns"]),
        "reward": reward,
    }


class _Tools:
    """What tools calls were offered. A call with the same as the one that it extends only says so; several choices of a
    call have a span each, and the tools are on the call's."""

    def __init__(self, store: Store, rollout_ids: Sequence[str]) -> None:
        self._rows = {
            (row["rollout_id"], row["attempt"], row["span_id"]): row for row in store.tool_definitions(rollout_ids)
        }
        self._parsed: dict[str, list[dict[str, Any]]] = {}

    def of(self, call: Mapping[str, Any]) -> list[dict[str, Any]]:
        """As a chat request has them; none where none were offered, or the span that tells is missing."""
        attempt = call["rollout_id"], call["attempt"]
        span_id, seen = call["span_id"], set[str]()
        while (row := self._rows.get((*attempt, span_id))) is not None and span_id not in seen:
            seen.add(span_id)
            if row["definitions"]:
                return self._tools(row["definitions"])
            span_id = row["extends_span_id"] if row["as_extended"] else row["parent_span_id"]
        return []

    def _tools(self, text: str) -> list[dict[str, Any]]:
        if text not in self._parsed:
            told = orjson.loads(text)
            self._parsed[text] = chat_tools(told) if isinstance(told, list) else []
        return self._parsed[text]
