"""Each rule on facts, without a store: what it finds, on which span, and what it leaves alone."""

from collections.abc import Sequence
from typing import Any

import pytest

from reward.rules import Attempt, Call, Finding, Span, Tool, ToolCall
from reward.rules.arguments import ArgumentSchema, schemas
from reward.rules.calls import answer_truncated, context_overflow, invalid_tool_arguments, malformed_tool_call
from reward.rules.rule import Rule
from reward.rules.settings import AgentSettings, CostSettings, LatencySettings, ToolSettings
from reward.rules.spending import cost, latency
from reward.rules.tools import tool_failed, tool_retried
from tracegrad.context_overflow import is_context_overflow
from tracegrad.errors import TracegradError

SECOND = 1_000_000_000
TOOLS, CALLS = ToolSettings(weight=1.0), AgentSettings(weight=1.0)


def span(span_id: str, start: float = 0, end: float = 1, **changes: Any) -> Span:
    told: dict[str, Any] = {"parent_span_id": "", "name": "x", "service": "agent", "agent": "", "status_code": "Unset"}
    told |= {"trace_id": "ab" * 16, "span_id": span_id, "error_type": ""}
    return Span(**told | {"started_ns": int(start * SECOND), "ended_ns": int(end * SECOND)} | changes)


def tool(span_id: str, start: float = 0, end: float = 1, *, failed: bool = False, **changes: Any) -> Tool:
    own = span(span_id, start, end, status_code="Error" if failed else "Ok")
    told: dict[str, Any] = {"name": "search", "call_id": "", "arguments": "{}", "agent": "writer", "agent_span_id": "a"}
    return Tool(own, **told | changes)


def call(span_id: str, *tool_calls: ToolCall, of: Span | None = None, **changes: Any) -> Call:
    told: dict[str, Any] = {"agent": "writer", "policy": "policy", "model": "m", "finish_reason": "stop"}
    told |= {"message": "", "input_tokens": 10.0, "output_tokens": 5, "unparsed": False}
    return Call(of or span(span_id), tool_calls=tool_calls, **told | changes)


def attempt(calls: Sequence[Call] = (), tools: Sequence[Tool] = (), seconds: float = 9) -> Attempt:
    spans = {one.span.span_id: one.span for one in (*calls, *tools)}
    ended = int(seconds * SECOND)
    return Attempt("r1", 0, "t", "ab" * 16, "root", "succeeded", "", 0, ended, calls, tools, spans)


def judged(found: Any) -> list[tuple[str, float]]:
    return [(span_id, amount) for span_id, amount, _ in found]


def test_a_tool_that_failed() -> None:
    typed = tool("t3")
    typed = Tool(span("t3", error_type="ValueError"), *[getattr(typed, name) for name in typed.__slots__[1:]])
    found = list(tool_failed(attempt(tools=[tool("t1"), tool("t2", failed=True), typed]), TOOLS))
    assert judged(found) == [("t2", 1.0), ("t3", 1.0)]
    assert found[1].explanation == "tool search failed with ValueError"


@pytest.mark.parametrize(
    ("second", "is_retry"),
    [
        ({}, True),
        ({"name": "read"}, False),
        ({"arguments": '{"q":1}'}, False),
        ({"arguments": None}, False),
        ({"agent_span_id": "b"}, False),
        ({"start": 0.5}, False),  # side by side with what failed
    ],
)
def test_a_tool_that_was_run_again(second: dict[str, Any], is_retry: bool) -> None:
    runs = [tool("t1", 0, 1, failed=True), tool("t2", **{"start": 2, "end": 3} | second)]
    assert judged(tool_retried(attempt(tools=runs), TOOLS)) == ([("t2", 1.0)] if is_retry else [])


def test_only_the_run_before_counts() -> None:
    runs = [tool("t1", 0, 1, failed=True), tool("t2", 2, 2, failed=True), tool("t3", 3, 4), tool("t4", 5, 6)]
    assert judged(tool_retried(attempt(tools=runs), TOOLS)) == [("t2", 1.0), ("t3", 1.0)]


def test_a_tool_that_takes_no_time_is_not_its_own_predecessor() -> None:
    assert judged(tool_retried(attempt(tools=[tool("t1", 1, 1, failed=True)]), TOOLS)) == []


SCHEMA = ArgumentSchema({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})


