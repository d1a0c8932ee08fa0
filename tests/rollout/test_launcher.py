"""Real agents, started by the launcher as processes and as forks: traces, statuses, output, nothing left behind."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Model, ReceivedSpan, Receiver

from tracegrad.errors import InputError, TracegradError, UnreachableError
from tracegrad.rollout import Launcher, Task, run_rollouts
from tracegrad.rollout.output import KEPT_BYTES
from tracegrad.settings import Settings

BIN = Path(sys.executable).parent
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "calculator_agent.py")
TROUBLE = """
import os, signal, subprocess, sys, time
from opentelemetry import trace
mode = sys.argv[1]
with trace.get_tracer("agent").start_as_current_span(f"work {mode}"):
    pass
print("said by", mode, flush=True)
if mode == "crash":
    raise RuntimeError("broken")
if mode == "exit":
    sys.exit(4)
if mode == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "os_exit":
    os._exit(0)
if mode == "hang":
    time.sleep(600)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
if mode == "child":
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
if mode == "loud":
    line = "x" * 1023 + "\\n"
    for _ in range(5 << 10):
        sys.stdout.write(line)
    print("last line")
"""
WARM = pytest.mark.parametrize("warm", [False, True], ids=["plain", "warm"])


def instrumented(script: str, *arguments: str) -> list[str]:
    return [str(BIN / "opentelemetry-instrument"), sys.executable, script, *arguments]


@pytest.fixture
def trouble(tmp_path: Path) -> list[str]:
    script = tmp_path / "agent.py"
    script.write_text(TROUBLE)
    return instrumented(str(script), "{mode}")


def modes(*names: str) -> list[Task]:
    return [Task(name, {"mode": name}) for name in names]


def roots(receiver: Receiver) -> dict[str, ReceivedSpan]:
    return {span.attributes["tracegrad.task.id"]: span for span in receiver.named("rollout")}


@WARM
async def test_each_run_is_one_trace_with_the_launchers_root(
    settings: Settings, receiver: Receiver, model: Model, warm: bool
) -> None:
    tasks = [Task("a", {"question": "calc 3*14"}), Task("b, \u00e9%", {"question": "calc 1/0"})]
    summary = await run_rollouts(
        tasks, instrumented(EXAMPLE, "{question}"), settings, n=2, workers=2, warm=warm, split="eval"
    )
    assert summary.by_status == {"succeeded": 4}
    assert summary.as_json()["total"] == 4
    assert Counter(result.task_id for result in summary.results) == {"a": 2, "b, \u00e9%": 2}
    assert len(receiver.spans) == 4 * 5
    for result in summary.results:
        spans = receiver.of_trace(result.context.trace_id.hex())
        (root,) = [span for span in spans if not span.parent_id]
        assert (root.name, root.span_id, root.service) == ("rollout", result.context.span_id.hex(), "tracegrad.rollout")
        chats = [span for span in spans if span.name == "openai.chat"]
        assert [chat.parent_id for chat in chats] == [root.span_id] * 2
        assert {span.service for span in spans if span is not root} == {"calculator_agent"}
        assert root.start_ns <= min(chat.start_ns for chat in chats)
        assert max(chat.end_ns for chat in chats) <= root.end_ns
        assert root.attributes == {
            "tracegrad.rollout.id": result.rollout_id,
            "tracegrad.rollout.attempt": 0,
            "tracegrad.task.id": result.task_id,
            "tracegrad.rollout.status": "succeeded",
            "tracegrad.rollout.split": "eval",
            "process.exit.code": 0,
            "tracegrad.rollout.stdout": "The answer is 42.\n" if result.task_id == "a" else "The answer is error.\n",
            "tracegrad.rollout.stderr": "",
        }
        asked = [(path, headers) for path, headers, _ in model.requests if path.split("/")[2] == result.rollout_id]
        assert [path for path, _ in asked] == [f"/rollout/{result.rollout_id}/attempt/0/v1/chat/completions"] * 2
        assert {headers["traceparent"].split("-")[1] for _, headers in asked} == {root.trace_id}
        task = {"a": "a", "b, \u00e9%": "b%2C+%C3%A9%25"}[result.task_id]
        baggage = f"rollout.id={result.rollout_id},task.id={task},rollout.split=eval"
        assert {headers["baggage"] for _, headers in asked} == {baggage}


@WARM
async def test_whatever_becomes_of_an_agent_its_run_is_stored_and_ended(
    settings: Settings, receiver: Receiver, trouble: list[str], warm: bool
) -> None:
    ended = ("crash", "exit", "killed", "os_exit", "child", "loud")
    command = trouble if warm else trouble[1:]  # without instrumentation, which takes long to start
    async with Launcher(command, settings, workers=4, warm=warm, timeout_s=100) as launcher:
        summary = await launcher.run(modes(*ended))
    results = {result.task_id: result for result in summary.results}
    statuses = {task: (result.status, result.error_type, result.exit_code) for task, result in results.items()}
    assert statuses == {
        "crash": ("failed", "exit_code", 1),
        "exit": ("failed", "exit_code", 4),
        "killed": ("failed", "signal", 137),
        "os_exit": ("succeeded", None, 0),
        "child": ("succeeded", None, 0),
        "loud": ("succeeded", None, 0),
    }
    assert results["crash"].message == "RuntimeError: broken"
    stored = roots(receiver)
    assert {task: span.is_error for task, span in stored.items()} == {
        task: result.status != "succeeded" for task, result in results.items()
    }
    for task, span in stored.items():
        output = span.attributes["tracegrad.rollout.stdout"]
        assert output.startswith(f"said by {task}\n") or task == "loud"
        flushed = [work for work in receiver.named(f"work {task}") if work.parent_id == span.span_id]
        assert len(flushed) == int(warm) or task == "killed", f"spans of {task}"
    assert "RuntimeError: broken" in stored["crash"].attributes["tracegrad.rollout.stderr"]
    loud = stored["loud"].attributes["tracegrad.rollout.stdout"]
    assert loud.startswith("[52")
    assert "bytes before this were not kept]\n" in loud[:60]
    assert loud.endswith("x\nlast line\n")
    assert len(loud) < 40_000
    child = int(stored["child"].attributes["tracegrad.rollout.stdout"].splitlines()[1])
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@WARM
async def test_an_agent_that_does_not_end_is_ended_and_its_run_is_a_timeout(
    settings: Settings, receiver: Receiver, trouble: list[str], warm: bool
) -> None:
    async with Launcher(trouble if warm else trouble[1:], settings, warm=warm, timeout_s=4) as launcher:
        started = time.monotonic()
        await launcher.run(modes("hang", "stubborn"))
        assert time.monotonic() - started < 15
    stored = roots(receiver)
    for task, exit_code in (("hang", 143), ("stubborn", 137)):
        attributes = stored[task].attributes
        assert attributes["tracegrad.rollout.status"] == attributes["error.type"] == "timeout"
        assert attributes["process.exit.code"] == exit_code
        assert attributes["tracegrad.rollout.stdout"] == f"said by {task}\n"
        assert not warm or [work.parent_id for work in receiver.named(f"work {task}")] == [stored[task].span_id]


async def test_output_is_kept_on_request_up_to_a_bound(settings: Settings, trouble: list[str], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    summary = await run_rollouts(modes("loud", "crash"), trouble[1:], settings, data=kept)
    files = {result.task_id: kept / f"{result.rollout_id}.stdout" for result in summary.results}
    assert files["loud"].stat().st_size == KEPT_BYTES
    assert files["crash"].read_text() == "said by crash\n"
    assert "RuntimeError" in files["crash"].with_suffix(".stderr").read_text()


@WARM
async def test_a_cancelled_call_ends_its_agents_and_stores_their_runs(
    settings: Settings, receiver: Receiver, trouble: list[str], warm: bool
) -> None:
    running = asyncio.ensure_future(run_rollouts(modes("hang"), trouble, settings, n=6, workers=2, warm=warm))
    deadline = time.monotonic() + 60
    while len(receiver.named("work hang")) < 2:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    stored = receiver.named("rollout")
    assert len(stored) == 2, "what had not begun is not stored"
    assert {span.attributes["error.type"] for span in stored} == {"interrupted"}
    assert {span.attributes["tracegrad.rollout.status"] for span in stored} == {"failed"}


async def test_a_program_that_vanishes_is_a_failed_run(settings: Settings, receiver: Receiver, tmp_path: Path) -> None:
    script = tmp_path / "agent"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    summary = await run_rollouts(modes("a"), [str(script)], settings)
    assert summary.by_error == {"spawn": 1}
    (root,) = receiver.named("rollout")
    assert root.attributes["error.type"] == "spawn"
    assert "process.exit.code" not in root.attributes


async def test_nothing_starts_when_a_field_is_missing_or_nobody_answers(
    settings: Settings, receiver: Receiver, model: Model, trouble: list[str], free_port: Any
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(InputError, match="no field 'mode'"):
        await run_rollouts([Task("t", {"question": "x"})], trouble, settings)
    with pytest.raises(UnreachableError, match=f"no collector at {nobody}"):
        await run_rollouts(modes("exit"), trouble, settings.model_copy(update={"otlp": nobody}))
    with pytest.raises(UnreachableError, match=f"no sidecar at {nobody}"):
        await run_rollouts(modes("exit"), trouble, settings.model_copy(update={"sidecar_url": nobody}))
    receiver.answer = 404
    with pytest.raises(UnreachableError, match=r"takes no spans \(status 404\)"):
        await run_rollouts(modes("exit"), trouble, settings)
    assert receiver.spans == []


async def test_a_script_that_cannot_be_forked_is_refused_before_anything_starts(
    settings: Settings, tmp_path: Path
) -> None:
    script = tmp_path / "agent.py"
    script.write_text("def broken(:\n")
    with pytest.raises(TracegradError, match=r"agents cannot be forked: .*agent\.py, line 1"):
        await run_rollouts(modes("a"), instrumented(str(script)), settings, warm=True)


async def test_a_parent_that_dies_ends_the_call_with_one_error(
    settings: Settings, receiver: Receiver, trouble: list[str]
) -> None:
    async with Launcher(trouble, settings, workers=1, warm=True) as launcher:
        running = asyncio.ensure_future(launcher.run(modes("hang", "exit")))
        deadline = time.monotonic() + 60
        while not receiver.named("work hang"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        os.kill(launcher._starter._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        with pytest.raises(TracegradError, match="the parent of the forked agents has ended"):
            await running
    (root,) = receiver.named("rollout")
    assert root.attributes["error.type"] == "signal"
