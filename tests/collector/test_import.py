"""`tracegrad import` with a real collector: what foreign traces are in the store, once, and never to train on.

The traces are those of ../shared/fixtures/agent_traces, beside the checkout.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tracegrad.importing.foreign import span_id_of, trace_id_of
from trainer.chat_messages import chat_messages

TRACES = Path(__file__).parents[3] / "shared" / "fixtures" / "agent_traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="needs ../shared/fixtures/agent_traces beside the checkout")

LANGFUSE = sorted(TRACES.glob("langfuse/*.trace.json"))
NO_TRACE = TRACES / "openinference" / "vercel__v6-spans__capture-results.json"
"""A summary beside the captured spans: it holds no span."""
OTHERS = [*sorted(TRACES.glob("openinference/*.json")), *sorted(TRACES.glob("otlp_json/*.json"))]
ALL = [*LANGFUSE, *(file for file in OTHERS if file != NO_TRACE)]
WORKFLOW = "fee618f96dc31e0ca38b2f7b26eb8b29"
"""Of these a trace with an agent, a tool and scores."""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(collector: Any) -> Run:
    """Runs `tracegrad import` on this collector."""
    environment = os.environ | {"TRACEGRAD_OTLP": collector.otlp, "TRACEGRAD_CLICKHOUSE": collector.clickhouse}

    def imports(*arguments: object, **changed: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tracegrad", "import", *map(str, arguments)]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=120, env=environment | changed
        )

    return imports


@pytest.fixture(scope="module")
def imported(run: Run) -> Iterator[dict[str, Any]]:
    """All traces, once."""
    done = run("--json", *ALL)
    assert done.returncode == 0, done.stderr
    yield json.loads(done.stdout)


def rows(collector: Any, query: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in collector.sql(query + " FORMAT JSONEachRow").splitlines()]


def imported_span(span_id: str, trace_id: str) -> str:
    """The id that a span has in the store."""
    return span_id_of(span_id, trace_id).hex()


def calls(collector: Any, where: str = "1") -> list[dict[str, Any]]:
    return rows(
        collector,
        f"""
        SELECT calls.* FROM llm_calls AS calls INNER JOIN
        (SELECT DISTINCT TraceId, SpanId FROM otel_traces WHERE ScopeName = 'tracegrad.import') AS spans
            ON spans.TraceId = calls.trace_id AND spans.SpanId = calls.span_id
        WHERE {where}
        """,
    )


def test_every_file_is_imported(imported: dict[str, Any], collector: Any) -> None:
    assert imported["formats"] == {"langfuse": len(LANGFUSE), "openinference": 14, "otlp": 1}
    assert imported["silent_calls"] == 0
    found = rows(
        collector,
        "SELECT SpanAttributes['tracegrad.import.source'] AS source, uniqExact(TraceId, SpanId) AS spans,"
        " uniqExactIf((TraceId, SpanId), IsLlmCall) AS calls, uniqExact(RolloutId) AS rollouts FROM otel_traces"
        " WHERE ScopeName = 'tracegrad.import' GROUP BY source ORDER BY source",
    )
    # Some spans of the Vercel AI SDK are in two files.
    assert found == [
        {"source": "langfuse", "spans": 22, "calls": 6, "rollouts": 4},
        {"source": "openinference", "spans": 15, "calls": 8, "rollouts": 15},
        {"source": "otlp", "spans": 7, "calls": 1, "rollouts": 2},
    ]


def test_what_is_no_trace_is_refused_and_nothing_sent(run: Run, collector: Any) -> None:
    before = collector.sql("SELECT count() FROM otel_traces")
    done = run(ALL[0], NO_TRACE)
    assert done.returncode == 1
    assert done.stdout == ""
    assert NO_TRACE.name in done.stderr
    assert "neither OTLP JSON" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert collector.sql("SELECT count() FROM otel_traces") == before


def test_none_of_it_can_train(imported: dict[str, Any], collector: Any) -> None:
    for call in calls(collector):
        assert (call["policy"], call["policy_version"], call["trainable"]) == ("", None, False)
        assert call["untrainable_reason"] == "no_token_ids"
        assert call["prompt_token_ids"] == call["response_token_ids"] == call["logprobs"] == []
        assert call["rollout_id"] == call["trace_id"]
    imports = "(SELECT RolloutId FROM otel_traces WHERE ScopeName = 'tracegrad.import')"
    assert collector.sql(f"SELECT count() FROM transitions WHERE rollout_id IN {imports}") == "0"
    found = rows(collector, f"SELECT DISTINCT status, split, policies FROM rollouts WHERE rollout_id IN {imports}")
    assert found == [{"status": "succeeded", "split": "eval", "policies": []}]


def test_importing_again_doubles_nothing(imported: dict[str, Any], run: Run, collector: Any) -> None:
    queries = [
        "SELECT * FROM llm_calls ORDER BY trace_id, span_id",
        "SELECT * FROM rollouts ORDER BY rollout_id",
        "SELECT * FROM rewards ORDER BY rollout_id, name",
    ]
    before = [collector.sql(query) for query in queries]
    done = run("--json", *reversed(ALL))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == imported
    assert [collector.sql(query) for query in queries] == before


def test_agents_tools_and_scores(imported: dict[str, Any], collector: Any) -> None:
    trace, other = (trace_id_of(one).hex() for one in (WORKFLOW, "e1fde3efec57ce8a69bafd3fb928a7eb"))
    assert {call["agent"] for call in calls(collector, f"trace_id = '{trace}'")} == {"Hello world"}
    tools = rows(
        collector,
        "SELECT DISTINCT SpanName, SpanAttributes['gen_ai.tool.name'] AS tool,"
        " SpanAttributes['gen_ai.tool.call.id'] AS call"
        f" FROM otel_traces WHERE TraceId IN ('{trace}', '{other}')"
        " AND SpanAttributes['gen_ai.operation.name'] = 'execute_tool' ORDER BY SpanName",
    )
    assert tools == [
        {"SpanName": "Web-Search", "tool": "Web-Search", "call": "call_1oGK863sxQHlPreFhDdEs3yl"},
        {"SpanName": "get_weather", "tool": "get_weather", "call": ""},
    ]
    scores = rows(collector, f"SELECT span_id, name, score, at FROM rewards WHERE rollout_id = '{trace}' ORDER BY name")
    judged = imported_span("e5a76f27f51ad40e", WORKFLOW)
    assert scores == [
        {"span_id": judged, "name": "hallucination", "score": 0, "at": "2025-09-30 09:04:28.687000000"},
        {"span_id": judged, "name": "toxicity", "score": 0.8, "at": "2025-09-30 09:04:30.125000000"},
    ]


def test_the_tree_of_an_imported_rollout(imported: dict[str, Any], collector: Any) -> None:
    rollout = trace_id_of(WORKFLOW).hex()
    tree = rows(
        collector,
        "SELECT span_id, parent_span_id, agent, is_tool, tool_name, is_call FROM rollout_tree"
        f" WHERE rollout_id = '{rollout}' ORDER BY started_at, span_id",
    )
    workflow, agent, asking, ran, answering = (
        imported_span(one, WORKFLOW)
        for one in ("e5a76f27f51ad40e", "d950b668796240b5", "98870087af69bf06", "5b99c3e3411ed17b", "90d94774e8e3724d")
    )
    assert {row.pop("span_id"): list(row.values()) for row in tree} == {
        workflow: ["", "Agent workflow", False, "", False],
        agent: [workflow, "Hello world", False, "", False],
        asking: [agent, "", False, "", True],
        ran: [agent, "", True, "get_weather", False],
        answering: [agent, "", False, "", True],
    }
    had = rows(
        collector,
        "SELECT DISTINCT SpanAttributes['tracegrad.import.trace_id'] AS trace,"
        " SpanAttributes['tracegrad.import.span_id'] AS span"
        f" FROM otel_traces WHERE TraceId = '{rollout}' AND SpanId = '{ran}'",
    )
    assert had == [{"trace": WORKFLOW, "span": "5b99c3e3411ed17b"}]
    asked = rows(collector, f"SELECT tool_call_ids FROM llm_calls WHERE span_id = '{asking}'")
    assert asked == [{"tool_call_ids": ["call_Kud0j0DxWSmLzv9W5m6qVqXn"]}]


def test_a_trace_without_its_root_gets_one(run: Run, collector: Any, tmp_path: Path) -> None:
    trace, task = os.urandom(16).hex(), f"task-{os.urandom(4).hex()}"
    span = {"traceId": trace, "spanId": "00f067aa0ba902b7", "parentSpanId": "00f067aa0ba902b6", "name": "chat m"}
    span |= {"startTimeUnixNano": "1770091506000000000", "endTimeUnixNano": "1770091507000000000"}
    span["attributes"] = [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]
    file = tmp_path / "part.json"
    file.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}))
    assert run(file, "--task", task, "--rollout", f"r-{task}").returncode == 0
    (found,) = rows(
        collector, f"SELECT rollout_id, status, split, n_calls, task_id, reward FROM rollouts WHERE task_id = '{task}'"
    )
    assert found == {
        "rollout_id": f"r-{task}", "status": "succeeded", "split": "eval", "n_calls": 1, "task_id": task, "reward": None
    }  # fmt: skip


def test_a_dry_run_sends_nothing(run: Run) -> None:
    done = run("--dry-run", ALL[0], TRACEGRAD_OTLP="http://127.0.0.1:1")
    assert done.returncode == 0
    assert done.stdout.startswith("would import 1 traces with 2 spans (1 model calls")


# What the fixtures expect and llm_calls says otherwise, and why.
EXCEPTIONS = {
    # The page that made the expectations found no chat in a text; it is one message here.
    ("83517f9062f5ada4", "input"),
    ("83517f9062f5ada4", "output"),
    ("231c43964b7e7e63", "output"),
}
INSTRUCTED = {"90d94774e8e3724d", "98870087af69bf06"}
"""Their agent's instructions are beside the input, and the expectations leave them out; the model had them first."""