@pytest.mark.parametrize(
    ("arguments", "schema", "invalid", "malformed"),
    [
        ({"city": "Paris"}, SCHEMA, False, False),
        ({"city": 3}, SCHEMA, True, False),
        ({}, SCHEMA, True, False),
        ("", None, True, True),
        (None, None, True, True),
        ('{"city": "Paris"}', SCHEMA, False, False),
        ('{"city": 3}', SCHEMA, True, False),
        ('{"city": "Par', SCHEMA, True, True),
        (["Paris"], None, True, True),
        (3, SCHEMA, True, True),
        ({"city": 3}, None, False, False),
        ({"city": 3}, ArgumentSchema({"type": "no such type"}), False, False),
        ({"city": 3}, ArgumentSchema({"$ref": "http://127.0.0.1:9/schema.json"}), False, False),
        ({"city": 3}, ArgumentSchema({"$ref": "#"}), False, False),
        ({"city": "x"}, ArgumentSchema({"properties": {"city": {"pattern": "("}}}), False, False),
    ],
)
def test_arguments(arguments: Any, schema: ArgumentSchema | None, invalid: bool, malformed: bool) -> None:
    of = attempt([call("c1", ToolCall("1", "weather", arguments, schema))])
    assert judged(invalid_tool_arguments(of, TOOLS)) == ([("c1", 1.0)] if invalid else [])
    assert judged(malformed_tool_call(of, TOOLS)) == ([("c1", 1.0)] if malformed else [])


def test_arguments_are_explained() -> None:
    of = attempt([call("c1", ToolCall("1", "weather", {"city": 3}, SCHEMA), ToolCall("2", "weather", "{", SCHEMA))])
    assert [found.explanation for found in invalid_tool_arguments(of, TOOLS)] == [
        "arguments of weather: $.city: 3 is not of type 'string'",
        "arguments of weather: no JSON object: '{'",
    ]


def test_markup_left_as_text_is_malformed() -> None:
    assert judged(malformed_tool_call(attempt([call("c1", unparsed=True), call("c2")]), TOOLS)) == [("c1", 1.0)]


@pytest.mark.parametrize(
    ("definitions", "names"),
    [
        (
            '[{"type":"function","name":"a","parameters":{}},{"name":"b"},{"name":"c","parameters":{"type":"object"}}]',
            "ac",
        ),
        ('[{"type":"function","function":{"name":"a","parameters":{}}}]', "a"),
        ('[1,null,{"name":3,"parameters":{}}]', ""),
        ("{}", ""),
        ("{", ""),
    ],
)
def test_schemas_in_definitions(definitions: str, names: str) -> None:
    assert schemas(definitions).keys() == set(names)


def test_an_answer_that_was_cut_off() -> None:
    found = list(answer_truncated(attempt([call("c1", finish_reason="length"), call("c2"), call("c3")]), CALLS))
    assert found == [Finding("c1", 1.0, "the answer was cut off after 5 tokens")]


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 512 tokens. However, you requested 500 output tokens and your prompt "
        "contains at least 13 input tokens, for a total of at least 513 tokens. Please reduce the length of the input.",
        "Input length (600) exceeds model's maximum context length (512).",
        "The decoder prompt (length 600) is longer than the maximum model length of 512.",
        "The input (600 tokens) is longer than the model's context length (512 tokens).",
        "Requested token count exceeds the model's maximum context length of 512 tokens.",
        "the request exceeds the available context size, try increasing it",
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 100 `max_new_tokens`",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 190000 + 21333 > 200000",
        "The input token count (40000) exceeds the maximum number of tokens allowed (32768).",
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        "Input is too long for requested model.",
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000.",
    ],
)
def test_a_context_that_was_too_small(message: str) -> None:
    assert is_context_overflow(message)
    refused = call("c1", of=span("c1", error_type="400", status_code="Error"), message=message)
    assert judged(context_overflow(attempt([refused]), CALLS)) == [("c1", 1.0)]
    assert judged(context_overflow(attempt([call("c1", message=message)]), CALLS)) == []


@pytest.mark.parametrize(
    "message",
    [
        "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000.",
        "Too many tokens, please wait before trying again.",
        "max_tokens is too large: 50000. This model supports at most 16384 completion tokens.",
        "The model `x` does not exist.",
        "upstream at http://127.0.0.1:8000 answered 502 Bad Gateway",
    ],
)
def test_other_refusals(message: str) -> None:
    assert not is_context_overflow(message)


def test_an_answer_that_ended_with_the_context() -> None:
    calls = [call("c1", finish_reason="model_context_window_exceeded"), call("c2", finish_reason="length")]
    assert judged(context_overflow(attempt(calls), CALLS)) == [("c1", 1.0)]


