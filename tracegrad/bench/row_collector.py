"""The least that a collector in Python does, as a process: what ours is compared with.

It decodes OTLP with the official classes, makes a row of each span, and inserts rows through clickhouse-connect, which
has the same engine in its process. It acknowledges what is in memory only, so that it loses spans when it is killed.
`python -m tracegrad.bench.row_collector DIRECTORY DDL` prints its port; `GET /rows` says how many rows are in.
"""

import asyncio
import base64
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import clickhouse_connect
import orjson
import uvloop
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

COLUMNS = [
    *("Timestamp", "TraceId", "SpanId", "ParentSpanId", "TraceState", "SpanName", "SpanKind", "ServiceName"),
    *("ResourceAttributes", "ScopeName", "ScopeVersion", "SpanAttributes", "Duration", "StatusCode", "StatusMessage"),
    *("Events.Timestamp", "Events.Name", "Events.Attributes"),
    *("Links.TraceId", "Links.SpanId", "Links.TraceState", "Links.Attributes"),
]
KINDS = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
STATUSES = ("Unset", "Ok", "Error")
INTERVAL_S = 0.2
"""Between two inserts."""
ACKNOWLEDGEMENT = ExportTraceServiceResponse().SerializeToString()


class RowCollector:
    """Rows that wait, and the client that inserts them."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._waiting: list[list[Any]] = []
        self.rows = 0

    async def export(self, request: web.Request) -> web.Response:
        """One request."""
        decoded = ExportTraceServiceRequest.FromString(await request.read())
        self._waiting += _rows(decoded)
        return web.Response(body=ACKNOWLEDGEMENT, content_type="application/x-protobuf")

    async def count(self, _: web.Request) -> web.Response:
        """How many rows are in the table."""
        return web.Response(text=str(self.rows))

    async def insert(self, _: web.Application) -> AsyncIterator[None]:
        """Insert what waits, again and again, while the application runs."""

        async def run() -> None:
            while True:
                await asyncio.sleep(INTERVAL_S)
                rows, self._waiting = self._waiting, []
                if rows:
                    await asyncio.to_thread(self._client.insert, "otel_traces", rows, column_names=COLUMNS)
                    self.rows += len(rows)

        task = asyncio.create_task(run())
        task.add_done_callback(_die)
        yield
        task.cancel()


def _die(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        sys.exit(str(task.exception()))


def _rows(request: ExportTraceServiceRequest) -> Iterator[list[Any]]:
    for resource in request.resource_spans:
        about = _attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield _row(span, about, scope.scope.name, scope.scope.version)


def _row(span: Span, about: dict[str, str], scope: str, version: str) -> list[Any]:
    events, links = span.events, span.links
    return [
        *(span.start_time_unix_nano, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()),
        *(span.trace_state, span.name, KINDS[span.kind], about.get("service.name", ""), about, scope, version),
        *(_attributes(span.attributes), span.end_time_unix_nano - span.start_time_unix_nano),
        *(STATUSES[span.status.code], span.status.message),
        [_time(event.time_unix_nano) for event in events],
        [event.name for event in events],
        [_attributes(event.attributes) for event in events],
        [link.trace_id.hex() for link in links],
        [link.span_id.hex() for link in links],
        [link.trace_state for link in links],
        [_attributes(link.attributes) for link in links],
    ]


def _time(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / 1e9, UTC)


def _attributes(attributes: Any) -> dict[str, str]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: AnyValue) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else "" if plain is None else orjson.dumps(plain).decode()


def _plain(value: AnyValue) -> Any:
    match value.WhichOneof("value"):
        case "array_value":
            return [_plain(item) for item in value.array_value.values]
        case "kvlist_value":
            return {pair.key: _plain(pair.value) for pair in value.kvlist_value.values}
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case None:
            return None
        case kind:
            return getattr(value, kind)


async def _serve(directory: Path, ddl: str) -> None:
    client = clickhouse_connect.get_client(interface="chdb", path=str(directory))
    client.command("CREATE DATABASE IF NOT EXISTS otel")
    client.command(ddl)
    client.database = "otel"
    collector = RowCollector(client)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/traces", collector.export)
    app.router.add_get("/rows", collector.count)
    app.cleanup_ctx.append(collector.insert)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1]), sys.argv[2]))
