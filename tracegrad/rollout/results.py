"""What became of runs, and the root span that says so."""

import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad import names, otlp
from tracegrad.otlp import SpanContext

Status = Literal["succeeded", "failed", "timeout"]
LONGEST_MESSAGE = 200


@dataclass(frozen=True)
class RunResult:
    """One ended run. `error_type`: None, or exit_code, signal, timeout, spawn, interrupted. Times in ns since 1970."""

    rollout_id: str
    attempt: int
    task_id: str
    split: str
    context: SpanContext
    status: Status
    error_type: str | None
    exit_code: int | None
    started_ns: int
    ended_ns: int
    message: str = ""

    @property
    def seconds(self) -> float:
        """How long the run took."""
        return (self.ended_ns - self.started_ns) / 1e9


def judge(status: int | None, interruption: str | None) -> tuple[Status, str | None, int | None]:
    """(status, error type, exit code as a shell shows it) of a process that ended with `status`.

    `interruption` is why it was ended from outside, if it was: `timeout`, `interrupted` or `spawn`.
    """
    exit_code = None if status is None else status if status >= 0 else 128 - status
    if interruption == "timeout":
        return "timeout", "timeout", exit_code
    if interruption is not None:
        return "failed", interruption, exit_code
    if status == 0:
        return "succeeded", None, 0
    return "failed", "signal" if status is not None and status < 0 else "exit_code", exit_code


def last_words(status: int | None, stderr: str) -> str:
    """One line about a failure: the signal, or what the agent said last on stderr."""
    if status is not None and status < 0:
        return f"killed by {signal.Signals(-status).name}" if -status in set(signal.Signals) else f"signal {-status}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1][:LONGEST_MESSAGE] if lines else ""


def root_span(result: RunResult, stdout: str, stderr: str) -> Span:
    """The span that holds a run together."""
    error = None if result.status == "succeeded" else f"{result.error_type}: {result.message}".rstrip(": ")
    return otlp.span(
        names.ROOT_SPAN_NAME,
        result.context,
        start_ns=result.started_ns,
        end_ns=result.ended_ns,
        error=error,
        values={
            names.ROLLOUT_ID: result.rollout_id,
            names.ROLLOUT_ATTEMPT: result.attempt,
            names.TASK_ID: result.task_id,
            names.ROLLOUT_STATUS: result.status,
            names.ROLLOUT_SPLIT: result.split,
            names.EXIT_CODE: result.exit_code,
            names.ERROR_TYPE: result.error_type,
            names.ROLLOUT_STDOUT: stdout,
            names.ROLLOUT_STDERR: stderr,
        },
    )


@dataclass(frozen=True)
class Summary:
    """All runs of one call, in the order in which they ended."""

    results: tuple[RunResult, ...]
    seconds: float
    by_status: Mapping[str, int] = field(init=False)
    by_error: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_status", dict(Counter(result.status for result in self.results)))
        errors = Counter(result.error_type for result in self.results if result.error_type is not None)
        object.__setattr__(self, "by_error", dict(errors))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        statuses = {status: self.by_status.get(status, 0) for status in ("succeeded", "failed", "timeout")}
        return {
            "total": len(self.results),
            **statuses,
            "errors": dict(self.by_error),
            "seconds": round(self.seconds, 3),
            "rollout_ids": [result.rollout_id for result in self.results],
        }
