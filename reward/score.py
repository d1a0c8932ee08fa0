"""Grades finished rollouts against their tasks, and returns when the store shows the rewards.

All rewards of one call leave together, in one request as long as they fit into one (4 MiB: some 10,000 rewards), so
that a trainer that watches never sees half a group.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from reward.answer import is_answer, last_line
from reward.event import evaluation
from reward.graders import GRADERS, Grader
from reward.sending import STORE_TIMEOUT_S, send
from reward.store import Store
from tracegrad import clickhouse
from tracegrad.delivered import wait_until_delivered
from tracegrad.errors import InputError, UnreachableError
from tracegrad.otlp import SpanContext
from tracegrad.rollout.tasks import Task
from tracegrad.settings import Settings

log = logging.getLogger(__name__)

SOURCE = "tracegrad.reward"
LONGEST_QUOTE = 200
NOBODYS_FAULT = ("interrupted", "spawn")
"""Error types that say nothing about the policy: such a rollout gets no reward, and so is never trained on."""


@dataclass(frozen=True)
class Rollout:
    """A finished rollout, as the store has it."""

    rollout_id: str
    attempt: int
    task_id: str
    trace_id: str
    root_span_id: str
    status: str
    error_type: str
    stdout: str


@dataclass(frozen=True)
class Verdict:
    """What a rollout gets, and why."""

    score: float
    label: str
    explanation: str


@dataclass(frozen=True)
class Scores:
    """What one call gave: labels counted, and how many rollouts it left alone, with the reason."""

    by_label: Mapping[str, int]
    total_score: float
    unknown_task: int
    nobodys_fault: int

    @property
    def rewarded(self) -> int:
        """How many rollouts got a reward."""
        return sum(self.by_label.values())

    @property
    def mean(self) -> float | None:
        """The mean score; None when nothing was rewarded."""
        return self.total_score / self.rewarded if self.rewarded else None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "rewarded": self.rewarded,
            "mean": self.mean,
            "labels": dict(self.by_label),
            "skipped": {"unknown_task": self.unknown_task, "not_the_policys_fault": self.nobodys_fault},
        }


async def score_rollouts(
    settings: Settings,
    tasks: Sequence[Task],
    *,
    grader: str,
    answer_field: str = "answer",
    name: str = "reward",
    rollout_id: str | None = None,
    again: bool = False,
) -> Scores:
    """Reward each finished rollout of `tasks` that has no reward called `name` yet; with `again`, also those that have.

    Raises InputError when a task lacks `answer_field`, UnreachableError when collector or store do not answer.
    """
    if grader not in GRADERS:
        raise InputError(f"no grader {grader!r}: choose one of {', '.join(sorted(GRADERS))}")
    expected = {task.id: _expected(task, answer_field) for task in tasks}
    await wait_until_delivered(settings)
    store = Store(settings.clickhouse, await asyncio.to_thread(clickhouse.connect, settings.clickhouse))
    try:
        found = await asyncio.to_thread(_finished, store, name, rollout_id, again)
        known = [rollout for rollout in found if rollout.task_id in expected]
        judged = [rollout for rollout in known if rollout.error_type not in NOBODYS_FAULT]
        verdicts = [judge(rollout, expected[rollout.task_id], GRADERS[grader]) for rollout in judged]
        since_ns = time.time_ns()
        await send(settings, SOURCE, list(_events(name, judged, verdicts)))
        await _wait_until_stored(store, name, since_ns, len(judged))
    finally:
        await asyncio.to_thread(store.client.close)
    labels = [verdict.label for verdict in verdicts]
    return Scores(
        by_label={label: labels.count(label) for label in sorted(set(labels))},
        total_score=sum(verdict.score for verdict in verdicts),
        unknown_task=len(found) - len(known),
        nobodys_fault=len(known) - len(judged),
    )


def judge(rollout: Rollout, expected: Any, grade: Grader) -> Verdict:
    """The verdict on one rollout: the grade of its answer, or 0 when it failed. Raises InputError."""
    if rollout.status != "succeeded":
        return Verdict(0.0, rollout.status, f"the rollout ended with {rollout.error_type or rollout.status}")
    answer = last_line(rollout.stdout)
    if not is_answer(answer):
        return Verdict(0.0, "no_answer", f"no answer: {answer[:LONGEST_QUOTE]!r}")
    try:
        score = grade(answer, expected)
    except ValueError as error:
        raise InputError(f"task {rollout.task_id!r}: {error}") from error
    label = "correct" if score >= 1 else "wrong" if score <= 0 else "partly"
    return Verdict(score, label, f"answered {answer[:LONGEST_QUOTE]!r}, expected {str(expected)[:LONGEST_QUOTE]!r}")


def _expected(task: Task, field: str) -> Any:
    if field not in task.fields:
        raise InputError(f"task {task.id!r} has no field {field!r} to grade against: choose one with --answer-field")
    return task.fields[field]


def _finished(store: Store, name: str, rollout_id: str | None, again: bool) -> list[Rollout]:
    parameters = {"name": name, "rollout": rollout_id or "", "again": int(again)}
    return [Rollout(*row[:-3], *(value or "" for value in row[-3:])) for row in store.ask("finished", parameters)]


def _events(name: str, rollouts: Sequence[Rollout], verdicts: Sequence[Verdict]) -> Iterator[LogRecord]:
    for rollout, verdict in zip(rollouts, verdicts, strict=True):
        yield evaluation(
            name,
            verdict.score,
            SpanContext(bytes.fromhex(rollout.trace_id), bytes.fromhex(rollout.root_span_id)),
            rollout_id=rollout.rollout_id,
            attempt=rollout.attempt,
            label=verdict.label,
            explanation=verdict.explanation,
        )


async def _wait_until_stored(store: Store, name: str, since_ns: int, count: int) -> None:
    parameters = {"name": name, "source": SOURCE, "since_ns": since_ns}
    deadline = time.monotonic() + STORE_TIMEOUT_S
    while count:
        rows = await asyncio.to_thread(store.ask, "stored", parameters)
        stored = int(rows[0][0])
        if stored >= count:
            return
        if time.monotonic() > deadline:
            raise UnreachableError(f"the store shows {stored} of {count} rewards: see the collector's log")
        await asyncio.sleep(0.1)
