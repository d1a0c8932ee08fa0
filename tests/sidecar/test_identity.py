"""The rollout id comes from path, header, baggage, trace id, in this order; traceparent places the span."""

import pytest

from sidecar.identity import Target, identify, parse_baggage, split_target

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("raw", "target"),
    [
        ("/v1/chat/completions", Target("/v1/chat/completions", None, 0)),
        ("/rollout/r1/v1/chat/completions?x=%2F", Target("/v1/chat/completions?x=%2F", "r1", 0)),
        ("/rollout/r1/attempt/3/v1/models", Target("/v1/models", "r1", 3)),
        ("/rollout/a%2Fb/v1/models", Target("/v1/models", "a/b", 0)),
        ("/rollout/r1/other", Target("/rollout/r1/other", None, 0)),
        ("/rollout/r1/v1", Target("/v1", "r1", 0)),
        ("/rollout/r%0a1/v1/models", None),
        ("/rollout/%20/v1/models", None),
    ],
)
def test_rollout_prefix_is_taken_off_the_path(raw: str, target: Target | None) -> None:
    assert split_target(raw) == target


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
