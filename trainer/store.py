"""The store as the trainer sees it: reads rollouts, calls and rewards by SQL, writes what was learned.

Writing is idempotent: the tables replace rows of equal key, so a step may be recorded again after a crash. The row
in `train_steps` comes last; a step without it has not been recorded.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracegrad.clickhouse import DATABASE, connect, errors_in_one_line
from tracegrad.errors import InputError
from trainer.backlog import Backlog, Sought
from trainer.columns import FORMAT, SETTINGS, Columns, blocks_of
from trainer.portions import MOST_CHARACTERS, Portions, chunks
from trainer.records import SampleRecord, StepRecord
from trainer.reward_sets import Given, RewardSet
from trainer.rollout import Rollout
from trainer.since import Since
from trainer.spans import Span
from trainer.stored_rows import are_alike, calls_in, rollouts_in, spans_in
from trainer.transitions import Attempt, Call

# They tell of every retry; what is left of it in the end is one error of ours.
for noisy in ("urllib3.connectionpool", "clickhouse_connect"):
    logging.getLogger(noisy).setLevel(logging.ERROR)

SQL = Path(__file__).parent / "sql"


@dataclass(frozen=True)
class Recorded:
    """What the newest step that consumed a span did with it. `step_started_ns`: unix time."""

    step_id: str
    used: bool
    drop_reason: str
    step_started_ns: int


@dataclass(frozen=True)
class TrainedStep:
    """One row of `train_steps`. `config`: the `train.toml`, `metrics`: name to number; both as JSON text."""

    step_id: str
    job: str
    policy: str
    from_version: int
    to_version: int
    algorithm: str
    config: str
    metrics: str


class Store:
    """One ClickHouse, or the collector's embedded one, over HTTP. Raises UnreachableError when nobody answers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = connect(url)
        self._portions = Portions()

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def backlog(self, sought: Sought) -> Backlog:
        """What there is to learn from, without reading any of it."""
        (row,) = self._rows("attempts", "backlog", **sought.parameters)
        return Backlog(**row)

    def untrained(self, sought: Sought) -> list[Rollout]:
        """Attempts that are over, settled and rewarded or penalized, oldest first, still without calls and rewards.

        Each has a call of the policy, or none at all where others of its group have one.
        """
        blocks = self._blocks("attempts", "untrained", **sought.parameters)
        return [rollout for columns, _ in blocks for rollout in rollouts_in(columns)]

    def rollouts(
        self, since: Since, rollout_ids: Sequence[str] = (), task_ids: Sequence[str] = (), policy: str | None = None
    ) -> list[Rollout]:
        """All attempts, or those of the given rollouts or tasks, still without calls and rewards.

        `policy`: only those with a call of it, and those without a call of any policy.
        """
        return [
            rollout
            for rollouts in chunks(rollout_ids) or [[]]
            for tasks in chunks(task_ids) or [[]]
            for columns, _ in self._blocks(
                "rollouts",
                since_ns=since.from_ns,
                rollout_ids=rollouts,
                task_ids=tasks,
                policy=policy or "",
            )
            for rollout in rollouts_in(columns)
        ]

    def filled(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The same attempts with their calls, spans and rewards."""
        rollout_ids = sorted({rollout.rollout_id for rollout in rollouts})
        calls: dict[Attempt, list[Call]] = defaultdict(list)
        spans: dict[Attempt, list[Span]] = defaultdict(list)
        for found_calls, found_spans in self._portions.read(rollout_ids, self._calls_and_spans):
            for call in found_calls:
                calls[call.rollout_id, call.attempt].append(call)
            for key, span in found_spans:
                spans[key].append(span)
        self._read_hashes(calls)
        given = self.given(rollout_ids)
        filled = [
            replace(rollout, calls=calls[rollout.key], spans=spans[rollout.key], given=given.get(rollout.key, ()))
            for rollout in rollouts
        ]
        return [RewardSet().weighed(rollout) for rollout in filled]

    def given(self, rollout_ids: Iterable[str]) -> dict[Attempt, list[Given]]:
        """The newest evaluations of the spans of these rollouts."""
        given: dict[Attempt, list[Given]] = defaultdict(list)
        for some in chunks(rollout_ids, MOST_CHARACTERS):
            for row in self._rows("rewards", rollout_ids=some):
                given[row.pop("rollout_id"), row.pop("attempt")].append(Given(**row))
        return given

    def call_messages(self, rollout_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """What the calls of these rollouts were asked and answered, of every model, by rollout, start and span id."""
        for some in chunks(rollout_ids):
            yield from self._rows("call_messages", rollout_ids=some)

    def messages_of(self, calls: Sequence[Call]) -> dict[tuple[str, str], tuple[str, str]]:
        """By trace and span id, what these calls were asked and answered, as JSON text; empty where not recorded."""
        rollouts: dict[str, list[str]] = defaultdict(list)
        for call in calls:
            rollouts[call.rollout_id].append(call.span_id)
        return {
            (row["trace_id"], row["span_id"]): (row["input_messages"], row["output_messages"])
            for rollout_ids in chunks(rollouts)
            for span_ids in chunks(span_id for rollout_id in rollout_ids for span_id in rollouts[rollout_id])
            for row in self._rows("messages_of_spans", rollout_ids=rollout_ids, span_ids=span_ids)
        }

    def tool_definitions(self, rollout_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Which of their spans tell what tools a call was offered."""
        for some in chunks(rollout_ids):
            yield from self._rows("tool_definitions", rollout_ids=some)

    def recorded(self, rollouts: Sequence[Rollout]) -> dict[tuple[str, str], Recorded]:
        """By policy and span id, what steps did with the calls of these attempts."""
        return {
            (row["policy"], row["span_id"]): Recorded(
                row["step_id"], bool(row["used"]), row["drop_reason"], row["step_started_ns"]
            )
            for rollout_ids in chunks((rollout.rollout_id for rollout in rollouts), MOST_CHARACTERS)
            for row in self._rows("recorded", rollout_ids=rollout_ids)
        }

    def trained_spans(self, policy: str, rollouts: Sequence[Rollout]) -> frozenset[str]:
        """Ids of the spans of these attempts that a recorded step of `policy` was trained on."""
        return frozenset(
            row["span_id"]
            for rollout_ids in chunks((rollout.rollout_id for rollout in rollouts), MOST_CHARACTERS)
            for row in self._rows("trained_spans", policy=policy, rollout_ids=rollout_ids)
        )

    def rollouts_named(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """All attempts of these rollouts, still without calls and rewards."""
        return self.rollouts(Since(0, untrained_only=False), rollout_ids) if rollout_ids else []

    def trained_step(self, step_id: str) -> TrainedStep:
        """The step of that id; `last` is the newest. Raises InputError where there is none."""
        rows = self._rows("trained_step", step_id=step_id)
        if not rows:
            what = "no step has been trained yet" if step_id == "last" else f"no step {step_id!r} in the store"
            raise InputError(f"{what}: steps are the rows of train_steps (`tracegrad sql`)")
        return TrainedStep(**rows[0])

    def samples_of_step(self, step_id: str) -> list[SampleRecord]:
        """What the step did with each transition that it consumed."""
        return [SampleRecord(**row) for row in self._rows("trained_samples", step_id=step_id)]

    def reward_names(self) -> list[str]:
        """The names of all evaluations."""
        return [row["name"] for row in self._rows("reward_names")]

    def has_step(self, step_id: str) -> bool:
        """Whether the step has been recorded as a whole."""
        return bool(self._rows("step", step_id=step_id))

    def versions(self, policy: str) -> dict[int, str]:
        """Every version of `policy` that was ever recorded, with the sha256 of its weights."""
        return {row["version"]: row["sha256"] for row in self._rows("versions", policy=policy)}

    def record_version(
        self, policy: str, version: int, *, sha256: str, path: Path, parent: int | None, step_id: str, at_ns: int
    ) -> None:
        """One row of `policies`."""
        row = {
            "name": policy,
            "version": version,
            "sha256": sha256,
            "path": str(path),
            "parent_version": parent,
            "created_at": _time(at_ns),
            "step_id": step_id,
        }
        self._insert("policies", [row])

    def record_step(self, step: StepRecord, metrics: str) -> None:
        """The rows of `train_samples`, then the one of `train_steps`. `metrics`: as JSON."""
        self._insert(
            "train_samples",
            [
                {"step_id": step.step_id} | {name: getattr(sample, name) for name in SampleRecord.model_fields}
                for sample in step.samples
            ],
        )
        row = {
            "step_id": step.step_id,
            "job": step.job,
            "policy": step.policy,
            "from_version": step.from_version,
            "to_version": step.to_version,
            "algorithm": step.algorithm,
            "config": step.config,
            "metrics": metrics,
            "started_at": _time(step.started_ns),
            "ended_at": _time(step.ended_ns),
        }
        self._insert("train_steps", [row])

    def _rows(self, *names: str, **parameters: Any) -> list[dict[str, Any]]:
        with errors_in_one_line(self._url):
            answer = self._client.query(_query(names), parameters=parameters)
            return [dict(row) for row in answer.named_results()]

    def _blocks(self, *names: str, **parameters: Any) -> list[tuple[Columns, int]]:
        """What a query answers, in columns: without a Python object for each value of an array."""
        with errors_in_one_line(self._url):
            answer = self._client.raw_query(_query(names), parameters, SETTINGS, fmt=FORMAT)
        return list(blocks_of(answer))

    def _calls_and_spans(self, rollout_ids: Sequence[str]) -> tuple[tuple[list[Call], list[tuple[Attempt, Span]]], int]:
        """Of some rollouts, and how many bytes they took on their way."""
        calls = self._blocks("calls", rollout_ids=rollout_ids)
        spans = self._blocks("spans", rollout_ids=rollout_ids)
        found = (
            [call for columns, _ in calls for call in calls_in(columns)],
            [span for columns, _ in spans for span in spans_in(columns)],
        )
        return found, sum(size for _, size in (*calls, *spans))

    def _read_hashes(self, calls: dict[Attempt, list[Call]]) -> None:
        """The `input_hash` of calls of attempts where it has to tell requests apart."""
        alike = {key for key, of_attempt in calls.items() if are_alike(of_attempt)}
        hashes = {
            (row["rollout_id"], row["attempt"], row["trace_id"], row["span_id"]): row["input_hash"]
            for rollout_ids in chunks(rollout_id for rollout_id, _ in alike)
            for row in self._rows("input_hashes", rollout_ids=rollout_ids)
        }
        for key in alike:
            calls[key] = [replace(call, input_hash=hashes[(*key, call.trace_id, call.span_id)]) for call in calls[key]]

    def _insert(self, table: str, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            with errors_in_one_line(self._url):
                self._client.insert(
                    table, [list(row.values()) for row in rows], column_names=list(rows[0]), database=DATABASE
                )


def _query(names: Iterable[str]) -> str:
    """The files of these names, one after the other."""
    return "".join((SQL / f"{name}.sql").read_text() for name in names)


def _time(at_ns: int) -> datetime:
    return datetime.fromtimestamp(at_ns / 1e9, UTC)
