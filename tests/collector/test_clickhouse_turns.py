"""Who may run a statement when many do, and what errors tell to do."""

import asyncio
import concurrent.futures
import itertools
import re
import secrets
import socket
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from collector import clickhouse_turns, engine
from collector.clickhouse_advice import MOST_MEMORY_BYTES, told_once
from collector.clickhouse_queries import READER_THREADS, THREADS
from collector.clickhouse_turns import Turns
from collector.engine import EngineError

REPEATED = (
    "Code: 73. DB::Exception: Code: 73. DB::Exception: Unknown format N. (UNKNOWN_FORMAT) (version 1.2). "
    "(UNKNOWN_FORMAT)"
)


def test_readers_are_told_when_too_many_run_and_never_shut_out_the_writer(collector: Any, fetch: Any) -> None:
    mark = secrets.token_hex(4)
    endless = f"SELECT count() FROM numbers(1000000000000) WHERE NOT ignore('{mark}')".encode()
    kill = f"KILL QUERY WHERE query LIKE '%{mark}%' AND query NOT LIKE 'KILL%'".encode()
    count = f"SELECT count() FROM system.processes WHERE query LIKE '%ignore(%{mark}%' AND query NOT LIKE '%processes%'"
    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        running = [
            threads.submit(fetch, f"{collector.clickhouse}/?query_id={mark}-{number}", endless)
            for number in range(THREADS)
        ]
        try:
            refused = [
                done.result()
                for done in itertools.islice(concurrent.futures.as_completed(running), THREADS - READER_THREADS)
            ]
            assert {reply.headers["X-ClickHouse-Exception-Code"] for reply in refused} == {"202"}
            assert collector.sql(count) == str(READER_THREADS), "the writer is served"
            reply = fetch(collector.clickhouse, b"SELECT 1")
            assert (reply.status, reply.headers["X-ClickHouse-Exception-Code"]) == (503, "202")
            assert re.search(rb"send it again later, or stop one of yours by KILL QUERY WHERE query_id", reply.body)
            assert reply.body.count(b"\n") == 1
        finally:
            deadline = time.monotonic() + 60
            while not all(query.done() for query in running) and time.monotonic() < deadline:
                killed = fetch(collector.clickhouse, kill)
        assert killed.status == 200, "a KILL needs no thread of those that readers hold"
        codes = [query.result().headers["X-ClickHouse-Exception-Code"] for query in running]
    assert sorted(codes) == ["202"] * (THREADS - READER_THREADS) + ["394"] * READER_THREADS
    assert fetch(collector.clickhouse, b"SELECT 1").body == b"1\n"


def test_who_waits_may_be_replaced_or_go_away(collector: Any, fetch: Any) -> None:
    mark = secrets.token_hex(4)
    endless = f"SELECT count() FROM numbers(1000000000000) WHERE NOT ignore('{mark}')".encode()
    waiting_url = f"{collector.clickhouse}/?query_id={mark}-waits&replace_running_query=1"
    host, port = collector.clickhouse.removeprefix("http://").split(":")
    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        running = [
            threads.submit(fetch, f"{collector.clickhouse}/?query_id={mark}-{number}", endless)
            for number in range(READER_THREADS)
        ]
        try:
            asked = f"SELECT count() FROM system.processes WHERE Settings['log_comment'] LIKE '{mark}-%'"
            deadline = time.monotonic() + 60
            while collector.sql(asked) != str(READER_THREADS):
                assert time.monotonic() < deadline
            with socket.create_connection((host, int(port))) as gone:
                gone.sendall(b"GET /?query=SELECT+1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            first = threads.submit(fetch, waiting_url, b"SELECT 1")
            second = fetch(waiting_url, b"SELECT 2")
            codes = {
                first.result().headers["X-ClickHouse-Exception-Code"],
                second.headers["X-ClickHouse-Exception-Code"],
            }
            assert codes == {"394", "202"}
        finally:
            deadline = time.monotonic() + 60
            while not all(query.done() for query in running) and time.monotonic() < deadline:
                fetch(collector.clickhouse, f"KILL QUERY WHERE query_id LIKE '{mark}-%'".encode(), **collector.writer)
    assert fetch(collector.clickhouse, b"SELECT 1").body == b"1\n"


async def test_turns_are_bounded_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clickhouse_turns, "WAIT_S", 0.01)
    turns = Turns(3, 2)
    for _ in range(2):
        await turns.take(writes=False)
    for _ in range(2):
        with pytest.raises(EngineError, match="TOO_MANY_SIMULTANEOUS_QUERIES"):
            await turns.take(writes=False)
    await turns.take(writes=True)
    with pytest.raises(EngineError, match="TOO_MANY_SIMULTANEOUS_QUERIES"):
        await turns.take(writes=True)
    turns.give(writes=False)
    await turns.take(writes=True)
    turns.give(writes=True)
    await turns.take(writes=False)


