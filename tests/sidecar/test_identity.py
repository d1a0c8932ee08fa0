"""The rollout id comes from path, header, baggage, trace id, in this order; traceparent places the span."""

from sidecar.identity import identify, parse_baggage
from sidecar.target import Target

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


def test_order_of_sources() -> None:
    path, flat = Target("/v1", "from-path", 2), Target("/v1", None, 0)
    headers = {"x-rollout-id": "from-header", "baggage": "rollout.id=from-baggage", "traceparent": TRACEPARENT}
    assert identify(path, headers).rollout_id == "from-path"
    assert identify(flat, headers).rollout_id == "from-header"
    del headers["x-rollout-id"]
    assert identify(flat, headers).rollout_id == "from-baggage"
    del headers["baggage"]
    assert identify(flat, headers).rollout_id == TRACE
    alone = identify(flat, {})
    assert alone.rollout_id == alone.context.trace_id.hex()
    assert alone.parent_span_id == b""


def test_the_span_is_a_child_of_the_caller() -> None:
    identity = identify(Target("/v1", "r", 1), {"traceparent": TRACEPARENT, "x-stainless-retry-count": "2"})
    assert identity.context.trace_id.hex() == TRACE
    assert identity.parent_span_id.hex() == SPAN
    assert identity.context.span_id.hex() != SPAN
    assert (identity.attempt, identity.retry_count) == (1, 2)


def test_baggage_is_decoded_and_nonsense_left_out() -> None:
    assert parse_baggage("rollout.id=a%2Cb;p=1, task.id = t 1 ,broken, =x") == {"rollout.id": "a,b", "task.id": "t 1"}
    assert parse_baggage("task.id=a+b%2Bc") == {"task.id": "a b+c"}, "as OpenTelemetry for Python writes `a b+c`"
    not_utf8 = identify(Target("/v1", None, 0), {"baggage": "task.id=\udcff"})
    assert not_utf8.task_id == "\ufffd"
