"""A sidecar with its neighbours for tests: an OTLP receiver that keeps spans, and clients for both ports."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class ReceivedSpan:
    """One span as the collector would get it."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent: str
    status: int
    message: str
    seconds: float
    attributes: dict[str, Any]

    def json(self, name: str) -> Any:
        return json.loads(self.attributes[name])


@dataclass
class Receiver:
    """An OTLP/HTTP receiver that keeps what it gets."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)

    async def traces(self, request: web.Request) -> web.Response:
        batch = ExportTraceServiceRequest.FromString(await request.read())
        for resource_spans in batch.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for one in scope_spans.spans:
                    self.spans.append(
                        ReceivedSpan(
                            one.name,
                            one.kind,
                            one.trace_id.hex(),
                            one.span_id.hex(),
                            one.parent_span_id.hex(),
                            one.status.code,
                            one.status.message,
                            (one.end_time_unix_nano - one.start_time_unix_nano) / 1e9,
                            {pair.key: _value(pair.value) for pair in one.attributes},
                        )
                    )
        return web.Response(body=b"", content_type="application/x-protobuf")

    async def wait(self, count: int = 1) -> list[ReceivedSpan]:
        """The spans, once there are `count`; then no more may come for a moment."""
        await self.wait_at_least(count)
        await asyncio.sleep(0.15)
        assert len(self.spans) == count, [one.name for one in self.spans]
        return self.spans

    async def wait_at_least(self, count: int) -> list[ReceivedSpan]:
        """The spans, once there are `count` or no more come."""
        for _ in range(400):
            if len(self.spans) >= count:
                break
            await asyncio.sleep(0.01)
        return self.spans

    async def one(self) -> ReceivedSpan:
        return (await self.wait(1))[0]


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [one.string_value for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@dataclass
class Harness:
    """A running sidecar with its neighbours. `session` is a plain HTTP client."""

    url: str
    admin: str
    session: aiohttp.ClientSession
    receiver: Receiver
    weights: Path

    async def chat(self, body: dict[str, Any], *, at: str = "/v1", **headers: str) -> aiohttp.ClientResponse:
        request = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]} | body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.session.post(f"{self.url}{at}/chat/completions", json=request, headers=named)


@contextlib.asynccontextmanager
async def listening(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
