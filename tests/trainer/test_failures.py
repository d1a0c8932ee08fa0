"""What went wrong in rollouts and calls is told by their spans; each job chooses what becomes of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from tracegrad.errors import SettingsError
from trainer import config
from trainer.choices import ErrorType
from trainer.config import DataConfig
from trainer.failures import DEFAULTS, OF_ROLLOUTS, FailurePolicy, errors_of_call, errors_of_rollout, overflowed
from trainer.spans import Span
from trainer.transitions import Call

MakeCall = Callable[..., Call]
TOO_LONG = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"


def span(span_id: str, **changes: Any) -> Span:
    values: dict[str, Any] = {
        "trace_id": "ab" * 16,
        "span_id": span_id,
        "parent_span_id": "root",
        "name": span_id,
        "agent": "",
        "is_tool": False,
        "tool_name": "",
        "tool_call_id": "",
        "started_ns": 1,
        "ended_ns": 2,
        "status_code": "Unset",
        "error_type": "",
        "http_status": 0,
    }
    return Span(**values | changes)


def failed_call(make_call: MakeCall, span_id: str, started_ns: int, error_type: str) -> Call:
    return make_call(span_id, started_ns, trainable=False, untrainable_reason="error", error_type=error_type)


@pytest.mark.parametrize(
    ("status", "error_type", "expected"),
    [
        ("succeeded", "", None),
        ("failed", "exit_code", "exception"),
        ("failed", "signal", "exception"),
        ("failed", "interrupted", "cancelled"),
        ("failed", "spawn", "cancelled"),
        ("timeout", "timeout", "timeout"),
        ("lost", "", "lost"),
        ("running", "", None),
    ],
)
def test_the_launcher_says_how_a_rollout_ended(status: str, error_type: str, expected: ErrorType | None) -> None:
    assert errors_of_rollout(status, error_type, [], []) == expected


@pytest.mark.parametrize(
    ("error_type", "expected"),
    [
        ("upstream_unreachable", "upstream_error"),
        ("upstream_died", "upstream_error"),
        ("timeout", "upstream_error"),
        ("shutdown", "upstream_error"),
        ("500", "upstream_error"),
        ("503", "upstream_error"),
        ("429", "upstream_error"),
        ("401", "upstream_error"),
        ("400", "exception"),
        ("422", "exception"),
        ("internal_error", "exception"),
    ],
)
def test_a_rollout_that_ends_with_an_upstreams_error_is_not_its_own_fault(
    make_call: MakeCall, error_type: str, expected: ErrorType
) -> None:
    calls = [make_call("a", 1), failed_call(make_call, "b", 2, error_type)]
    assert errors_of_rollout("failed", "exit_code", calls, []) == expected
    assert errors_of_rollout("failed", "exit_code", calls[::-1], []) == expected
    assert errors_of_rollout("succeeded", "", calls, []) is None
    assert errors_of_rollout("failed", "interrupted", calls, []) == "cancelled"
    went_on = [*calls, make_call("c", 3)]
    assert errors_of_rollout("failed", "exit_code", went_on, []) == "exception", "the agent had got over it"


def test_a_server_that_answers_500_for_a_prompt_that_is_too_long_is_not_at_fault(make_call: MakeCall) -> None:
    call = failed_call(make_call, "b", 2, "500")
    refused = span("b", status_code="Error", error_type="500", http_status=500, error_message=TOO_LONG)
    assert errors_of_rollout("failed", "exit_code", [call], [refused]) == "exception"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"status_code": "Error"}, "exception"),
        ({"error_type": "ValueError"}, "exception"),
        ({"error_type": "asyncio.TimeoutError"}, "timeout"),
        ({"error_type": "CancelledError"}, "cancelled"),
        ({"error_type": "KeyboardInterrupt"}, "cancelled"),
    ],
)
def test_without_a_launcher_the_topmost_span_says_it(
    make_call: MakeCall, changes: dict[str, Any], expected: ErrorType | None
) -> None:
    call = make_call("call", 1)
    of_call = span("call", parent_span_id="tool", status_code="Error", error_type="500")
    spans = [span("agent", parent_span_id="", **changes), span("tool", parent_span_id="agent", error_type="E"), of_call]
    assert errors_of_rollout("running", "", [call], spans) == expected
    alone = [span("call", parent_span_id="", status_code="Error", error_type="500")]
    assert errors_of_rollout("running", "", [call], alone) is None, "a call's failure is not its agent's"


@pytest.mark.parametrize(
    ("changes", "tools", "expected"),
    [
        ({}, [], ()),
        ({"finish_reason": "stop"}, [span("t", is_tool=True)], ()),
        ({"finish_reason": "length"}, [], ("truncation",)),
        ({"finish_reason": "max_output_tokens"}, [], ("truncation",)),
        ({"finish_reason": "MAX_TOKENS"}, [], ("truncation",)),
        ({"finish_reason": "model_context_window_exceeded"}, [], ("context_overflow",)),
        ({"answer_faults": ("refusal",)}, [], ("refusal",)),
        ({"answer_faults": ("malformed_tool_call",)}, [], ("malformed_tool_call",)),
        ({}, [span("t"), span("u", status_code="Error")], ("tool_error",)),
        ({}, [span("u", error_type="ToolException")], ("tool_error",)),
        (
            {"answer_faults": ("refusal", "malformed_tool_call"), "finish_reason": "length"},
            [span("u", error_type="ToolException")],
            ("tool_error", "malformed_tool_call", "truncation", "refusal"),
        ),
    ],
)
def test_errors_of_a_call(
    make_call: MakeCall, changes: dict[str, Any], tools: list[Span], expected: tuple[ErrorType, ...]
) -> None:
    assert errors_of_call(make_call("a", 1, **changes), tools) == expected


def test_a_full_context_is_of_the_call_before_the_refused_request(make_call: MakeCall) -> None:
    calls = [
        make_call("a", 1),
        make_call("b", 2),
        make_call("other", 3, agent="other"),
        failed_call(make_call, "refused", 4, "400"),
        failed_call(make_call, "again", 5, "400"),
        make_call("c", 6),
    ]
    spans = [span(one, status_code="Error", http_status=400, error_message=TOO_LONG) for one in ("refused", "again")]
    assert overflowed(calls, spans) == {"b"}
    assert overflowed(calls[::-1], spans) == {"b"}
    assert overflowed(calls[3:], spans) == frozenset(), "the first prompt was too long: no call led to it"
    unlike = [span("refused", status_code="Error", http_status=400, error_message="no such tool")]
    assert overflowed(calls, unlike) == frozenset()
    assert errors_of_call(calls[1], [], context_full=True) == ("context_overflow",)


def test_every_type_has_a_default() -> None:
    assert set(DEFAULTS) == set(get_args(ErrorType))
    policy = FailurePolicy.from_config(DataConfig())
    assert {error: policy.of(error) for error in get_args(ErrorType)} == DEFAULTS


def test_a_word_is_for_errors_that_end_a_rollout_and_a_table_for_what_it_names() -> None:
    word = FailurePolicy.from_config(DataConfig(on_failure="mask"))
    assert {error for error in get_args(ErrorType) if word.of(error) == "mask"} == set(OF_ROLLOUTS)
    assert word.of("truncation") == "keep"
    table = FailurePolicy.from_config(DataConfig(on_failure={"truncation": "drop", "lost": "keep"}))
    changed = {error: table.of(error) for error in get_args(ErrorType) if table.of(error) != DEFAULTS[error]}
    assert changed == {"truncation": "drop", "lost": "keep"}


def test_of_several_errors_the_strictest_action_decides() -> None:
    chosen: dict[ErrorType, Any] = {"truncation": "penalize", "tool_error": "mask", "refusal": "drop"}
    policy = FailurePolicy.from_config(DataConfig(on_failure=chosen))
    assert policy.strictest([]) == (None, "keep")
    assert policy.strictest(["truncation"]) == ("truncation", "penalize")
    assert policy.strictest(["truncation", "tool_error"]) == ("tool_error", "mask")
    assert policy.strictest(["truncation", "refusal", "tool_error"]) == ("refusal", "drop")


@pytest.mark.parametrize("given", ["ignore", {"boredom": "drop"}, {"timeout": "ignore"}])
def test_other_words_are_refused(given: Any, tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    value = f'"{given}"' if isinstance(given, str) else str(given).replace("'", '"').replace(":", " =")
    file.write_text(f'[data]\non_failure = {value}\n[engine]\nmodel = "m"\n')
    with pytest.raises(SettingsError, match=r"bad setting data\.on_failure"):
        config.load(file)
