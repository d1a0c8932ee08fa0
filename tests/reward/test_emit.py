"""`reward.emit` from anybody's code: one OTLP log record, acknowledged, or an error that says what to do."""

from typing import Any

import pytest
from stand_ins import ReceivedLog, otlp_receiver

import reward
from tracegrad.errors import UnreachableError

TRACE, SPAN = "ab" * 16, "cd" * 8


def test_a_span_and_a_rollout_can_be_rewarded(monkeypatch: pytest.MonkeyPatch) -> None:
    with otlp_receiver() as receiver:
        monkeypatch.setenv("TRACEGRAD_OTLP", receiver.url)
        reward.emit("helpful", 0.25, trace_id=TRACE, span_id=SPAN, label="meh", explanation="too long", source="judge")
        reward.emit("done", 1, rollout_id="r1", attempt=2, endpoint=receiver.url + "/")
    judged, whole = receiver.logs
    assert judged == ReceivedLog(
        TRACE,
        SPAN,
        "gen_ai.evaluation.result",
        "judge",
        {
            "gen_ai.evaluation.name": "helpful",
            "gen_ai.evaluation.score.value": 0.25,
            "gen_ai.evaluation.score.label": "meh",
            "gen_ai.evaluation.explanation": "too long",
        },
    )
    assert (whole.trace_id, whole.span_id, whole.service) == ("", "", "reward.emit")
    assert whole.attributes == {
        "gen_ai.evaluation.name": "done",
        "gen_ai.evaluation.score.value": 1.0,
        "tracegrad.rollout.id": "r1",
        "tracegrad.rollout.attempt": 2,
    }


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"score": 1.0}, "say what is judged"),
        ({"score": 1.0, "trace_id": TRACE}, "together"),
        ({"score": 1.0, "trace_id": TRACE, "span_id": "xyz"}, "hexadecimal"),
        ({"score": 1.0, "trace_id": TRACE, "span_id": "ab"}, "16"),
        ({"score": float("nan"), "rollout_id": "r"}, "finite"),
        ({"score": -1.1e30, "rollout_id": "r"}, "no score beyond 1e\\+30 counts"),
        ({"score": 1.0, "rollout_id": "r", "name": ""}, "needs a name"),
    ],
)
def test_what_is_unclear_is_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        reward.emit(**({"name": "x"} | arguments))


def test_a_reward_that_is_not_taken_is_an_error(free_port: Any) -> None:
    with pytest.raises(UnreachableError, match="no collector at"):
        reward.emit("x", 1, rollout_id="r", endpoint=f"http://127.0.0.1:{free_port()}")
    with otlp_receiver() as receiver, pytest.raises(UnreachableError, match=r"refused the reward \(status 400\)"):
        receiver.answer = 400
        reward.emit("x", 1, rollout_id="r", endpoint=receiver.url)
