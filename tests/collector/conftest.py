"""A real collector process, and what sends to it and asks it."""

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clickhouse_connect
import pytest
from google.protobuf.message import Message

READY_S = 60


@dataclass(frozen=True)
class Reply:
    """An HTTP answer, also when it is an error."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def http(url: str, body: bytes | None = None, method: str | None = None, **headers: str) -> Reply:
    """One request. Underscores in header names become dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data=body, headers=named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return Reply(answer.status, dict(answer.headers), answer.read())
    except urllib.error.HTTPError as error:
        return Reply(error.code, dict(error.headers), error.read())


@dataclass(frozen=True)
class Collector:
    """A running collector. URLs have no trailing slash."""

    process: subprocess.Popen[bytes]
    log: Path
    otlp: str
    clickhouse: str

    @property
    def grpc(self) -> str:
        """Host and port of OTLP/gRPC."""
        found = re.search(r"otlp_grpc=https?://(\S+)", self.log.read_text())
        assert found is not None
        return found[1]

    @property
    def writer(self) -> dict[str, str]:
        """The headers of the user who may write over ClickHouse HTTP."""
        password = (self.log.with_suffix("") / "writer.password").read_text().strip()
        return {"X-ClickHouse-User": "writer", "X-ClickHouse-Key": password}

    def send(self, request: Message) -> Reply:
        """Export traces or logs, as the type of the request says."""
        path = "/v1/traces" if hasattr(request, "resource_spans") else "/v1/logs"
        return http(self.otlp + path, request.SerializeToString(), content_type="application/x-protobuf")

    def sql(self, query: str, **headers: str) -> str:
        """The answer to the writer as tab-separated text, when all that was acknowledged is in the store."""
        self.drained()
        reply = http(self.clickhouse + "/?database=otel", query.encode(), **(self.writer | headers))
        assert reply.status == 200, reply.body
        return reply.body.decode().rstrip("\n")

    def waiting_bytes(self) -> int:
        """What is acknowledged and not in the store yet."""
        exposed = http(self.otlp + "/metrics").body.decode()
        return sum(
            int(float(value)) for value in re.findall(r"^tracegrad_collector_spool_bytes\{.*\} (\S+)$", exposed, re.M)
        )

    def drained(self) -> None:
        """Return once all that was acknowledged is in the store."""
        deadline = time.monotonic() + READY_S
        while (waiting := self.waiting_bytes()) > 0:
            assert time.monotonic() < deadline, f"{waiting} bytes wait:\n{self.log.read_text()[-3000:]}"
            time.sleep(0.02)

    def client(self, **options: Any) -> Any:
        """A clickhouse-connect client, the writer's, when all that was acknowledged is in the store."""
        self.drained()
        host, port = self.clickhouse.removeprefix("http://").split(":")
        login = {"username": "writer", "password": self.writer["X-ClickHouse-Key"]}
        return clickhouse_connect.get_client(host=host, port=int(port), database="otel", **(login | options))


def command(data: Path, *options: str) -> list[str]:
    """The collector's command line, on free ports unless `options` say otherwise."""
    ports = ("--otlp-http-port", "0", "--otlp-grpc-port", "0", "--clickhouse-port", "0")  # a later option wins
    return [sys.executable, "-m", "tracegrad", "collector", "--data", str(data), *ports, *options]


@contextmanager
def running(data: Path, *options: str) -> Iterator[Collector]:
    """A collector on `data`, until the end of the block; stopped hard if it is still there then."""
    log = data.with_suffix(".log")
    with log.open("wb") as stderr:
        process = subprocess.Popen(command(data, *options), stderr=stderr)
    try:
        deadline = time.monotonic() + READY_S
        while (ready := re.search(r"collector ready otlp_http=(\S+) clickhouse=(\S+)", log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"no collector, status {process.poll()}:\n{log.read_text()[-3000:]}")
            time.sleep(0.02)
        yield Collector(process, log, ready[1], ready[2])
    finally:
        process.kill()
        process.wait(20)


@pytest.fixture(scope="session")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """One collector for all tests that do not stop it. Tests keep apart by ids of their own."""
    with running(tmp_path_factory.mktemp("collector") / "store") as started:
        yield started


@pytest.fixture(scope="session")
def start() -> Callable[..., Any]:
    """A context manager that runs a collector on a directory, with further options."""
    return running


@pytest.fixture
def fetch() -> Callable[..., Reply]:
    """`http`: one request, errors are answers too."""
    return http


@pytest.fixture
def command_line() -> Callable[..., list[str]]:
    """`command`: the collector's command line for a directory."""
    return command


@pytest.fixture
def send(collector: Collector) -> Callable[[str, Any], None]:
    """Export a request of the signal of this name; it must be acknowledged."""

    def export(signal: str, request: Any) -> None:
        reply = http(
            f"{collector.otlp}/v1/{signal}", request.SerializeToString(), content_type="application/x-protobuf"
        )
        assert reply.status == 200, reply.body

    return export


@pytest.fixture
def rows(collector: Collector) -> Callable[[str, int], list[dict[str, Any]]]:
    """The rows of a query, once there are as many as there must be."""

    def read(query: str, count: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + READY_S
        while len(lines := collector.sql(query + " FORMAT JSONEachRow").splitlines()) < count:
            assert time.monotonic() < deadline, f"{len(lines)} of {count} rows: {query}"
            time.sleep(0.05)
        assert len(lines) == count
        return [json.loads(line) for line in lines]

    return read
