"""Grading what the store holds, with a real collector: who is scored, what it becomes, and that the newest counts."""

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import reward
from reward.score import score_rollouts
from tracegrad import clickhouse
from tracegrad.delivered import wait_until_delivered
from tracegrad.errors import InputError, UnreachableError
from tracegrad.otlp import OtlpSender, SpanContext
from tracegrad.rollout.results import RunResult, root_span
from tracegrad.rollout.tasks import Task
from tracegrad.settings import Settings


def ended(task: str, stdout: str, status: Any = "succeeded", error_type: str | None = None) -> tuple[RunResult, str]:
    now = time.time_ns()
    result = RunResult(
        secrets.token_hex(8), 0, task, "train", SpanContext.new(), status, error_type, None, now - 10, now
    )
    return result, stdout


async def store(settings: Settings, *runs: tuple[RunResult, str]) -> None:
    async with OtlpSender(settings.otlp, "tracegrad.rollout") as sender:
        for result, stdout in runs:
            sender.put(root_span(result, stdout, ""))
        assert await sender.flush(30)
    assert await wait_until_delivered(settings)


def rewards(settings: Settings) -> dict[str, dict[str, Any]]:
    """rollout id -> its reward, label, explanation, and the rollout's own reward as the trainer reads it."""
    client = clickhouse.connect(settings.clickhouse)
    rows = client.query(
        "SELECT r.rollout_id AS id, r.score AS score, r.label AS label, r.source AS source, r.span_id AS span_id, "
        "o.reward AS total FROM rewards r JOIN rollouts o ON o.rollout_id = r.rollout_id AND o.attempt = r.attempt"
    ).named_results()
    return {row["id"]: row for row in rows}


async def test_finished_rollouts_are_scored_once_and_the_rest_is_left_alone(settings: Settings) -> None:
    tasks = [Task("sum", {"answer": "45"}), Task("word", {"answer": "7"})]
    right, wrong = ended("sum", "let me see\nThe answer is 45.\n"), ended("word", "The answer is 45.\n")
    raw = ended("sum", '<tool_call>{"expression": "40+5=45\n')
    failed, late = ended("sum", "45", "failed", "exit_code"), ended("word", "7", "timeout", "timeout")
    stopped, unknown = ended("sum", "45", "failed", "interrupted"), ended("other", "45")
    await store(settings, right, wrong, raw, failed, late, stopped, unknown)

    scores = await score_rollouts(settings, tasks, grader="numeric")

    assert scores.as_json() == {
        "rewarded": 5,
        "mean": 0.2,
        "labels": {"correct": 1, "failed": 1, "no_answer": 1, "timeout": 1, "wrong": 1},
        "skipped": {"unknown_task": 1, "not_the_policys_fault": 1},
    }
    found = rewards(settings)
    expected = {right: 1.0, wrong: 0.0, raw: 0.0, failed: 0.0, late: 0.0}
    assert {id_: row["score"] for id_, row in found.items()} == {
        result.rollout_id: score for (result, _), score in expected.items()
    }
    assert {row["source"] for row in found.values()} == {"tracegrad.reward"}
    assert found[right[0].rollout_id]["span_id"] == right[0].context.span_id.hex()
    assert found[right[0].rollout_id]["total"] == 1.0

    again = await score_rollouts(settings, tasks, grader="numeric")
    assert (again.rewarded, again.mean) == (0, None)
    assert rewards(settings) == found

    regraded = await score_rollouts(
        settings, [Task("sum", {"gold": "44"})], grader="exact", answer_field="gold", again=True
    )
    assert regraded.by_label == {"failed": 1, "no_answer": 1, "wrong": 1}
    assert rewards(settings)[right[0].rollout_id]["total"] == 0.0


