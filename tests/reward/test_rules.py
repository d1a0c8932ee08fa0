"""Rules over a real collector: what they give on spans as frameworks send them, and whose each thing is."""

import json
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from framework_captures import CAPTURES, Capture, load
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from recorded_rollout import Recorder
from reward_collector import Collector, apply, given, scores, store, written

from reward.rules.run import apply_rules
from tracegrad import names
from tracegrad.errors import TracegradError
from tracegrad.settings import Settings

SECOND = 1_000_000_000
TOOL = {names.OPERATION_NAME: "execute_tool"}
NAME, CALL_ID, ARGUMENTS = "gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.tool.call.arguments"
DEFINITIONS = json.dumps(
    [{"type": "function", "name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}]
)
ONE_RULE = "[rules.answer_truncated]\nweight = -0.5\n"

needs_captures = pytest.mark.skipif(
    not CAPTURES.is_dir(), reason="needs ../shared/fixtures/framework_captures, what frameworks really sent"
)


def said(*parts: dict[str, Any]) -> str:
    return json.dumps([{"role": "assistant", "parts": parts, "finish_reason": "stop"}])


def asks(call_id: str, arguments: Any, name: str = "weather") -> dict[str, Any]:
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}


def failed(span: Span, error_type: str = "") -> Span:
    span.status.code = Status.STATUS_CODE_ERROR
    if error_type:
        span.attributes.append(KeyValue(key=names.ERROR_TYPE, value={"string_value": error_type}))
    return span


async def test_every_rule_on_what_sidecar_and_tracer_send(settings: Settings, recorder: Recorder, rules: Any) -> None:
    agent = recorder.agent("writer", recorder.root.span_id)
    asking = recorder.call(
        agent.span_id,
        OUTPUT_MESSAGES=said(asks("1", {"city": "Paris"}), asks("2", {"city": 3}), asks("3", '{"city": "Pa')),
        TOOL_DEFINITIONS=DEFINITIONS,
        INPUT_TOKENS=1000,
        OUTPUT_TOKENS=500,
    )
    cut = recorder.call(agent.span_id, FINISH_REASONS=["length"])
    words = "This model's maximum context length is 512 tokens. However, your prompt contains 600 input tokens."
    refused = failed(
        recorder.call(
            agent.span_id,
            TRAINABLE=False,
            ERROR_TYPE="400",
            FINISH_REASONS=None,
            OUTPUT_MESSAGES=None,
            PROMPT_TOKEN_IDS=None,
            RESPONSE_TOKEN_IDS=None,
            RESPONSE_LOGPROBS=None,
        )
    )
    refused.status.message = words
    first = failed(
        recorder.plain("tool", agent.span_id, TOOL | {NAME: "weather", CALL_ID: "1"}, at=range(10, 20)), "TimeoutError"
    )
    second = recorder.plain("tool", agent.span_id, TOOL | {NAME: "weather", CALL_ID: "1"}, at=range(30, 40))
    root = recorder.root_span()
    root.end_time_unix_nano = recorder.start + 7 * SECOND
    recorder.send(agent, asking, cut, refused, first, second, root)

    evaluated = await apply(
        settings,
        recorder,
        rules(
            """
            [rules]
            version = "1"
            [rules.tool_failed]
            weight = -0.1
            [rules.tool_retried]
            weight = -0.2
            [rules.invalid_tool_arguments]
            weight = -1
            [rules.malformed_tool_call]
            weight = -3
            [rules.answer_truncated]
            weight = -0.5
            [rules.context_overflow]
            weight = -0.25
            [rules.latency]
            weight = -0.01
            above_s = 5
            [rules.cost]
            weight = -1
            input_per_million = 1
            output_per_million = 2
            """
        ),
    )

    call, tokens = asking.span_id.hex(), (3 + 2 * 2) / 1e6  # of the recorder's calls without usage
    expected = {
        (first.span_id.hex(), "rule.tool_failed"): -0.1,
        (second.span_id.hex(), "rule.tool_retried"): -0.2,
        (call, "rule.invalid_tool_arguments"): -2.0,
        (call, "rule.malformed_tool_call"): -3.0,
        (cut.span_id.hex(), "rule.answer_truncated"): -0.5,
        (refused.span_id.hex(), "rule.context_overflow"): -0.25,
        (recorder.root.span_id.hex(), "rule.latency"): -0.02,
        (call, "rule.cost"): -0.002,
        (cut.span_id.hex(), "rule.cost"): -tokens,
    }
    assert scores(settings, recorder) == pytest.approx(expected)
    found = given(settings, recorder.rollout_id)
    assert {row["source"] for row in found.values()} == {"tracegrad.reward.rules"}
    assert found[call, "rule.invalid_tool_arguments"]["explanation"].split("; ") == [
        "arguments of weather: $.city: 3 is not of type 'string'",
        'arguments of weather: no JSON object: \'{"city": "Pa\'',
    ]
    assert found[first.span_id.hex(), "rule.tool_failed"]["explanation"] == "tool weather failed with TimeoutError"
    assert found[first.span_id.hex(), "rule.tool_failed"]["label"] == "tool_failed"
    assert words in found[refused.span_id.hex(), "rule.context_overflow"]["explanation"]
    told = evaluated.as_json()
    assert (told["judged"], told["written"]) == (1, 9)
    assert told["rules"]["rule.cost"] == pytest.approx(
        {"times": 2, "sum": -0.002 - tokens, "written": 2, "withdrawn": 0}
    )


def as_tool_errors(capture: Capture) -> list[Span]:
    """Two runs of each tool of a capture: the first fails as OpenTelemetry records it, the second is as it was sent."""
    spans = []
    for _, span in capture.spans:
        told = {pair.key: pair.value.string_value for pair in span.attributes}
        if told.get(names.OPERATION_NAME) == "execute_tool" or told.get("openinference.span.kind") == "TOOL":
            before = Span()
            before.CopyFrom(span)
            before.span_id = secrets.token_bytes(8)
            before.start_time_unix_nano, before.end_time_unix_nano = (
                span.start_time_unix_nano - 2000,
                span.start_time_unix_nano - 1000,
            )
            spans.append(failed(before, "RuntimeError"))
    return spans


@needs_captures
@pytest.mark.parametrize(
    ("framework", "n_tools"), [("lc", 9), ("oaa", 7), ("crew", 2), ("as", 3), ("ag", 2), ("maf", 10)]
)
async def test_tools_of_frameworks(
    settings: Settings, recorder: Recorder, rules: Any, framework: str, n_tools: int
) -> None:
    """A repeated run is told by its arguments, which spans of AutoGen and Microsoft do not tell."""
    capture = load(framework)
    recorder.rollout_id = capture.rollout_id
    before = as_tool_errors(capture)
    assert len(before) == n_tools
    root = recorder.root_span()
    root.trace_id = capture.spans[0][1].trace_id
    recorder.send(*(span for _, span in capture.spans), *before, root)
    evaluated = await apply(
        settings, recorder, rules("[rules.tool_failed]\nweight = -1\n[rules.tool_retried]\nweight = -1")
    )
    assert evaluated.rules["rule.tool_failed"].times == n_tools
    assert evaluated.rules["rule.tool_retried"].times == (0 if framework in ("ag", "maf") else n_tools)
    found = given(settings, capture.rollout_id)
    assert {span_id for span_id, name in found if name == "rule.tool_failed"} == {span.span_id.hex() for span in before}
    assert all("failed with RuntimeError" in row["explanation"] for (_, name), row in found.items() if "failed" in name)


@needs_captures
async def test_agents_and_tools_restrict_a_rule(settings: Settings, recorder: Recorder, rules: Any) -> None:
    capture = load("lc")
    recorder.rollout_id = capture.rollout_id
    root = recorder.root_span()
    root.trace_id = capture.spans[0][1].trace_id
    recorder.send(*(span for _, span in capture.spans), *as_tool_errors(capture), root)
    text = """
    [rules.tool_failed]
    weight = -1
    {}
    [rules.latency]
    weight = -1
    of = "call"
    agents = ["research.*"]
    """
    for restriction, times in (('agents = ["writer"]', 4), ('tools = ["get_.*"]', 5), ('agents = ["w"]', 0)):
        evaluated = await apply(settings, recorder, rules(text.format(restriction)))
        assert evaluated.rules["rule.tool_failed"].times == times
    found = given(settings, capture.rollout_id)
    judged = {span_id for span_id, name in found if name == "rule.latency"}
    assert judged == {span_id for span_id, agent in capture.agents.items() if agent == "researcher"}


async def test_each_choice_pays_its_own_tokens_and_its_share_of_the_prompt(
    settings: Settings, recorder: Recorder, rules: Any
) -> None:
    whole = recorder.call(TRAINABLE=None, INPUT_TOKENS=900, OUTPUT_TOKENS=4, TOOL_DEFINITIONS=DEFINITIONS)
    wrong = said(asks("1", {"city": 3}))
    choices = [recorder.call(whole.span_id, CHOICE_INDEX=index, OUTPUT_MESSAGES=wrong) for index in range(3)]
    recorder.send(whole, *choices, recorder.root_span())
    text = "[rules.cost]\nweight = -1e6\ninput_per_million = 1\noutput_per_million = 10\n"
    await apply(settings, recorder, rules(text + "[rules.invalid_tool_arguments]\nweight = -1"))
    expected = {(choice.span_id.hex(), "rule.cost"): -320.0 for choice in choices}
    expected |= {(choice.span_id.hex(), "rule.invalid_tool_arguments"): -1.0 for choice in choices}
    assert scores(settings, recorder) == pytest.approx(expected)


async def test_the_tools_of_a_call_that_extends_another_are_the_earlier_ones(
    settings: Settings, recorder: Recorder, rules: Any
) -> None:
    first = recorder.call(TOOL_DEFINITIONS=DEFINITIONS)
    more = {"EXTENDS_ROOT": first.span_id.hex(), "EXTENDS_TOOLS": True, "PROMPT_LENGTH": 9}
    second = recorder.call(EXTENDS_SPAN_ID=first.span_id.hex(), EXTENDS_DEPTH=1, **more)
    wrong = said(asks("1", {"city": 3}))
    third = recorder.call(EXTENDS_SPAN_ID=second.span_id.hex(), EXTENDS_DEPTH=2, OUTPUT_MESSAGES=wrong, **more)
    other = recorder.call(OUTPUT_MESSAGES=wrong)  # was offered nothing that is known
    recorder.send(first, second, third, other, recorder.root_span())
    await apply(settings, recorder, rules("[rules.invalid_tool_arguments]\nweight = -1"))
    assert scores(settings, recorder) == {(third.span_id.hex(), "rule.invalid_tool_arguments"): -1.0}


async def test_attempts_in_one_trace_keep_what_is_theirs(settings: Settings, recorder: Recorder, rules: Any) -> None:
    parent = recorder.plain("agent's own root", b"")
    calls = [
        recorder.call(parent.span_id, attempt, OUTPUT_MESSAGES=said(asks(f"call-{attempt}", {}))) for attempt in (0, 1)
    ]
    tools = [
        failed(recorder.plain("tool", parent.span_id, TOOL | {NAME: "weather", CALL_ID: f"call-{attempt}"}))
        for attempt in (0, 1)
    ]
    nobodys = failed(recorder.plain("tool", parent.span_id, TOOL | {NAME: "weather"}))
    roots = [recorder.root_span(), recorder.root_span(attempt=1)]
    roots[1].span_id = secrets.token_bytes(8)
    recorder.send(parent, *calls, *tools, nobodys, *roots)
    evaluated = await apply(settings, recorder, rules("[rules.tool_failed]\nweight = -1"))
    assert evaluated.judged == 2
    found = given(settings, recorder.rollout_id)
    assert {(row["span_id"], row["attempt"]) for row in found.values()} == {
        (tool.span_id.hex(), attempt) for attempt, tool in enumerate(tools)
    }


def faulty(settings: Settings, recorder: Recorder) -> set[str]:
    """Span ids of the calls of which the store says that they hold a malformed tool call."""
    found = "has(answer_faults, 'malformed_tool_call')"
    query = f"SELECT span_id FROM llm_calls WHERE rollout_id = {{rollout:String}} AND {found}"
    rows = store(settings.clickhouse).query(query, parameters={"rollout": recorder.rollout_id}).result_rows
    return {span_id for (span_id,) in rows}


async def test_what_is_malformed_is_what_the_store_calls_so(settings: Settings, recorder: Recorder, rules: Any) -> None:
    written_as = [{}, {"city": 1}, [], "", None, 3, "{", '{"city": 1}', "[]", "3"]
    calls = [recorder.call(OUTPUT_MESSAGES=said(asks("1", arguments))) for arguments in written_as]
    recorder.send(*calls, recorder.root_span())
    evaluated = await apply(settings, recorder, rules("[rules.malformed_tool_call]\nweight = -1"))
    assert {span_id for span_id, _ in scores(settings, recorder)} == faulty(settings, recorder)
    assert evaluated.rules["rule.malformed_tool_call"].times == 7


async def test_markup_that_stayed_text_is_malformed(settings: Settings, recorder: Recorder, rules: Any) -> None:
    texts = ["<tool_call>{", "{}</tool_call>", "no <tool>"]
    calls = [recorder.call(OUTPUT_MESSAGES=said({"type": "text", "content": text})) for text in texts]
    recorder.send(*calls, recorder.root_span())
    await apply(settings, recorder, rules("[rules.malformed_tool_call]\nweight = -1"))
    found = {span_id for span_id, _ in scores(settings, recorder)}
    assert found == {call.span_id.hex() for call in calls[:2]}
    assert found == faulty(settings, recorder)


@pytest.fixture
def own_module(tmp_path: Path) -> Iterator[str]:
    """A module beside the rules, with functions of a user's."""
    name = f"own_rules_{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(
        "from reward.rules import Finding\n"
        "def wordy(attempt):\n"
        "    for call in attempt.calls:\n"
        "        yield Finding(call.span.span_id, call.output_tokens / 2, f'{call.output_tokens} tokens')\n"
        "def whole(attempt):\n"
        "    yield '', 3, attempt.status\n"
        "def breaks(attempt):\n"
        "    yield '', 1, 'x'\n"
        "    raise KeyError('no such thing')\n"
    )
    yield name
    sys.modules.pop(name, None)