@pytest.mark.parametrize("file", LANGFUSE, ids=lambda file: file.name.partition(".")[0])
def test_langfuse_calls_say_what_langfuse_shows(file: Path, imported: dict[str, Any], collector: Any) -> None:
    expected = json.loads(file.with_name(file.name.replace(".trace.", ".chatml.")).read_text())
    shown = {call["span_id"]: call for call in calls(collector)}
    observations = json.loads(file.read_text())["observations"]
    generations = [(one["id"], one["traceId"]) for one in observations if one["type"] == "GENERATION"]
    assert generations
    for span_id, trace_id in generations:
        for side in ("input", "output"):
            told = chat_messages(json.loads(shown[imported_span(span_id, trace_id)][f"{side}_messages"]))
            if span_id in INSTRUCTED and side == "input":
                assert told.pop(0) == {"role": "system", "content": "You are a helpful agent."}
            if (span_id, side) in EXCEPTIONS:
                assert expected[span_id][side]["success"] is False
                (message,) = told
                assert message["role"] == ("user" if side == "input" else "assistant")
                assert message["content"]
                continue
            assert [_plain(one) for one in told] == [_plain(one) for one in expected[span_id][side]["data"]]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Without what is told beside the messages, an empty text, and the difference between two ways to write a call."""
    told = [call.get("function", call) for call in message.get("tool_calls", [])]
    return {
        "role": message["role"],
        "content": message.get("content") or "",
        "tool_call_id": message.get("tool_call_id"),
        "tool_calls": [(one["name"], json.loads(one["arguments"])) for one in told],
        "ids": [call["id"] for call in message.get("tool_calls", [])],
    }
