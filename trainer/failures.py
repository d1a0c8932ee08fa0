"""What went wrong in a rollout or a call, as its spans tell, and what a job does about it.

Invariant: an error is told by what was recorded of it and of nothing else, so a failure is the same for every job; what
becomes of it is each job's own choice. A rollout has at most one error, a call may have several.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from tracegrad.context_overflow import is_context_overflow
from tracegrad.finish_reasons import CONTEXT_FULL, TRUNCATED
from trainer.choices import ErrorType, OnFailure
from trainer.config import DataConfig
from trainer.spans import Span, shared_traces
from trainer.transitions import Call, order_of

OF_ROLLOUTS: tuple[ErrorType, ...] = ("exception", "timeout", "cancelled", "upstream_error", "lost")
"""Errors that end a rollout; all others are of calls."""

DEFAULTS: Mapping[ErrorType, OnFailure] = {
    "exception": "penalize",
    "timeout": "penalize",
    "cancelled": "drop",
    "upstream_error": "drop",
    "lost": "drop",
    "tool_error": "keep",
    "malformed_tool_call": "keep",
    "truncation": "keep",
    "refusal": "keep",
    "context_overflow": "keep",
}
"""What the policy did is told to it; what befell it is left out; and what a call did wrong is for rewards to judge."""

STRICTEST_FIRST: tuple[OnFailure, ...] = ("drop", "mask", "penalize", "keep")

ERROR_OF_STATUS: Mapping[str, ErrorType] = {"failed": "exception", "timeout": "timeout", "lost": "lost"}
"""What the launcher's word for an end says; who was cancelled, and what the engine did, is told by more."""

CANCELLED = frozenset({"interrupted", "spawn"})
"""The launcher's words for runs that somebody ended, or that never began."""

CANCELLING = ("cancel", "keyboardinterrupt")
"""Parts of the names of exceptions that end an agent from outside."""

UPSTREAM_ERRORS = frozenset(
    {"upstream_unreachable", "upstream_died", "upstream_error", "invalid_answer", "timeout", "shutdown"}
)
"""The sidecar's words for what is no fault of a request; others are HTTP statuses."""
FAULTS_OF_REQUESTS = frozenset({400, 411, 413, 414, 415, 422})
"""HTTP statuses that blame the request itself, which the agent made: neither keys, names, limits nor the server."""


@dataclass(frozen=True)
class FailurePolicy:
    """What a job does about each type of error."""

    actions: Mapping[ErrorType, OnFailure]

    @classmethod
    def from_config(cls, data: DataConfig) -> "FailurePolicy":
        """The defaults, changed by `data.on_failure`: one word is for every error that ends a rollout."""
        chosen = data.on_failure
        given = chosen if isinstance(chosen, dict) else dict.fromkeys(OF_ROLLOUTS, chosen)
        return cls({**DEFAULTS, **given})

    def of(self, error: ErrorType) -> OnFailure:
        """What is done about an error of this type."""
        return self.actions.get(error, DEFAULTS[error])

    @property
    def penalized_statuses(self) -> frozenset[str]:
        """Statuses of rollouts that ended in an error which is penalized."""
        return frozenset(status for status, error in ERROR_OF_STATUS.items() if self.of(error) == "penalize")

    def strictest(self, errors: Sequence[ErrorType]) -> tuple[ErrorType | None, OnFailure]:
        """The error that decides, the first of those with the strictest action, and that action."""
        for action in STRICTEST_FIRST:
            for error in errors:
                if self.of(error) == action:
                    return error, action
        return None, "keep"


def errors_of_rollout(status: str, error_type: str, calls: Sequence[Call], spans: Sequence[Span]) -> ErrorType | None:
    """The error that ended one attempt, None where it went well.

    `status`, `error_type`: of its root span, as the launcher ended it. A run without a launcher is judged by the spans
    that have no parent: what its instrumentation saw fail.
    """
    found = ERROR_OF_STATUS.get(status)
    if status == "failed" and error_type in CANCELLED:
        found = "cancelled"
    elif status == "running":
        found = _seen_by_instrumentation(calls, spans)
    return "upstream_error" if found == "exception" and _ended_upstream(calls, spans) else found


def _seen_by_instrumentation(calls: Sequence[Call], spans: Sequence[Span]) -> ErrorType | None:
    """How the last of the topmost spans failed, where it did. A call's own failure is not yet its agent's."""
    present = {span.span_id for span in spans}
    of_calls = {call.span_id for call in calls}
    shared = shared_traces(spans, of_calls)
    tops = [
        span
        for span in spans
        if span.parent_span_id not in present and span.span_id not in of_calls and span.trace_id not in shared
    ]
    last = max(tops, key=lambda span: (span.ended_ns, span.span_id), default=None)
    if last is None or not last.failed:
        return None
    words = last.error_type.lower()
    if "timeout" in words:
        return "timeout"
    return "cancelled" if any(word in words for word in CANCELLING) else "exception"


def _ended_upstream(calls: Sequence[Call], spans: Sequence[Span]) -> bool:
    """Whether the last request of all failed, and not by its own fault."""
    last = max(calls, key=order_of, default=None)
    if last is None or not last.failed:
        return False
    return not any(is_refused_overflow(span) for span in spans if span.span_id == last.span_id) and _is_upstreams(last)


def _is_upstreams(call: Call) -> bool:
    if call.error_type.isdecimal():
        return int(call.error_type) >= 400 and int(call.error_type) not in FAULTS_OF_REQUESTS
    return call.error_type in UPSTREAM_ERRORS


def is_refused_overflow(span: Span) -> bool:
    """Whether a call's span tells that the request did not fit into the model's context."""
    return span.failed and is_context_overflow(span.error_message)


def overflowed(calls: Iterable[Call], spans: Iterable[Span]) -> frozenset[str]:
    """Span ids of the calls after which the same agent's next request no longer fitted into the model's context.

    The refused request itself is none that could be trained on: it brought nothing.
    """
    refused = {span.span_id for span in spans if is_refused_overflow(span)}
    found: set[str] = set()
    last: dict[tuple[str, str], list[str]] = {}
    for call in sorted(calls, key=order_of) if refused else ():
        agent = (call.agent, call.policy)
        if call.span_id in refused:
            found.update(last.get(agent, ()))
        elif not call.failed:
            last[agent] = [call.span_id]
    return frozenset(found)


def errors_of_call(call: Call, tools: Iterable[Span], *, context_full: bool = False) -> tuple[ErrorType, ...]:
    """What went wrong with a call that the agent received, in the order of `ErrorType`.

    `tools`: the tool spans that it asked for. `context_full`: the agent's next request was refused as too long.
    """
    found: set[str] = {fault for fault in call.answer_faults if fault in get_args(ErrorType)}
    if any(tool.failed for tool in tools):
        found.add("tool_error")
    if call.finish_reason in TRUNCATED:
        found.add("truncation")
    if context_full or call.finish_reason == CONTEXT_FULL:
        found.add("context_overflow")
    return tuple(error for error in get_args(ErrorType) if error in found)
