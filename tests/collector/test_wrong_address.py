"""A store's address that leads elsewhere, or to a server that will not do: one clean line says which setting to change.

The others that answer are another collector's ports: OTLP over HTTP and gRPC, and ClickHouse HTTP with and without TLS.
"""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from certificates import authority
from clickhouse_between import as_store, running_between, writer

from collector.clickhouse_store import ClickHouseStore
from collector.engine import Engine
from collector.signals import TRACES
from collector.store import StoreError
from tracegrad.errors import TracegradError
from tracegrad.store_address import store_address


def told_by_sql(address: str) -> str:
    """The one line that `tracegrad sql` says, and nothing else."""
    asked = subprocess.run(
        [sys.executable, "-m", "tracegrad", "sql", "SELECT 1"],
        env=os.environ | {"TRACEGRAD_CLICKHOUSE": address},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (asked.returncode, asked.stdout) == (1, "")
    (line,) = asked.stderr.splitlines()
    assert line.isprintable()
    return line.removeprefix("tracegrad: ")


def told_by_store(address: str) -> str:
    """Why an insert fails, which is what the log says again and again."""
    store = ClickHouseStore(store_address(address), "", lambda _: None)
    store.begin()
    with pytest.raises(StoreError) as refused:
        store.insert(TRACES, [b"x"], "an-id")
    assert refused.value.retryable
    said = str(refused.value)
    assert said.isprintable()
    assert len(said) < 300
    return said


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """Something on the web that knows nothing of ClickHouse."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_ports_that_speak_something_else(collector: Any) -> None:
    for address in (collector.otlp, collector.grpc):
        place = address.rpartition("//")[2]
        assert told_by_sql(f"http://{place}") == (
            f"what answers at http://{place} is no ClickHouse HTTP interface: check TRACEGRAD_CLICKHOUSE"
        )
        assert told_by_store(f"clickhouse://{place}").startswith(
            f"no answer from clickhouse://{place}: what answers there is no ClickHouse HTTP interface, check --store"
        )


def test_a_web_server_and_a_balancer_of_load() -> None:
    with answering(200, b"<html>\x07hello</html>") as place:
        assert "is no ClickHouse HTTP interface, check --store" in told_by_store(f"clickhouse://{place}")
    with answering(502, b"<html>\x07Bad gateway</html>") as place:
        assert told_by_store(f"clickhouse://{place}").endswith(": HTTP status 502")
        assert "no store answers" in told_by_sql(f"http://{place}")


def test_tls_where_there_is_none(collector: Any) -> None:
    place = collector.clickhouse.rpartition("//")[2]
    assert told_by_sql(f"https://{place}") == (
        f"what answers at https://{place} speaks no TLS: write http:// in TRACEGRAD_CLICKHOUSE"
    )
    assert told_by_store(f"clickhouse://{place}?secure=1").endswith(
        "speaks no TLS: take secure=1 out of --store, or name a port that does"
    )


def test_no_tls_and_no_authority_where_there_is_tls(start: Callable[..., Any], tmp_path: Path) -> None:
    cert, key = authority(tmp_path).certify("collector")
    (tmp_path / "tls.toml").write_text(f'[collector]\ntls_cert = "{cert}"\ntls_key = "{key}"\n')
    with start(tmp_path / "data", "--config", str(tmp_path / "tls.toml")) as secure:
        place = secure.clickhouse.rpartition("//")[2]
        assert "https://" in told_by_sql(f"http://{place}").removeprefix("no")
        assert "secure=1" in told_by_store(f"clickhouse://{place}")
        untrusted = told_by_sql(f"https://{place}")
        assert "certificate that is not trusted here: add ?ca_cert=FILE to TRACEGRAD_CLICKHOUSE" in untrusted
        assert told_by_store(f"clickhouses://{place}").endswith("not trusted here: add ca_cert=FILE to --store")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("?bogus=1", r"bogus is no ClickHouse setting of clickhouse://\S+: see --store"),
        ("?max_insert_threads=x", r"takes no inserts: correct the settings in --store \(Code: 27"),
    ],
)
def test_settings_that_no_insert_can_have_end_the_start(collector: Any, parameters: str, said: str) -> None:
    address = store_address(as_store(collector, parameters))
    store = ClickHouseStore(address, address.password, lambda _: None)
    with pytest.raises(TracegradError, match=said):
        store.begin()
    with pytest.raises(StoreError, match=said) as refused:  # had it been away at the start, this would cost no row
        store.insert(TRACES, [b"x"], "an-id")
    assert refused.value.retryable
    store.close()


def test_a_user_who_only_reads_ends_the_start(collector: Any) -> None:
    address = store_address(collector.clickhouse.replace("http://", "clickhouse://"))
    store = ClickHouseStore(address, "", lambda _: None)
    with pytest.raises(
        TracegradError,
        match=r"user default may not write to (\S+): name one who may, as --store clickhouse://writer@127\S+ with "
        r"store_password \(Code: 164",
    ):
        store.begin()
    store.close()


def test_a_server_short_of_memory_does_not_end_the_start(collector: Any) -> None:
    with running_between(collector.clickhouse, writer(collector)) as between:
        store = ClickHouseStore(store_address(f"clickhouse://127.0.0.1:{between.server_port}"), "", lambda _: None)
        between.tries = ["500 Code: 241. DB::Exception: Memory limit exceeded", "400 Code: 108. DB::Exception: No data"]
        store.begin()
        store.insert(TRACES, [], "an-id")
        assert between.tries == []
        store.close()


@pytest.mark.parametrize("name", ["store", "data", "metadata"])
def test_a_file_in_the_way_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    said = f"cannot keep the store in {tmp_path}: {tmp_path / name} is in the way, since it is no directory; "
    with pytest.raises(TracegradError, match=re.escape(said)), Engine(tmp_path):
        pass
    (tmp_path / name).unlink()
