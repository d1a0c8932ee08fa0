"""`OPENAI_BASE_URL=... opentelemetry-instrument python my_agent.py`, as a user runs it."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Model, Receiver
from tracegrad_otel import distro

AGENT = Path(__file__).parents[2] / "examples" / "calculator_agent.py"
TRACE, CALLER = "ab" * 16, "cd" * 8
CALL_TWICE = """
from openai import OpenAI
client = OpenAI()
for _ in range(2):
    client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hello"}])
"""
ONE_SPAN = """
from opentelemetry import trace
with trace.get_tracer("agent").start_as_current_span("work"):
    pass
"""


def test_the_untouched_agent_sends_one_trace_and_the_model_sees_its_context(
    run: Any, receiver: Receiver, model: Model
) -> None:
    result = run(AGENT.read_text(), "calc 3*14")
    assert (result.returncode, result.stdout, result.stderr) == (0, "The answer is 42.\n", "")
    (root,) = receiver.named("run agent.py")
    assert {(span.trace_id, span.service) for span in receiver.spans} == {(root.trace_id, "agent")}
    chats = receiver.named("openai.chat")
    assert [chat.parent_id for chat in chats] == [root.span_id] * 2
    by_id = {span.span_id: span for span in receiver.spans}
    for _, headers, _ in model.requests:
        _, trace_id, caller, _ = headers["traceparent"].split("-")
        assert trace_id == root.trace_id
        assert by_id[caller].name == "POST"
        assert by_id[by_id[caller].parent_id].name == "openai.chat"


def test_traceparent_and_baggage_of_the_environment_are_joined(run: Any, receiver: Receiver, model: Model) -> None:
    run(CALL_TWICE, TRACEPARENT=f"00-{TRACE}-{CALLER}-01", BAGGAGE="rollout.id=r1,task.id=t%2C1")
    assert {span.trace_id for span in receiver.spans} == {TRACE}
    assert [chat.parent_id for chat in receiver.named("openai.chat")] == [CALLER] * 2
    assert not [span for span in receiver.spans if span.name.startswith("run ")]
    assert {headers["baggage"] for _, headers, _ in model.requests} == {"rollout.id=r1,task.id=t%2C1"}


def test_without_any_variable_spans_go_to_the_default_port(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*distro.DEFAULTS, "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME"):
        monkeypatch.setenv(name, "")
    distro.set_defaults()
    assert os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://127.0.0.1:4318"
    assert {name: os.environ[name] for name in distro.DEFAULTS} == distro.DEFAULTS


def test_what_the_user_sets_wins(run: Any, receiver: Receiver) -> None:
    result = run(ONE_SPAN, OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="mine", TRACEGRAD_RUN_SPAN="false")
    assert '"service.name": "mine"' in result.stdout
    assert receiver.spans == []


@pytest.mark.parametrize("variable", ["OTEL_SERVICE_NAME=mine", "OTEL_RESOURCE_ATTRIBUTES=a=b, service.name=mine"])
def test_a_service_name_of_the_users_stays(run: Any, receiver: Receiver, variable: str) -> None:
    name, _, value = variable.partition("=")
    run(ONE_SPAN, **{name: value})
    assert {span.service for span in receiver.spans} == {"mine"}


def test_subprocesses_join_the_trace_of_the_run(run: Any, receiver: Receiver, tmp_path: Path) -> None:
    helper = tmp_path / "helper.py"
    helper.write_text(ONE_SPAN)
    run(f"import subprocess, sys; subprocess.run([sys.executable, {str(helper)!r}], check=True)")
    (root,) = receiver.named("run agent.py")
    (work,) = receiver.named("work")
    assert (work.trace_id, work.parent_id) == (root.trace_id, root.span_id)


def test_an_agent_that_fails_looks_the_same_and_its_run_span_says_so(run: Any, receiver: Receiver) -> None:
    source = ONE_SPAN + "\nraise RuntimeError('lost')"
    plain, traced = run(source, instrumented=False), run(source)
    assert (plain.returncode, plain.stdout, plain.stderr) == (traced.returncode, traced.stdout, traced.stderr)
    assert traced.returncode == 1
    (root,) = receiver.named("run agent.py")
    assert root.is_error
    assert root.attributes["error.type"] == "RuntimeError"


def test_seeded_random_numbers_are_the_same_and_ids_are_not(run: Any, receiver: Receiver) -> None:
    source = f"import random, time; random.seed(7)\n{CALL_TWICE}\ntime.sleep(0.5); print(random.random())"
    outputs = {run(source, instrumented=False).stdout, run(source).stdout, run(source).stdout}
    assert len(outputs) == 1
    assert len({span.span_id for span in receiver.spans}) == len(receiver.spans) > 0
    assert len({span.trace_id for span in receiver.spans}) == 2


@pytest.mark.parametrize("trouble", ["refused", "hangs"])
def test_a_dead_collector_costs_two_seconds_and_one_line(
    run: Any, trouble: str, free_port: Any, receiver: Receiver
) -> None:
    receiver.hang_s = 30 if trouble == "hangs" else 0
    endpoint = f"http://127.0.0.1:{free_port()}" if trouble == "refused" else receiver.url
    source = f"import atexit, time\n{ONE_SPAN}\natexit.register(lambda: print(time.time()))"
    result = run(source, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert result.returncode == 0
    assert time.time() - float(result.stdout) < 12  # two, and what starting and ending cost on a busy machine
    assert result.stderr == (
        f"tracegrad-otel: spans do not reach {endpoint}: start the collector, or set OTEL_EXPORTER_OTLP_ENDPOINT\n"
    )