async def test_readers_who_wait_leave_the_writer_a_place_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clickhouse_turns, "MAX_WAITING", 1)
    turns = Turns(1, 1)
    await turns.take(writes=False)
    reader = asyncio.create_task(turns.take(writes=False))
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match="1 statements wait already"):
        await turns.take(writes=False)
    writer = asyncio.create_task(turns.take(writes=True))
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    turns.give(writes=False)
    await writer
    turns.give(writes=True)
    await turns.take(writes=False)


@pytest.mark.parametrize("statement", ["INSERT INTO otel.policies VALUES (1)", "DROP TABLE otel.policies"])
def test_a_get_that_would_change_something_is_told_to_use_post(collector: Any, fetch: Any, statement: str) -> None:
    target = f"{collector.clickhouse}/?{urllib.parse.urlencode({'query': statement})}"
    writer, reader = fetch(target, **collector.writer), fetch(target)
    assert {writer.headers["X-ClickHouse-Exception-Code"], reader.headers["X-ClickHouse-Exception-Code"]} == {"164"}
    assert b"what came by GET only reads; send it by POST" in writer.body
    assert b"default" not in writer.body
    assert re.search(rb"name the user writer.*send it by POST", reader.body)
    assert b"POST" not in fetch(collector.clickhouse, statement.encode()).body


@pytest.mark.parametrize(
    "statement", ["SELECT range(100000000)", "SELECT number, repeat('x', 3000) FROM numbers(1000000) FORMAT Pretty"]
)
def test_who_is_short_of_memory_is_told_what_needs_less(collector: Any, fetch: Any, statement: str) -> None:
    host, port = collector.clickhouse.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:  # the second fails in the middle of its answer
        connection.sendall(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
            % (len(statement), statement.encode())
        )
        answer = b""
        while piece := connection.recv(1 << 20):
            answer = answer[-4000:] + piece
    assert answer.count(b"Code: 241. DB") == 1
    assert re.search(rb"other than Pretty, a smaller max_block_size.* max_memory_usage .* up to 603979776", answer)


def test_the_most_memory_that_errors_name_is_what_can_be_set(collector: Any, fetch: Any) -> None:
    allowed, refused = (
        fetch(f"{collector.clickhouse}/?max_memory_usage={value}", b"SELECT 1").status
        for value in (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES + 1)
    )
    assert (allowed, refused) == (200, 500)
    assert f"<max_server_memory_usage>{MOST_MEMORY_BYTES}<" in Path(engine.CONFIG).read_text()


@pytest.mark.parametrize(
    ("text", "once"),
    [
        (REPEATED, "Code: 73. DB::Exception: Unknown format N. (UNKNOWN_FORMAT)"),
        (
            "Code: 1. DB::Exception: Code: 2. DB::Exception: x. (B)",
            "Code: 1. DB::Exception: Code: 2. DB::Exception: x. (B)",
        ),
        ("Code: 1. DB::Exception: x (A) (A)", "Code: 1. DB::Exception: x (A) (A)"),
    ],
)
def test_a_repeated_error_is_told_once(text: str, once: str) -> None:
    assert told_once(text) == once


@pytest.mark.parametrize(
    ("statement", "code"),
    [("SELECT 1 FORMAT Nothing", "73"), ("SELECT 1 FORMAT Template SETTINGS format_template_row = 'x'", "452")],
)
def test_errors_of_the_engine_come_once(collector: Any, fetch: Any, statement: str, code: str) -> None:
    body = fetch(collector.clickhouse, statement.encode()).body
    assert body.startswith(f"Code: {code}. DB::Exception: ".encode())
    assert (body.count(b"Code: "), body.count(b"(version ")) == (1, 1)
