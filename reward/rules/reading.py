"""The facts of attempts, out of the store: some hundred attempts at a time, so that memory does not grow with them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from reward.rules.arguments import ArgumentSchema, schemas
from reward.rules.assembly import Assembly, CallRow, SpanRow
from reward.rules.facts import Attempt
from reward.score import NOBODYS_FAULT
from reward.store import Store

SOURCE = "tracegrad.reward.rules"
CHARACTERS_A_QUERY = 4000
"""Of ids: they travel in the request's address, whose length is bounded."""

Key = tuple[str, int]
"""A rollout's id, and the attempt."""


@dataclass(frozen=True)
class Outline:
    """An attempt without its spans. `state`: judged, nobodys_fault or unfinished."""

    rollout_id: str
    attempt: int
    task_id: str
    trace_id: str
    root_span_id: str
    status: str
    error_type: str
    started_ns: int
    ended_ns: int
    state: str

    @property
    def key(self) -> Key:
        """Which attempt it is."""
        return self.rollout_id, self.attempt


def outlines(store: Store, rollout_id: str | None, since_ns: int, quiet_before_ns: int) -> list[Outline]:
    """Every attempt, or those of one rollout, that began at `since_ns` or later; oldest first."""
    parameters = {
        "source": SOURCE,
        "rollout": rollout_id or "",
        "since_ns": since_ns,
        "quiet_before_ns": quiet_before_ns,
        "nobodys_fault": list(NOBODYS_FAULT),
    }
    return [Outline(*row) for row in store.ask("rules_attempts", parameters)]


def chunks(found: Sequence[Outline]) -> Iterator[list[Outline]]:
    """Consecutive attempts whose rollouts fit into one query."""
    chunk: list[Outline] = []
    length = 0
    for one in found:
        added = len(quote(one.rollout_id)) + 9  # quotes and a comma, escaped
        if chunk and length + added > CHARACTERS_A_QUERY:
            yield chunk
            chunk, length = [], 0
        chunk.append(one)
        length += added
    if chunk:
        yield chunk


def attempts(store: Store, chunk: Sequence[Outline]) -> list[Attempt]:
    """The same attempts with all that is known of them."""
    parameters = {"rollout_ids": sorted({one.rollout_id for one in chunk})}
    spans: dict[Key, list[SpanRow]] = defaultdict(list)
    for rollout_id, attempt, *row in store.ask("rules_spans", parameters):
        spans[rollout_id, attempt].append(SpanRow(*row))
    calls: dict[Key, list[CallRow]] = defaultdict(list)
    for rollout_id, attempt, *row in store.ask("rules_calls", parameters):
        calls[rollout_id, attempt].append(CallRow(*row))
    agents: dict[Key, dict[str, str]] = defaultdict(dict)
    for rollout_id, attempt, span_id, agent in store.ask("rules_agents", parameters):
        agents[rollout_id, attempt][span_id] = agent
    arguments = {(trace_id, span_id): text for trace_id, span_id, text in store.ask("rules_tools", parameters)}
    definitions = _definitions(store, parameters, calls.values())
    return [
        Assembly(
            spans=spans.get(one.key, []),
            calls=calls.get(one.key, []),
            agents=agents.get(one.key, {}),
            arguments=arguments,
            definitions=definitions,
        ).attempt(one)
        for one in chunk
    ]


def _definitions(
    store: Store, parameters: Mapping[str, Any], calls: Iterable[Sequence[CallRow]]
) -> Mapping[int, Mapping[str, ArgumentSchema]]:
    """By the number of each list of tool definitions, the schemas in it; none where no response asked for a tool."""
    if not any(call.output_messages for rows in calls for call in rows):
        return {}
    return {number: _schemas(text) for number, text in store.ask("rules_definitions", parameters)}


@lru_cache(maxsize=64)
def _schemas(definitions: str) -> Mapping[str, ArgumentSchema]:
    return schemas(definitions)
