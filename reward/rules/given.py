"""What rules have given, beside what they give now: only the difference is written, and nothing is taken back unseen.

Invariants: a reward is written where the newest one of its rule on its span has another score or comes of another
version. One that no longer holds is followed by one with score 0, labelled `withdrawn`. Whatever is written is newer
than what it follows, whoever's clock that was by. What others gave under the same name is left alone.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from reward.event import NO_SPAN, evaluation
from reward.rules.facts import Attempt
from reward.rules.rule import PREFIX, Reward
from tracegrad import names, otlp
from tracegrad.otlp import SpanContext

WITHDRAWN = "withdrawn"

Judged = tuple[str, str]
"""Span id and name."""


@dataclass(frozen=True)
class Given:
    """The newest reward by a rule on one span, as the store has it."""

    span_id: str
    name: str
    trace_id: str
    score: float
    label: str
    version: str
    at_ns: int


def newest(found: Sequence[Given], root_span_id: str) -> dict[Judged, Given]:
    """By span and name. What judges the rollout as a whole judges its root span, once that is there."""
    kept: dict[Judged, Given] = {}
    for one in sorted(found, key=lambda one: one.at_ns):
        kept[one.span_id or root_span_id, one.name] = one
    return kept


def changes(
    rewards: Sequence[Reward], given: Mapping[Judged, Given], versions: Mapping[str, str]
) -> tuple[list[Reward], list[Reward]]:
    """What is to be written, and what is to be withdrawn. `versions`: of the rules that there are, by reward name."""
    holds = {(reward.span_id, reward.name) for reward in rewards}
    written = [reward for reward in rewards if not _says_so(given.get((reward.span_id, reward.name)), reward)]
    withdrawn = [
        Reward(span_id, name, 0.0, WITHDRAWN, _why(one, name in versions), versions.get(name, one.version))
        for (span_id, name), one in given.items()
        if (span_id, name) not in holds and one.label != WITHDRAWN
    ]
    return written, withdrawn


def events(attempt: Attempt, rewards: Sequence[Reward], given: Mapping[Judged, Given]) -> Iterator[LogRecord]:
    """The evaluation events that say so."""
    for reward in rewards:
        before = given.get((reward.span_id, reward.name))
        record = evaluation(
            reward.name,
            reward.score,
            _context(attempt, reward.span_id, before),
            rollout_id=attempt.rollout_id,
            attempt=attempt.attempt,
            label=reward.label,
            explanation=reward.explanation,
        )
        record.attributes.extend(otlp.attributes({names.RULE_VERSION: reward.version}))
        record.time_unix_nano = max(time.time_ns(), before.at_ns + 1 if before is not None else 0)
        yield record


def _says_so(given: Given | None, reward: Reward) -> bool:
    return (
        given is not None
        and given.label != WITHDRAWN
        and given.version == reward.version
        and abs(given.score - reward.score) <= 1e-12 * abs(reward.score)
    )


def _why(given: Given, rule_is_there: bool) -> str:
    name = given.name.removeprefix(PREFIX)
    reason = "nothing of it is found any more" if rule_is_there else f"there is no rule {name} any more"
    return f"{reason}; it was {given.score:g} before"


def _context(attempt: Attempt, span_id: str, given: Given | None) -> SpanContext:
    if not span_id:
        return NO_SPAN
    span = attempt.spans.get(span_id)
    if span is not None:
        trace_id = span.trace_id
    else:
        trace_id = given.trace_id if given is not None and given.trace_id else attempt.trace_id
    return SpanContext(bytes.fromhex(trace_id), bytes.fromhex(span_id))
