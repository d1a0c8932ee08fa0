"""Ids of queries, KILL QUERY, tables that come with a request, and the small print of the interface."""

import concurrent.futures
import http.client
import json
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.external import ExternalData

ENDLESS = b"SELECT count() FROM numbers(1000000000000)"


@pytest.fixture
def started(collector: Any, fetch: Any) -> Iterator[Callable[..., "concurrent.futures.Future[Any]"]]:
    """Starts an endless query of an id, and returns once it runs."""
    with concurrent.futures.ThreadPoolExecutor(4) as threads:

        def start(query_id: str, parameters: str = "", **headers: str) -> "concurrent.futures.Future[Any]":
            url = f"{collector.clickhouse}/?query_id={query_id}{parameters}"
            running = threads.submit(fetch, url, ENDLESS, **headers)
            deadline = time.monotonic() + 30
            while not is_running(collector, query_id):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            return running

        yield start


def is_running(collector: Any, query_id: str) -> bool:
    asked = f"SELECT count() FROM system.processes WHERE Settings['log_comment'] = '{query_id}'"
    return bool(int(collector.sql(asked)))


def new_id() -> str:
    return secrets.token_hex(8)


@pytest.mark.parametrize(
    "kill",
    [
        "KILL QUERY WHERE query_id = '{id}'",
        "kill query where `query_id` in ('{id}', 'other') async format JSON",
        "KILL QUERY WHERE query_id = {x:String} SYNC",
    ],
)
@pytest.mark.parametrize("user", ["writer", "default"])
def test_a_query_is_killed_by_the_id_that_its_client_gave(
    collector: Any, fetch: Any, started: Any, kill: str, user: str
) -> None:
    query_id = new_id()
    running = started(query_id)
    statement = kill.replace("{id}", query_id)
    login = collector.writer if user == "writer" else {}
    reply = fetch(f"{collector.clickhouse}/?param_x={query_id}", statement.encode(), **login)
    assert (reply.status, b"numbers" in reply.body) == (200, True), reply.body
    answer = running.result()
    assert (answer.status, answer.headers["X-ClickHouse-Exception-Code"]) == (500, "394")
    assert answer.headers["X-ClickHouse-Query-Id"] == query_id


def test_who_only_reads_kills_nothing_of_the_writer(collector: Any, fetch: Any, started: Any) -> None:
    query_id = new_id()
    running = started(query_id, **collector.writer)
    for kill in (
        f"KILL QUERY WHERE query_id = '{query_id}'",
        "KILL QUERY WHERE 1",
        "KILL QUERY WHERE 1) OR (1",
        "KILL QUERY WHERE 1 /*) OR (1*/ OR 1 --",
        "KILL QUERY WHERE 1 OR 1 SYNC",
        "KILL /**/ QUERY /* WHERE */ WHERE user = 'default'",
        f"KILL QUERY WHERE query_id = '{query_id}' OR (1 SYNC",
    ):
        fetch(collector.clickhouse, kill.encode())
    assert is_running(collector, query_id)
    assert (
        fetch(collector.clickhouse, f"KILL QUERY WHERE query_id = '{query_id}'".encode(), **collector.writer).status
        == 200
    )
    assert running.result().headers["X-ClickHouse-Exception-Code"] == "394"


def test_a_query_is_killed_by_the_id_that_the_engine_shows(collector: Any, fetch: Any, started: Any) -> None:
    query_id, kept_id = new_id(), new_id()
    running, kept = started(query_id), started(kept_id)
    asked = f"SELECT query_id FROM system.processes WHERE Settings['log_comment'] = '{query_id}'"
    shown = collector.sql(asked)
    assert shown != query_id
    url = f"{collector.clickhouse}/?param_x={shown}"
    assert fetch(url, b"KILL QUERY WHERE query_id = {x:String} TEST").body.count(b"numbers") == 1
    assert fetch(url, f"KILL QUERY WHERE query_id IN ('{shown}')".encode()).status == 200
    assert running.result().headers["X-ClickHouse-Exception-Code"] == "394"
    assert is_running(collector, kept_id)
    fetch(url, f"KILL QUERY WHERE query_id = '{kept_id}'".encode())
    assert kept.result().headers["X-ClickHouse-Exception-Code"] == "394"


def test_an_id_runs_once_at_a_time(collector: Any, fetch: Any, started: Any) -> None:
    query_id = new_id()
    first = started(query_id)
    again = fetch(f"{collector.clickhouse}/?query_id={query_id}", b"SELECT 1")
    assert (again.status, again.headers["X-ClickHouse-Exception-Code"]) == (500, "216")
    instead = fetch(f"{collector.clickhouse}/?query_id={query_id}&replace_running_query=1", b"SELECT 1")
    assert instead.body == b"1\n"
    assert first.result().headers["X-ClickHouse-Exception-Code"] == "394"
    assert fetch(f"{collector.clickhouse}/?query_id={query_id}", b"SELECT 2").body == b"2\n"


def test_tables_that_come_with_a_request(collector: Any) -> None:
    for login in ({}, {"username": "default", "password": ""}, {"session_id": new_id()}):
        client = collector.client(**login)
        numbers = ExternalData(
            file_name="numbers.csv", data=b"1,one\n2,two\n", fmt="CSV", structure="k UInt32, v String"
        )
        asked = "SELECT v FROM numbers WHERE k > {low:UInt32} ORDER BY k"
        assert client.query(asked, parameters={"low": 1}, external_data=numbers).result_rows == [("two",)]
        numbers.add_file(file_name="_more.tsv", data=b"3\n4\n", types="UInt64")
        joined = "SELECT count() FROM numbers, _more"
        assert client.query(joined, external_data=numbers).first_row == (4,)
        with pytest.raises(clickhouse_connect.driver.exceptions.DatabaseError, match="UNKNOWN_TABLE"):
            client.query("SELECT * FROM _more")
        client.close()


