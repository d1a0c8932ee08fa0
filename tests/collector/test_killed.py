"""kill -9 at any moment: no acknowledged record is lost, none is there twice, and what is damaged is set aside."""

import contextlib
import random
import resource
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from otlp_load import Ledger, Load, templates

from collector.spool_cursor import Cursor

REQUESTS = templates("traces") + templates("logs")
SMALL = ((3000, 10), (2000, 20))
"""Many records in few bytes: more than the store keeps up with."""


def kill(collector: Any) -> None:
    collector.process.send_signal(signal.SIGKILL)
    collector.process.wait(20)


def load(ledger: Ledger, collector: Any, requests: Any = REQUESTS) -> Load:
    return Load(ledger, requests, collector.otlp, collector.grpc)


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def kill_while_it_starts(command: list[str], seconds: float) -> None:
    """Mostly while it makes good what the one before it left."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        pytest.fail("it does not start")
    process.kill()
    process.wait(20)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_no_acknowledged_record_is_lost_and_none_doubled_by_kills(
    start: Any, command_line: Any, tmp_path: Path, kills: int
) -> None:
    chance = random.Random(kills)
    ledger, left = Ledger(), kills
    while left > 0:
        with start(tmp_path / "store") as collector:
            clients = load(ledger, collector)
            before = ledger.acknowledged
            wait_for(lambda: ledger.acknowledged >= before + 8)  # noqa: B023 - it is called here
            time.sleep(chance.uniform(0, 0.4))
            kill(collector)
            clients.stop()
            left -= 1
        while left > 0 and chance.random() < 0.3:
            kill_while_it_starts(command_line(tmp_path / "store"), chance.uniform(0.5, 1.5))
            left -= 1
        if left % 10 == 0:
            with start(tmp_path / "store") as collector:
                ledger.check(collector.sql)
                assert "Traceback" not in collector.log.read_text()
                collector.process.terminate()
                assert collector.process.wait(20) == 0
    assert ledger.acknowledged >= 8 * kills // 2


def test_a_backlog_is_stored_once_however_often_the_process_dies_over_it(
    start: Any, fetch: Any, tmp_path: Path
) -> None:
    ledger = Ledger()
    with start(tmp_path / "store") as collector:
        clients = load(ledger, collector, templates("traces", SMALL) + templates("logs", SMALL))
        wait_for(lambda: ledger.acknowledged >= 120)
        kill(collector)
        clients.stop()
    deaths = 0
    for _ in range(4):
        with start(tmp_path / "store") as collector:
            deaths += dies_when_rows_appear(collector, fetch)
    assert deaths, "there was no backlog"
    with start(tmp_path / "store") as collector:
        ledger.check(collector.sql)


def dies_when_rows_appear(collector: Any, fetch: Any) -> bool:
    """Kill it as soon as rows of a batch are stored, or taken out again; False when nothing waits any more."""
    counts = b"SELECT (SELECT count() FROM otel.otel_traces), (SELECT count() FROM otel.otel_logs)"
    before = fetch(collector.clickhouse, counts).body
    wait_for(lambda: fetch(collector.clickhouse, counts).body != before or collector.waiting_bytes() == 0)
    waits = collector.waiting_bytes() > 0
    kill(collector)
    return bool(waits)


def test_what_is_damaged_between_two_runs_is_set_aside_and_reported_and_the_rest_is_stored(
    start: Any, tmp_path: Path
) -> None:
    ledger = Ledger()
    with start(tmp_path / "store") as collector:
        clients = load(ledger, collector, templates("traces", SMALL) + templates("logs", SMALL))
        wait_for(lambda: ledger.acknowledged >= 120)
        kill(collector)
        clients.stop()
    (spool,) = tmp_path.rglob("spool/traces")
    damage_what_waits(spool)
    (spool / f"{0:016d}-0123456789abcdef.segment").write_bytes(b"")
    (spool / "somebody's.segment").write_bytes(b"not of the spool")
    with start(tmp_path / "store") as collector:
        ledger.check(collector.sql, lost=1)
        (report,) = [line for line in collector.log.read_text().splitlines() if "spool damaged" in line]
        # A record that the kill tore is set aside as well, and is none of these: nobody was told that it is kept.
        assert [str(kept) in report for kept in (spool / "damaged").iterdir()].count(True) == 1
        with urllib.request.urlopen(collector.otlp + "/metrics") as exposed:
            assert 'spool_losses{signal="traces",kind="damaged_records"} 1\n' in exposed.read().decode()


def damage_what_waits(spool: Path) -> None:
    """One byte in the middle of what was not stored yet."""
    cursor = Cursor(spool / "cursor")
    cursor.close()
    assert cursor.before is not None
    done, path = cursor.before.done, max(spool.glob("*.segment"))
    content = bytearray(path.read_bytes())
    start = done.offset if path.name.startswith(f"{done.segment:016d}") else 0
    content[(start + len(content)) // 2] ^= 0x20
    path.write_bytes(content)


def test_a_disk_that_is_full_for_the_spool_refuses_and_loses_nothing(start: Any, tmp_path: Path) -> None:
    ledger = Ledger()
    with start(tmp_path / "store") as collector:
        stop_the_store(collector)
        clients = load(ledger, collector)
        wait_for(lambda: ledger.acknowledged >= 20)
        pid, unlimited = collector.process.pid, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        wait_for(lambda: {"429", "RESOURCE_EXHAUSTED"} <= clients.answers.keys())
        before = ledger.acknowledged
        time.sleep(0.3)
        assert ledger.acknowledged == before
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        wait_for(lambda: ledger.acknowledged >= before + 20)
        clients.stop()
        assert set(clients.answers) == {"429", "RESOURCE_EXHAUSTED"}
        kill(collector)
    with start(tmp_path / "store") as collector:
        ledger.check(collector.sql)


def stop_the_store(collector: Any) -> None:
    """Until the next start nothing goes from the spool into the store."""
    for table in ("otlp_traces", "otlp_logs"):
        collector.sql(f"DETACH TABLE otel.{table}")
    collector.sql("SYSTEM STOP MERGES")


def test_a_full_spool_refuses_and_loses_nothing_when_it_is_killed_too(start: Any, tmp_path: Path) -> None:
    config = tmp_path / "tracegrad.toml"
    config.write_text('[collector]\nspool_bytes = 8388608\nspool_fsync = "always"\n')
    ledger = Ledger()
    with start(tmp_path / "store", "--config", str(config)) as collector:
        stop_the_store(collector)
        clients = load(ledger, collector)
        wait_for(lambda: {"429", "RESOURCE_EXHAUSTED"} <= clients.answers.keys())
        kill(collector)
        clients.stop()
    assert ledger.acknowledged
    with start(tmp_path / "store", "--config", str(config)) as collector:
        ledger.check(collector.sql)
        clients = load(ledger, collector)
        before = ledger.acknowledged
        wait_for(lambda: ledger.acknowledged >= before + 20)
        clients.stop()
        ledger.check(collector.sql)
