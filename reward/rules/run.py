"""Evaluates rules over all attempts that are over, and returns when the store shows what was given.

Facts are read for some hundred attempts at a time; rewards are kept, and leave together, so that a trainer that watches
never sees half a group. Only beyond `HELD` of them do they leave in several such portions, oldest rollouts first.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from reward.rules.given import Given, changes, events, newest
from reward.rules.reading import SOURCE, Key, Outline, attempts, chunks, outlines
from reward.rules.rule import PREFIX, Rule
from reward.sending import STORE_TIMEOUT_S, send
from reward.store import Store
from tracegrad import clickhouse
from tracegrad.delivered import wait_until_delivered
from tracegrad.errors import UnreachableError
from tracegrad.settings import Settings

HELD = 50_000
QUIET_S = 10.0
"""How long nothing must have been heard of a rollout without a root span, until it is over."""


@dataclass
class Tally:
    """What came of one rule: on how many spans it holds, what that adds up to, and what had to be written."""

    times: int = 0
    total: float = 0.0
    written: int = 0
    withdrawn: int = 0


@dataclass
class Evaluated:
    """What one call did. `rules`: by reward name; those that are withdrawn, too."""

    rules: dict[str, Tally]
    judged: int = 0
    nobodys_fault: int = 0
    unfinished: int = 0
    dry_run: bool = False

    @property
    def written(self) -> int:
        """How many evaluation events were (or, in a dry run, would be) written."""
        return sum(tally.written + tally.withdrawn for tally in self.rules.values())

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "dry_run": self.dry_run,
            "judged": self.judged,
            "written": self.written,
            "rules": {
                name: {
                    "times": tally.times,
                    "sum": tally.total,
                    "written": tally.written,
                    "withdrawn": tally.withdrawn,
                }
                for name, tally in self.rules.items()
            },
            "skipped": {"not_the_policys_fault": self.nobodys_fault, "unfinished": self.unfinished},
        }


@dataclass
class _Outbox:
    """Events on their way to the store."""

    settings: Settings
    store: Store
    events: list[LogRecord] = field(default_factory=list)

    async def add(self, new: Sequence[LogRecord]) -> None:
        self.events += new
        if len(self.events) >= HELD:
            await self.empty()

    async def empty(self) -> None:
        """Send them, and return when the store shows them. Raises UnreachableError."""
        if not self.events:
            return
        since_ns = min(event.time_unix_nano for event in self.events)
        before, count = await self._stored(since_ns), len(self.events)
        await send(self.settings, SOURCE, self.events)
        self.events = []
        deadline = time.monotonic() + STORE_TIMEOUT_S
        while (stored := await self._stored(since_ns) - before) < count:
            if time.monotonic() > deadline:
                raise UnreachableError(f"the store shows {stored} of {count} rewards: see the collector's log")
            await asyncio.sleep(0.1)

    async def _stored(self, since_ns: int) -> int:
        rows = await asyncio.to_thread(self.store.ask, "rules_stored", {"source": SOURCE, "since_ns": since_ns})
        return int(rows[0][0])


async def apply_rules(
    settings: Settings,
    rules: Sequence[Rule],
    *,
    rollout_id: str | None = None,
    since_ns: int = 0,
    dry_run: bool = False,
    quiet_s: float = QUIET_S,
) -> Evaluated:
    """Reward every attempt that is over by `rules`, write what changed, and withdraw what no longer holds.

    Raises UnreachableError when collector or store do not answer, TracegradError when a rule's function fails; then
    nothing was written, unless there was more than `HELD` to write.
    """
    await wait_until_delivered(settings)
    store = Store(settings.clickhouse, await asyncio.to_thread(clickhouse.connect, settings.clickhouse))
    result = Evaluated({PREFIX + rule.name: Tally() for rule in rules}, dry_run=dry_run)
    outbox = _Outbox(settings, store)
    try:
        quiet_before_ns = time.time_ns() - round(quiet_s * 1e9)
        found = await asyncio.to_thread(outlines, store, rollout_id, since_ns, quiet_before_ns)
        states = Counter(one.state for one in found)
        result.nobodys_fault, result.unfinished = states["nobodys_fault"], states["unfinished"]
        judged = [one for one in found if one.state == "judged"]
        result.judged = len(judged)
        for chunk in chunks(judged):
            new = await asyncio.to_thread(_evaluate, store, chunk, rules, result)
            if not dry_run:
                await outbox.add(new)
        await outbox.empty()
    finally:
        await asyncio.to_thread(store.client.close)
    return result


def _evaluate(store: Store, chunk: Sequence[Outline], rules: Sequence[Rule], result: Evaluated) -> list[LogRecord]:
    """The events to write about some attempts; counts them in `result`."""
    versions = {PREFIX + rule.name: rule.version for rule in rules}
    before = _given(store, chunk)
    new: list[LogRecord] = []
    for attempt in attempts(store, chunk):
        given = newest(before.get((attempt.rollout_id, attempt.attempt), ()), attempt.root_span_id)
        rewards = [reward for rule in rules for reward in rule.rewards(attempt)]
        written, withdrawn = changes(rewards, given, versions)
        for reward in rewards:
            tally = result.rules[reward.name]
            tally.times += 1
            tally.total += reward.score
        for reward in written:
            result.rules[reward.name].written += 1
        for reward in withdrawn:
            result.rules.setdefault(reward.name, Tally()).withdrawn += 1
        new += events(attempt, [*written, *withdrawn], given)
    return new


def _given(store: Store, chunk: Sequence[Outline]) -> Mapping[Key, list[Given]]:
    parameters = {"source": SOURCE, "rollout_ids": sorted({one.rollout_id for one in chunk})}
    found: dict[Key, list[Given]] = {}
    for rollout_id, attempt, *row in store.ask("rules_given", parameters):
        found.setdefault((rollout_id, attempt), []).append(Given(*row))
    return found