def test_a_form_holds_the_statement_and_its_parameters(collector: Any, fetch: Any) -> None:
    form = (
        b'--x\r\nContent-Disposition: form-data; name="query"\r\n\r\nSELECT {a:String}, {b:UInt8}\r\n'
        b'--x\r\nContent-Disposition: form-data; name="param_a"\r\n\r\n1\\t2\r\n'
        b'--x\r\nContent-Disposition: form-data; name="max_threads"\r\n\r\n1\r\n--x--\r\n'
    )
    reply = fetch(f"{collector.clickhouse}/?param_b=3", form, content_type="multipart/form-data; boundary=x")
    assert reply.body == b"1\\t2\t3\n"
    for broken in (form[:40], b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--\r\n", b""):
        reply = fetch(f"{collector.clickhouse}/?a=1", broken, content_type="multipart/form-data; boundary=x")
        assert reply.status in {400, 404}, reply.body


def test_a_session_ends_when_it_is_told_to(collector: Any, fetch: Any) -> None:
    session = f"{collector.clickhouse}/?session_id={new_id()}"
    assert fetch(session, b"SET max_block_size = 77").status == 200
    assert fetch(session, b"SELECT getSetting('max_block_size')").body == b"77\n"
    assert fetch(f"{session}&session_check=1&close_session=1", b"SELECT 1").status == 200
    assert fetch(f"{session}&session_check=1", b"SELECT 1").headers["X-ClickHouse-Exception-Code"] == "372"


def test_what_other_clients_send_does_no_harm(collector: Any, fetch: Any) -> None:
    parameters = (
        "role=a&role=b&quota_key=q&send_progress_in_http_headers=1&http_headers_progress_interval_ms=100"
        "&cancel_http_readonly_queries_on_client_close=1&stacktrace=1&log_comment=mine&client_protocol_version=54483"
        "&http_write_exception_in_output_format=0&session_timezone=Europe%2FBerlin"
    )
    reply = fetch(f"{collector.clickhouse}/?{parameters}", b"SELECT timezone()")
    assert (reply.status, reply.body) == (200, b"Europe/Berlin\n")
    assert reply.headers["X-ClickHouse-Timezone"] == "Europe/Berlin"
    assert reply.headers["X-ClickHouse-Server-Display-Name"] == "tracegrad"
    assert set(json.loads(reply.headers["X-ClickHouse-Summary"])) >= {"read_rows", "written_rows", "elapsed_ns"}


def test_methods(collector: Any) -> None:
    host, port = collector.clickhouse.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    for method, target, status in (
        ("HEAD", "/?query=SELECT+number+FROM+numbers(1000000)", 200),
        ("HEAD", "/?query=SELECT+nothing", 404),
        ("HEAD", "/ping", 200),
        ("OPTIONS", "/", 405),
        ("PUT", "/?query=SELECT+1", 405),
        ("GET", "/query?query=SELECT+1", 200),
    ):
        connection.request(method, target)
        answer = connection.getresponse()
        body = answer.read()
        assert (answer.status, body == b"" or method != "HEAD") == (status, True), (method, target, body)
        assert "Access-Control-Allow-Origin" not in answer.headers
    connection.close()


@pytest.mark.parametrize(
    ("statement", "code", "status"),
    [
        ("SELEC 1", 62, 400),
        ("SELECT FROM WHERE", 62, 400),
        ("SELECT 1 FROM", 62, 400),
        ("SELECT 'a", 62, 400),
        ("SELECT 1 FORMAT", 62, 400),
        ("SELECT nothing", 47, 404),
        ("SELECT * FROM nowhere", 60, 404),
        ("SELECT nofunction()", 46, 404),
        ("SELECT 1 FORMAT Nothing", 73, 404),
        ("SELECT 1 SETTINGS nothing = 1", 115, 404),
        ("SELECT toUInt8('x')", 6, 400),
        ("SELECT 1 FROM numbers(10) WHERE throwIf(1)", 395, 500),
        ("SELECT sleep(3) SETTINGS max_execution_time = 1, function_sleep_max_microseconds_per_block = 1", 160, 500),
        ("SELECT count() FROM numbers(1000000000000) SETTINGS max_execution_time = 1", 159, 408),
        ("SELECT * FROM url('http://127.0.0.1:1', 'CSV')", 497, 403),
        ("INSERT INTO otel.policies VALUES (1)", 164, 500),
    ],
)
def test_codes_and_statuses_are_those_of_clickhouse(
    collector: Any, fetch: Any, statement: str, code: int, status: int
) -> None:
    reply = fetch(collector.clickhouse, statement.encode())
    assert (reply.headers["X-ClickHouse-Exception-Code"], reply.status) == (str(code), status), reply.body
    assert reply.body.startswith(f"Code: {code}. DB::Exception: ".encode())
    assert reply.body.endswith(b"(official build))\n")
    assert reply.body.count(b"\n") == 1
    assert b"OUTFILE '" not in reply.body
    assert b"/proc/" not in reply.body
