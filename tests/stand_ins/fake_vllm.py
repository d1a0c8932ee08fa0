"""A fake vLLM on a real socket.

It answers as vLLM 0.32 does with and without token ids (tests/sidecar/test_real_vllm.py holds the real one to the same
expectations), and can be told to misbehave.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import fake_completions
from aiohttp import web

PROMPT_IDS = [11, 12, 13]
FINGERPRINT = "vllm-0.32.0-fake"
CONTENT = ["He", "llo ", "caf\u00e9 ", "\u2713", "!"]
TOOL_DELTAS: list[dict[str, Any] | None] = [
    None,
    None,
    {"tool_calls": [{"id": "call_1", "type": "function", "index": 0, "function": {"name": "add", "arguments": ""}}]},
    None,
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
    None,
]


@dataclass
class FakeVllm:
    """State and faults of the fake. `url` is set once it listens."""

    url: str = ""
    version: str = "default"
    running: asyncio.Event = field(default_factory=asyncio.Event)
    """Set unless the engine is paused."""
    telling: asyncio.Event = field(default_factory=asyncio.Event)
    """Set unless it keeps its version to itself for now."""
    updating: bool = False
    control: list[str] = field(default_factory=list)
    """Control calls in the order in which they came, with their bodies where they matter."""
    loads: list[dict[str, Any]] = field(default_factory=list)
    """What each `update_weights` named."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    """Calls that it served at the same time, now and at most."""
    aborted: int = 0
    """Requests whose client went away."""
    write_size: int | None = None
    """Write streams in pieces of this many bytes."""
    token_delay_s: float = 0.0
    die_after: int | None = None
    """Close the connection after this many stream events (0 also: before a whole answer)."""
    error: tuple[int, str] | None = None
    garbage: bytes | None = None
    """Answer 200 with these bytes."""
    stream_error: str | None = None
    drop_token: bool = False
    """Lose the ids of one token, as older vLLM does when a tool parser holds text back."""
    drop_logprobs: bool = False
    finish_reason: str = "stop"
    logprobs_mode: str | None = None
    """What `/server_info` says of it; None: there is no such path."""
    strict_tools: bool = True
    """What it says of VLLM_ENFORCE_STRICT_TOOL_CALLING."""
    fail_step: str | None = None
    """The control call that answers 500."""
    on_step: Callable[[str], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self.running.set()
        self.telling.set()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/weight_info", self.weight_info)
        app.router.add_get("/is_paused", self.is_paused)
        app.router.add_get("/server_info", self.server_info)
        for step in ("pause", "resume", "init_weight_transfer_engine", "start_weight_update", "update_weights"):
            app.router.add_post(f"/{step}", self.step)
        for step in ("finish_weight_update", "reset_prefix_cache"):
            app.router.add_post(f"/{step}", self.step)
        app.router.add_route("*", "/echo{rest:.*}", self.echo)
        app.router.add_post("/v1/embeddings", self.embeddings)
        app.router.add_post("/v1/audio/transcriptions", self.echo)
        return app

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": "vllm"}]})

    async def weight_info(self, _: web.Request) -> web.Response:
        await self.telling.wait()
        return web.json_response({"weight_version": self.version})

    async def is_paused(self, _: web.Request) -> web.Response:
        return web.json_response({"is_paused": not self.running.is_set()})

    async def server_info(self, request: web.Request) -> web.Response:
        if self.logprobs_mode is None:
            raise web.HTTPNotFound
        config: Any = {"model_config": {"logprobs_mode": self.logprobs_mode}}
        config = config if request.query.get("config_format") == "json" else "text"
        environment = {"VLLM_ENFORCE_STRICT_TOOL_CALLING": self.strict_tools}
        return web.json_response({"vllm_config": config, "vllm_env": environment})

    async def embeddings(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [], "model": "policy", "usage": {"prompt_tokens": 4}})

    async def echo(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        seen = {
            "method": request.method,
            "path": request.raw_path,
            "headers": {name.lower(): value for name, value in request.headers.items()},
            "body": body[:1000].decode(errors="replace"),
            "length": len(body),
        }
        return web.json_response(seen, headers={"x-from-upstream": "yes"}, status=201)

    async def step(self, request: web.Request) -> web.Response:
        name = request.path[1:]
        if request.content_type != "application/json":
            return web.Response(status=400, text="Field required")
        body = json.loads(await request.read() or b"{}")
        detail = body.get("update_info", {}).get("path") or body.get("weight_version") or request.query_string
        self.control.append(f"{name} {detail}".strip())
        if self.on_step is not None:
            await self.on_step(name)
        if name == self.fail_step or (name == "start_weight_update" and self.updating):
            return web.Response(status=500, text="Internal Server Error")
        if name == "update_weights":
            self.loads.append(body["update_info"])
            self.updating = self.updating and bool(body["update_info"]["path"])
            if not self.updating:
                return web.Response(status=500, text="Internal Server Error")
        if name == "pause":
            self.running.clear()
        elif name == "resume":
            self.running.set()
        self.updating = {"start_weight_update": True, "finish_weight_update": False}.get(name, self.updating)
        self.version = body.get("weight_version") or self.version
        return web.json_response({"success": True})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.error is not None:
            status, message = self.error
            error = {"message": message, "type": "BadRequestError", "code": status}
            return web.json_response({"error": error}, status=status)
        if self.garbage is not None:
            return web.Response(body=self.garbage, content_type="application/json")
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self._wait(0)
            return await (self._stream(request, body) if body.get("stream") else self._whole(request, body))
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.at_once -= 1

    async def _whole(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await self._wait(self.token_delay_s * len(CONTENT))
        if self.die_after is not None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if request.path == "/v1/completions":
            text = fake_completions.whole(body, self.finish_reason)
            return web.Response(body=text, content_type="application/json")
        n = body.get("n") or 1
        tokens, deltas = self._tokens(body)
        message: dict[str, Any] = {"role": "assistant", "content": "".join(CONTENT), "refusal": None}
        if body.get("tools"):
            call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
            message |= {"content": None, "tool_calls": [call]}
        choices = [
            {
                "index": index,
                "message": message,
                "logprobs": self._logprobs(tokens) if body.get("logprobs") else None,
                "finish_reason": "tool_calls" if body.get("tools") else self.finish_reason,
                "stop_reason": None,
                "token_ids": tokens if body.get("return_token_ids") else None,
                "routed_experts": None,
            }
            for index in range(n)
        ]
        return web.json_response(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": body.get("model"),
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": self._usage(n * len(deltas)),
                "prompt_logprobs": None,
                "prompt_token_ids": PROMPT_IDS if body.get("return_token_ids") else None,
                "kv_transfer_params": None,
            }
        )

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        pending = b""
        text = request.path == "/v1/completions"
        events = fake_completions.events(body, self.finish_reason) if text else self._events(body)
        for number, event in enumerate(events):
            if number == self.die_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            pending += event
            size = self.write_size
            while size is not None and len(pending) >= size:
                await response.write(pending[:size])
                pending = pending[size:]
                await asyncio.sleep(0)
            if size is None:
                await response.write(pending)
                pending = b""
            await self._wait(self.token_delay_s)
        if pending:
            await response.write(pending)
        await response.write_eof()
        return response

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.running.wait()

    def _events(self, body: dict[str, Any]) -> list[bytes]:
        n = body.get("n") or 1
        options = body.get("stream_options") or {}
        include_usage = bool(options.get("include_usage"))
        continuous = include_usage and bool(options.get("continuous_usage_stats"))
        ids, logprobs = bool(body.get("return_token_ids")), bool(body.get("logprobs"))
        tokens, deltas = self._tokens(body)
        chunks: list[dict[str, Any]] = []

        def chunk(choices: list[dict[str, Any]], sampled: int, **more: Any) -> None:
            head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body.get("model")}
            usage = {"usage": self._usage(sampled)} if continuous and choices else {}
            chunks.append({**head, "choices": choices, **usage, **more})

        for index in range(n):
            delta = {"role": "assistant", "content": ""}
            first = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            chunk([first], 0, prompt_token_ids=PROMPT_IDS if ids else None, prompt_text=None)
        for place, found in enumerate(deltas):
            for index in range(n):
                last = place == len(deltas) - 1
                delta = found if found is not None else {}
                if not delta and not last and not ids and not logprobs:
                    continue
                own = [] if self.drop_token and place == 1 else tokens[place : place + 1]
                choice: dict[str, Any] = {"index": index, "delta": delta}
                choice["logprobs"] = self._logprobs(tokens[place : place + 1]) if logprobs else None
                choice["finish_reason"] = None
                if last:
                    choice["finish_reason"] = "tool_calls" if body.get("tools") else self.finish_reason
                    choice["stop_reason"] = None
                choice["token_ids"] = own if ids else None
                mark = {"system_fingerprint": FINGERPRINT} if last and not include_usage else {}
                chunk([choice], place + 1, **mark)
            if self.stream_error and place == 1:
                error = {"error": {"message": self.stream_error, "type": "InternalServerError", "code": 500}}
                return [_event(one) for one in [*chunks, error]] + [b"data: [DONE]\n\n"]
        if include_usage:
            continuous = False
            chunk([], 0, usage=self._usage(n * len(deltas)), system_fingerprint=FINGERPRINT)
        return [_event(one) for one in chunks] + [b": keep-alive\n\n", b"data: [DONE]\n\n"]

    def _tokens(self, body: dict[str, Any]) -> tuple[list[int], list[dict[str, Any] | None]]:
        deltas = TOOL_DELTAS if body.get("tools") else [{"content": part} for part in CONTENT]
        return [100 + place for place in range(len(deltas))], list(deltas)

    def _logprobs(self, tokens: list[int]) -> dict[str, Any] | None:
        if self.drop_logprobs:
            return None
        entries = [{"token": f"t{one}", "logprob": -one / 7, "bytes": [1], "top_logprobs": []} for one in tokens]
        return {"content": entries}

    def _usage(self, sampled: int) -> dict[str, Any]:
        total = len(PROMPT_IDS) + sampled
        return {"prompt_tokens": len(PROMPT_IDS), "total_tokens": total, "completion_tokens": sampled}


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
