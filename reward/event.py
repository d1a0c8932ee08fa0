"""One evaluation event: built, checked, and sent until the collector has acknowledged it."""

import math
import urllib.error
import urllib.request

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

import tracegrad
from tracegrad import names, otlp, settings
from tracegrad.errors import UnreachableError
from tracegrad.loopback import open_url
from tracegrad.otlp_access import OtlpAccess

TIMEOUT_S = 10.0
LARGEST_SCORE = 1e30
"""Without its sign. Views show nothing beyond as a reward, so that no sum of scores or of their squares overflows."""
NO_SPAN = otlp.SpanContext(b"", b"")


def emit(
    name: str,
    score: float,
    *,
    rollout_id: str | None = None,
    attempt: int = 0,
    trace_id: str | None = None,
    span_id: str | None = None,
    label: str | None = None,
    explanation: str | None = None,
    source: str = "reward.emit",
    endpoint: str | None = None,
) -> None:
    """Reward a span (`trace_id` and `span_id` in hex), or a rollout as a whole (`rollout_id`), before or after its end.

    Returns when the collector (`endpoint`, by default the setting `otlp`) has acknowledged it. Raises ValueError when
    it is not clear what is judged or how, UnreachableError when the collector does not take it.
    """
    context = _judged(rollout_id, trace_id, span_id)
    record = evaluation(
        name, score, context, rollout_id=rollout_id, attempt=attempt, label=label, explanation=explanation
    )
    chosen = settings.load()
    url = (endpoint or chosen.otlp).rstrip("/")
    # Our token goes to our collector only.
    _post(url, record, source, chosen.otlp_access if url == chosen.otlp else OtlpAccess())


def evaluation(
    name: str,
    score: float,
    context: otlp.SpanContext,
    *,
    rollout_id: str | None,
    attempt: int | None,
    label: str | None,
    explanation: str | None,
) -> LogRecord:
    """The log record that says so. Raises ValueError for a score that does not count, or an empty name."""
    if not name:
        raise ValueError("a reward needs a name")
    if not math.isfinite(score):
        raise ValueError(f"the score of {name!r} is {score}, which no policy can learn from: give a finite number")
    if abs(score) > LARGEST_SCORE:
        raise ValueError(f"the score of {name!r} is {score}: no score beyond {LARGEST_SCORE:g} counts")
    return otlp.event(
        names.EVALUATION_EVENT,
        context,
        {
            names.EVALUATION_NAME: name,
            names.EVALUATION_SCORE: float(score),
            names.EVALUATION_LABEL: label,
            names.EVALUATION_EXPLANATION: explanation,
            names.ROLLOUT_ID: rollout_id,
            names.ROLLOUT_ATTEMPT: attempt if rollout_id is not None else None,
        },
    )


def _judged(rollout_id: str | None, trace_id: str | None, span_id: str | None) -> otlp.SpanContext:
    if (trace_id is None) != (span_id is None):
        raise ValueError("a span is named by trace_id and span_id together")
    if trace_id is None or span_id is None:
        if rollout_id is None:
            raise ValueError("say what is judged: rollout_id, or trace_id and span_id")
        return NO_SPAN
    try:
        context = otlp.SpanContext(bytes.fromhex(trace_id), bytes.fromhex(span_id))
    except ValueError as error:
        raise ValueError(f"trace_id and span_id are hexadecimal, not {trace_id!r} and {span_id!r}") from error
    if (len(context.trace_id), len(context.span_id)) != (16, 8):
        raise ValueError("trace_id has 32 hexadecimal digits, span_id 16")
    return context


def _post(endpoint: str, record: LogRecord, source: str, access: OtlpAccess) -> None:
    """Send one record. On purpose not by `OtlpSender`: `emit` is called from code without an event loop, or inside one,
    and its caller wants to know at once whether the reward is on record."""
    message = ExportLogsServiceRequest()
    resource = Resource(attributes=otlp.attributes({"service.name": source}))
    scope = InstrumentationScope(name="tracegrad.reward", version=tracegrad.__version__)
    message.resource_logs.add(resource=resource).scope_logs.add(scope=scope).log_records.append(record)
    if not endpoint.startswith(("http://", "https://")):
        raise UnreachableError(f"{endpoint!r} is no http:// address of a collector: check the setting otlp")
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked
        f"{endpoint}/v1/logs",
        data=message.SerializeToString(),
        headers={"content-type": "application/x-protobuf"} | access.headers(),
    )
    try:
        with open_url(request, TIMEOUT_S, access.tls if endpoint.startswith("https:") else None):
            return
    except urllib.error.HTTPError as error:
        raise UnreachableError(f"the collector at {endpoint} refused the reward (status {error.code})") from error
    except (urllib.error.URLError, OSError) as error:
        raise UnreachableError(
            f"no collector at {endpoint} ({error}): start one with `tracegrad up` or `tracegrad collector`"
        ) from error
