"""The store as the trainer sees it: reads rollouts, calls and rewards by SQL, writes what was learned.

Writing is idempotent: the tables replace rows of equal key, so a step may be recorded again after a crash. The row
in `train_steps` comes last; a step without it has not been recorded.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import clickhouse_connect
import numpy as np
from clickhouse_connect.driver.exceptions import ClickHouseError

from tracegrad.errors import SettingsError, TracegradError, UnreachableError
from trainer.records import SampleRecord, StepRecord
from trainer.samples import Rollout
from trainer.since import Since
from trainer.transitions import Attempt, Call

# They tell of every retry; what is left of it in the end is one error of ours.
for noisy in ("urllib3.connectionpool", "clickhouse_connect"):
    logging.getLogger(noisy).setLevel(logging.ERROR)

SQL = Path(__file__).parent / "sql"
IDS_A_QUERY = 100
"""Rollout ids travel in the request's address, whose length is bounded."""


@dataclass(frozen=True)
class Backlog:
    """How many attempts there are in all, and of these how many of each kind. Held-out ones are not counted."""

    total: int
    ready: int
    running: int
    unrewarded: int
    uncalled: int
    trained: int


@dataclass(frozen=True)
class Recorded:
    """What the newest step that consumed a span did with it."""

    step_id: str
    used: bool
    drop_reason: str


class Store:
    """One ClickHouse, or the collector's embedded one, over HTTP. Raises UnreachableError when nobody answers."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(f"bad setting clickhouse: {url!r} is not an http:// address")
        self._url = f"{parts.scheme}://{parts.hostname}:{parts.port or 8123}"
        with self._asking():
            self._client = clickhouse_connect.get_client(
                host=parts.hostname,
                port=parts.port or 8123,
                secure=parts.scheme == "https",
                username=parts.username or "default",
                password=parts.password or "",
                database="otel",
                autogenerate_session_id=False,
            )

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def backlog(self, policy: str, since: Since) -> Backlog:
        """What there is to learn from, without reading any of it."""
        again = int(not since.untrained_only)
        (row,) = self._rows("backlog", policy=policy, since_ns=since.from_ns, again=again)
        return Backlog(**row)

    def untrained(self, policy: str, since: Since) -> list[Rollout]:
        """Finished and rewarded attempts with a call of `policy`, oldest first, still without calls and rewards."""
        again = int(not since.untrained_only)
        rows = self._rows("untrained", policy=policy, since_ns=since.from_ns, again=again)
        return [Rollout(**row, calls=(), rewards={}) for row in rows]

    def rollouts(self, since: Since, rollout_ids: Sequence[str] = (), task_ids: Sequence[str] = ()) -> list[Rollout]:
        """All attempts, or those of the given rollouts or tasks, still without calls and rewards."""
        rows = self._rows("rollouts", since_ns=since.from_ns, rollout_ids=list(rollout_ids), task_ids=list(task_ids))
        return [Rollout(**row, calls=(), rewards={}) for row in rows]

    def filled(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The same attempts with their calls and rewards."""
        calls: dict[Attempt, list[Call]] = defaultdict(list)
        rewards: dict[Attempt, dict[str, float]] = defaultdict(dict)
        for rollout_ids in _chunks(rollouts):
            for row in self._rows("calls", rollout_ids=rollout_ids):
                calls[row["rollout_id"], row["attempt"]].append(_call(row))
            for row in self._rows("rewards", rollout_ids=rollout_ids):
                rewards[row["rollout_id"], row["attempt"]][row["span_id"]] = row["reward"]
        return [replace(rollout, calls=calls[rollout.key], rewards=rewards[rollout.key]) for rollout in rollouts]

    def recorded(self, rollouts: Sequence[Rollout]) -> dict[tuple[str, str], Recorded]:
        """By policy and span id, what steps did with the calls of these attempts."""
        return {
            (row["policy"], row["span_id"]): Recorded(row["step_id"], bool(row["used"]), row["drop_reason"])
            for rollout_ids in _chunks(rollouts)
            for row in self._rows("recorded", rollout_ids=rollout_ids)
        }

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

    def _rows(self, name: str, **parameters: Any) -> list[dict[str, Any]]:
        with self._asking():
            answer = self._client.query((SQL / f"{name}.sql").read_text(), parameters=parameters)
            return [dict(row) for row in answer.named_results()]

    def _insert(self, table: str, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            with self._asking():
                self._client.insert(
                    table, [list(row.values()) for row in rows], column_names=list(rows[0]), database="otel"
                )

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except ClickHouseError as error:
            if getattr(error, "code", None) is not None:
                text = " ".join(str(error).split())
                raise TracegradError(f"the store at {self._url} refused a query: {text}") from error
            cause = getattr(error.__cause__, "reason", error.__cause__ or error)
            raise UnreachableError(
                f"no store at {self._url} ({str(cause).rpartition(': ')[2]}): start one with `tracegrad up` or "
                "`tracegrad collector`"
            ) from error


def _call(row: dict[str, Any]) -> Call:
    return Call(
        **row
        | {
            "trainable": bool(row["trainable"]),
            "prompt_token_ids": np.array(row["prompt_token_ids"], np.int64),
            "response_token_ids": np.array(row["response_token_ids"], np.int64),
            "logprobs": np.array(row["logprobs"], np.float32),
        }
    )


def _chunks(rollouts: Sequence[Rollout]) -> Iterator[list[str]]:
    rollout_ids = sorted({rollout.rollout_id for rollout in rollouts})
    for start in range(0, len(rollout_ids), IDS_A_QUERY):
        yield rollout_ids[start : start + IDS_A_QUERY]


def _time(at_ns: int) -> datetime:
    return datetime.fromtimestamp(at_ns / 1e9, UTC)
