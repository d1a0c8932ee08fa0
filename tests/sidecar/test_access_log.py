"""One line per request, which no request ever waits for."""

import asyncio
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from fake_vllm import FakeVllm
from sidecar_harness import Harness
from sidecar_process import until

from sidecar import access_log
from sidecar.access_log import AccessLog, require_writable
from tracegrad.errors import SettingsError


@pytest.fixture
async def logged(harness_for: Any, fake: FakeVllm, tmp_path: Path) -> Any:
    async def start(destination: str | None = None) -> Harness:
        models = ({"name": "policy", "policy": "policy", "upstream": fake.url}, {"name": "*", "upstream": fake.url})
        limits = {"access_log": destination or str(tmp_path / "access.log")}
        started: Harness = await harness_for(*models, limits=limits)
        return started

    return start


async def entries(log: Path, count: int) -> list[dict[str, Any]]:
    """The lines, once there are so many."""
    await until(lambda: log.read_bytes().count(b"\n") == count)
    return parsed(log)


def parsed(log: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in log.read_bytes().splitlines()]


async def test_a_line_says_what_became_of_a_request(logged: Any, fake: FakeVllm, tmp_path: Path) -> None:
    fake.version = "7"
    harness = await logged()
    answer = await harness.chat({"stream": True}, at="/rollout/r1/attempt/2/v1")
    content = await answer.read()
    await harness.chat({"model": "gpt-5"})
    await harness.session.get(f"{harness.url}/echo/a?secret=in-the-query")
    await harness.session.post(f"{harness.url}/v1/chat/completions", data=b"{", headers={"content-encoding": "gzip"})
    stream, passed, other, bad = await entries(tmp_path / "access.log", 4)
    spans = await harness.receiver.wait(3)
    (span,) = [one for one in spans if one.attributes["tracegrad.rollout.id"] == "r1"]
    expected = {
        "method": "POST",
        "path": "/rollout/r1/attempt/2/v1/chat/completions",
        "status": 200,
        "tenant": None,
        "error": None,
        "worker": 0,
        "model": "policy",
        "rollout_id": "r1",
        "trace_id": span.trace_id,
        "span_id": answer.headers["x-tracegrad-span-id"],
        "policy": "policy",
        "version": 7,
        "replica": fake.url,
        "stream": True,
    }
    assert {name: stream[name] for name in expected} == expected
    assert stream["time"].endswith("+00:00")
    assert stream["duration_ms"] > 0
    assert stream["bytes_in"] > 60
    assert stream["bytes_out"] > len(content)
    assert (passed["model"], passed["policy"], passed["replica"]) == ("gpt-5", None, fake.url)
    assert (other["method"], other["path"], other["status"]) == ("GET", "/echo/a", 201)
    assert "model" not in other
    assert (bad["status"], bad["error"]) == (400, "invalid_body")
    assert b"in-the-query" not in (tmp_path / "access.log").read_bytes()


async def test_a_client_that_leaves_is_a_499(logged: Any, fake: FakeVllm, tmp_path: Path) -> None:
    fake.token_delay_s = 30
    harness = await logged()
    answer = await harness.chat({"stream": True})
    answer.close()
    (entry,) = await entries(tmp_path / "access.log", 1)
    assert (entry["status"], entry["error"]) == (499, "client_disconnected")


async def test_a_full_disk_costs_lines_that_are_counted_and_no_request(logged: Any) -> None:
    harness = await logged("/dev/full")
    for _ in range(3):
        assert (await harness.chat({})).status == 200
    for _ in range(250):
        metrics = await (await harness.session.get(f"{harness.admin}/metrics")).text()
        if "log_lines_lost_total 3" in metrics:
            break
        await asyncio.sleep(0.02)
    assert "\ntracegrad_sidecar_log_lines_lost_total 3\n" in metrics


async def test_a_reader_that_has_stopped_holds_up_nobody(logged: Any, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(SettingsError, match=r"no access log at .*pipe"):
        await logged(str(pipe))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    harness = await logged(str(pipe))
    for _ in range(300):  # more than a pipe holds
        assert (await harness.session.get(f"{harness.url}/echo/{'x' * 500}")).status == 201
    await asyncio.sleep(2 * access_log.GATHER_S)
    received = os.read(reader, 1 << 20).splitlines()
    os.close(reader)
    assert 20 < len(received) < 300
    assert all(orjson.loads(line)["status"] == 201 for line in received)


async def test_after_a_short_write_the_next_line_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AccessLog(str(tmp_path / "log"))
    genuine = os.write
    monkeypatch.setattr(access_log.os, "write", lambda file, part: genuine(file, part[:10]))
    log._write([b'{"n":1}\n', b'{"n":2}\n'])
    monkeypatch.setattr(access_log.os, "write", genuine)
    log._write([b'{"n":3}\n'])
    log.close()
    assert (tmp_path / "log").read_bytes() == b'{"n":1}\n{"\n{"n":3}\n'
    assert log.lost == 1


async def test_more_than_memory_allows_is_lost_and_counted(
    logged: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_log, "MAX_PENDING_BYTES", 1000)
    monkeypatch.setattr(access_log, "GATHER_S", 1.0)
    harness = await logged()
    for _ in range(10):
        assert (await harness.session.get(f"{harness.url}/echo")).status == 201
    metrics = await (await harness.session.get(f"{harness.admin}/metrics")).text()
    (lost,) = [line for line in metrics.splitlines() if line.startswith("tracegrad_sidecar_log_lines_lost_total ")]
    assert 0 < int(lost.split()[1]) < 10
    assert len(await entries(tmp_path / "access.log", 10 - int(lost.split()[1]))) > 0


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no access log at .*: choose another path"):
        require_writable(str(tmp_path / "absent" / "log"))
    require_writable("off")
    require_writable("-")
    require_writable(str(tmp_path / "log"))