def test_latency_is_what_is_beyond() -> None:
    calls = [call("c1", of=span("c1", 0, 3)), call("c2", of=span("c2", 3, 9))]
    per_call = LatencySettings(weight=-1.0, above_s=5, of="call")
    found = list(latency(attempt(calls), per_call))
    assert found == [Finding("c2", 1.0, "the call took 6.000 s, 1.000 s beyond 5 s")]
    assert judged(latency(attempt(calls), LatencySettings(weight=-1.0, above_s=5))) == [("root", 4.0)]
    assert judged(latency(attempt(calls, seconds=5), LatencySettings(weight=-1.0, above_s=5))) == []


def test_cost_is_of_each_call() -> None:
    priced = CostSettings(weight=-1.0, input_per_million=0.15, output_per_million=0.6, models=["gpt-.*"])
    calls = [
        call("c1", model="gpt-4o", input_tokens=1_000_000.0, output_tokens=500_000),
        call("c2", model="gpt-4o", input_tokens=0.0, output_tokens=0),
        call("c3", model="other"),
    ]
    (found,) = cost(attempt(calls), priced)
    assert found.span_id == "c1"
    assert found.amount == pytest.approx(0.45)
    assert found.explanation == "1000000 tokens in and 500000 out cost 0.45"


def rule(find: Any, settings: Any = TOOLS) -> Rule:
    return Rule("own", "own", settings, "v", find)


def test_what_is_found_on_one_span_adds_up_and_the_cap_bounds_what_an_attempt_gets() -> None:
    calls = [call("c1", of=span("c1", 2, 3)), call("c2", of=span("c2", 1, 2)), call("c3", of=span("c3", 4, 5))]
    found = [("c1", 1, "a"), ("c1", 2, "b"), ("c2", 1, "c"), ("c3", 1, "d"), ("", 1, "e")]
    settings = ToolSettings(weight=-0.5, cap=1.5)
    rewards = rule(lambda _: found, settings).rewards(attempt(calls))
    assert [(one.span_id, one.score) for one in rewards] == [("root", -0.5), ("c2", -0.5), ("c1", -0.5), ("c3", 0.0)]
    assert rewards[2].explanation == "a; b (of -1.5, the cap of 1.5 leaves -0.5)"
    assert {(one.name, one.label, one.version) for one in rewards} == {("rule.own", "own", "v")}


def test_a_rule_sees_only_its_agents_and_tools() -> None:
    calls = [call("c1", ToolCall("1", "search", {}, None), ToolCall("2", "read", {}, None)), call("c2", agent="boss")]
    tools = [tool("t1"), tool("t2", name="read"), tool("t3", agent="boss")]
    seen: list[Attempt] = []

    def find(given: Attempt) -> list[Finding]:
        seen.append(given)
        return []

    settings = ToolSettings(weight=1.0, agents=["writ.*"], tools=["search"])
    rule(find, settings).rewards(attempt(calls, tools))
    assert [one.span.span_id for one in seen[0].calls] == ["c1"]
    assert [one.name for one in seen[0].calls[0].tool_calls] == ["search"]
    assert [one.span.span_id for one in seen[0].tools] == ["t1"]
    assert len(seen[0].spans) == 5


def test_names_need_not_be_patterns() -> None:
    tools = [tool("t1", name="c++"), tool("t2", name="c")]
    settings = ToolSettings(weight=1.0, tools=["c\\+\\+"])
    assert [one.name for one in attempt(tools=tools).restricted([], settings.tools).tools] == ["c++"]
    assert [one.name for one in attempt(tools=[tool("t1", name="a(b)")]).restricted([], ["a(b)"]).tools] == ["a(b)"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([("c9", 1, "x")], "rule own judged 'c9', no span of rollout r1"),
        ([("c1", float("nan"), "x")], "rule own gave nan on rollout r1: no finite number"),
        ([("c1", 1e308, "x"), ("c1", 1e308, "x")], "rule own gave inf on rollout r1: no score beyond 1e\\+30 counts"),
        ([("c1", 1)], "must yield span id, amount and explanation"),
        ([("c1", "much", "x")], "must yield span id, amount and explanation"),
        (None, "rule own failed on rollout r1: TypeError"),
    ],
)
def test_a_wrong_function_is_named(found: Any, said: str) -> None:
    with pytest.raises(TracegradError, match=said):
        rule(lambda _: found).rewards(attempt([call("c1")]))


def test_what_is_above_a_span_ends_where_parents_go_in_a_circle_or_are_missing() -> None:
    spans = {
        one.span_id: one
        for one in (span("a", parent_span_id="b"), span("b", parent_span_id="a"), span("c", parent_span_id="gone"))
    }
    of = Attempt("r", 0, "", "", "", "running", "", 0, 0, [], [], spans)
    assert [one.span_id for one in of.above("a")] == ["b"]
    assert [one.span_id for one in of.above("c")] == []
    assert [one.span_id for one in of.above("nobody")] == []
