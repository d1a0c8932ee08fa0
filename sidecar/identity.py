"""Whose call this is. The rollout id comes from what cannot get lost, in this order: path, header, baggage, trace id.

`traceparent` places the call's span in the caller's tree; without it the call is a trace of its own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, unquote_plus

from sidecar.target import ID, Target, checked_id
from tracegrad import names
from tracegrad.otlp import SpanContext, parse_traceparent


@dataclass(frozen=True)
class Identity:
    """The rollout a call belongs to and the place of its span in the trace."""

    rollout_id: str
    named: str | None
    """The same where the caller named it; None where it is only the trace's id."""
    attempt: int
    task_id: str | None
    retry_count: int
    split: str | None
    """What the rollout is for, `train` or `eval`, where its launcher said so."""
    context: SpanContext
    parent_span_id: bytes

    @property
    def has_company(self) -> bool:
        """Whether other calls may belong to the same rollout: not where the trace began with this very call."""
        return self.named is not None or self.parent_span_id != b""


def identify(target: Target, headers: Mapping[str, str]) -> Identity:
    """Read the caller's identity and make the context of the call's own span. Raises Refusal for a bad header."""
    caller = parse_traceparent(headers.get("traceparent"))
    baggage = parse_baggage(headers.get("baggage"))
    context = SpanContext.new(caller.trace_id if caller else None)
    named = target.rollout_id
    if named is None and (given := headers.get(names.HEADER_ROLLOUT_ID)):
        named = checked_id(given, f"the {names.HEADER_ROLLOUT_ID} header")
    if named is None and (carried := baggage.get(names.BAGGAGE_ROLLOUT_ID)) and ID.fullmatch(carried):
        named = carried
    retries = headers.get("x-stainless-retry-count", "")
    return Identity(
        rollout_id=named or context.trace_id.hex(),
        named=named,
        attempt=target.attempt,
        task_id=baggage.get(names.BAGGAGE_TASK_ID),
        retry_count=int(retries) if re.fullmatch("[0-9]{1,6}", retries) else 0,
        split=baggage.get(names.BAGGAGE_SPLIT),
        context=context,
        parent_span_id=caller.span_id if caller else b"",
    )


def parse_baggage(header: str | None) -> dict[str, str]:
    """The members of a W3C `baggage` header, without their properties; what is malformed is left out."""
    members = {}
    # aiohttp hands on bytes that are not UTF-8 as lone surrogates, which no span attribute can hold.
    header = (header or "").encode(errors="surrogateescape").decode(errors="replace")
    for member in header.split(","):
        name, equals, value = member.partition(";")[0].partition("=")
        if equals and name.strip():
            # OpenTelemetry for Python writes a space as `+` and a plus as `%2B`.
            members[unquote(name.strip())] = unquote_plus(value.strip())
    return members