async def test_one_rollout_and_another_name(settings: Settings) -> None:
    first, second = ended("one", "3"), ended("one", "3")
    await store(settings, first, second)
    tasks = [Task("one", {"answer": 3})]
    scores = await score_rollouts(
        settings, tasks, grader="numeric", name="second opinion", rollout_id=first[0].rollout_id
    )
    assert scores.rewarded == 1
    assert first[0].rollout_id in rewards(settings)
    assert second[0].rollout_id not in rewards(settings)


async def test_emitted_rewards_reach_the_rollout_by_id_or_by_trace(settings: Settings) -> None:
    result, _ = run = ended("emitted", "x")
    await store(settings, run)
    reward.emit("by id", 0.5, rollout_id=result.rollout_id, endpoint=settings.otlp)
    reward.emit(
        "by trace",
        0.25,
        trace_id=result.context.trace_id.hex(),
        span_id=result.context.span_id.hex(),
        endpoint=settings.otlp,
    )
    assert await wait_until_delivered(settings)
    assert rewards(settings)[result.rollout_id]["total"] == 0.75


async def test_what_cannot_be_graded_is_said_in_one_line(settings: Settings, free_port: Any) -> None:
    with pytest.raises(InputError, match="task 'sum' has no field 'answer'"):
        await score_rollouts(settings, [Task("sum", {"question": "?"})], grader="numeric")
    with pytest.raises(InputError, match="no grader 'psychic': choose one of exact, numeric"):
        await score_rollouts(settings, [Task("sum", {"answer": "1"})], grader="psychic")
    nobody = settings.model_copy(update={"clickhouse": f"http://127.0.0.1:{free_port()}"})
    with pytest.raises(UnreachableError, match="no store at"):
        await score_rollouts(nobody, [Task("sum", {"answer": "1"})], grader="numeric")
    await store(settings, ended("prose", "4"))
    with pytest.raises(InputError, match="task 'prose': the expected answer 'four' holds no number"):
        await score_rollouts(settings, [Task("prose", {"answer": "four"})], grader="numeric")


async def test_a_store_that_dies_in_the_middle_is_said_in_one_line(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, opened = clickhouse.connect, []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        upstream, to_upstream = await asyncio.open_connection("127.0.0.1", urlsplit(settings.clickhouse).port)
        opened.append(to_upstream)
        await asyncio.gather(_pump(reader, to_upstream), _pump(upstream, writer))

    def connect_then_lose(url: str) -> Any:
        client = connect(url)
        asyncio.run_coroutine_threadsafe(lose(), loop).result(10)
        return client

    async def lose() -> None:
        server.close()
        for one in opened:
            one.transport.abort()

    loop, server = asyncio.get_running_loop(), await asyncio.start_server(relay, "127.0.0.1")
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    monkeypatch.setattr(clickhouse, "connect", connect_then_lose)
    with pytest.raises(UnreachableError, match=f"no store at {url}: ") as caught:
        await score_rollouts(
            settings.model_copy(update={"clickhouse": url}), [Task("sum", {"answer": "1"})], grader="numeric"
        )
    assert "\n" not in str(caught.value)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await source.read(1 << 16):
            sink.write(chunk)


async def test_the_command(settings: Settings, tmp_path: Path) -> None:
    await store(settings, ended("cli", "5"), ended("cli", "6"))
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({"id": "cli", "answer": "5"}) + "\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tracegrad", "reward", "--tasks", str(file), *arguments],
            cwd=tmp_path,
            env=os.environ | {"TRACEGRAD_OTLP": settings.otlp, "TRACEGRAD_CLICKHOUSE": settings.clickhouse},
            capture_output=True,
            text=True,
            check=False,
        )

    first = run("--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["labels"] == {"correct": 1, "wrong": 1}
    second = run("--all")
    assert second.stdout.startswith("2 rollouts rewarded, mean 0.500 (1 correct, 1 wrong); left alone: ")
    assert run().stdout.startswith("no finished rollout without a reward called 'reward'")
    refused = run("--grader", "psychic")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--grader" in refused.stderr