async def test_a_rule_of_ones_own(settings: Settings, recorder: Recorder, rules: Any, own_module: str) -> None:
    call = recorder.call()
    recorder.send(call, recorder.root_span())
    text = "[rules.{0}]\nweight = 0.5\nfunction = '{1}:{0}'\n"
    await apply(settings, recorder, rules(text.format("wordy", own_module) + text.format("whole", own_module)))
    assert scores(settings, recorder) == {
        (call.span_id.hex(), "rule.wordy"): 0.5,
        (recorder.root.span_id.hex(), "rule.whole"): 1.5,
    }
    with pytest.raises(TracegradError, match=f"rule breaks failed on rollout {recorder.rollout_id}: KeyError"):
        await apply(settings, recorder, rules(text.format("breaks", own_module)))
    assert written(settings, recorder) == 2


async def test_many_attempts_are_read_in_several_queries(
    settings: Settings, rules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reward.rules.reading.CHARACTERS_A_QUERY", 60)
    monkeypatch.setattr("reward.rules.run.HELD", 3)
    began = time.time_ns() + 3600 * SECOND  # later than all that other tests record
    recorders = [Recorder(Collector(settings), start=began) for _ in range(8)]
    for recorder in recorders:
        recorder.send(recorder.call(FINISH_REASONS=["length"]), recorder.root_span())
    evaluated = await apply_rules(settings, rules(ONE_RULE), since_ns=began)
    assert (evaluated.judged, evaluated.written) == (8, 8)
    for recorder in recorders:
        assert list(scores(settings, recorder).values()) == [-0.5]
