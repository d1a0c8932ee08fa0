"""A fake vLLM with a real tokenizer and chat template, and a sampler that says what it is told in odd tokens.

It renders as vLLM 0.32 does (`/tokenize`, chat completions, `kv_transfer_params.prompt_token_ids`), and parses thinking
and hermes tool calls out of what it sampled. What it samples decodes to the text it was told to say, but not by the
ids that its tokenizer would give that text.
"""

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from fake_vllm import FakeVllm

Json = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """What the sampler is to say. `end` False: it stops before the token that ends a turn."""

    content: str = ""
    thinking: str = ""
    tool_calls: tuple[tuple[str, str], ...] = ()
    """Names and arguments (JSON text)."""
    end: bool = True
    finish_reason: str | None = None

    @staticmethod
    def of(message: Json, thinking: str = "") -> "Said":
        """An assistant message of the API."""
        calls = [one["function"] for one in message.get("tool_calls") or []]
        named = tuple((one["name"], one["arguments"]) for one in calls)
        return Said(message.get("content") or "", thinking, named)

    @property
    def text(self) -> str:
        """As the model writes it."""
        parts = [f"<think>\n{self.thinking}\n</think>\n\n"] if self.thinking else []
        parts += [self.content] if self.content else []
        parts += [
            f'<tool_call>\n{{"name": "{name}", "arguments": {given}}}\n</tool_call>' for name, given in self.tool_calls
        ]
        return "".join(parts)


@dataclass
class TemplateEngine(FakeVllm):
    """`says`: one entry per call, in order. `prompts`: what each call was prompted with."""

    tokenizer: Any = None
    odd: bool = True
    """Sample ids that the tokenizer would not choose."""
    reasoning_parser: bool = True
    takes_ids: bool = True
    """False: an engine that ignores prompts given as ids."""
    max_model_len: int = 1 << 20
    says: list[Said] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    die_before_end: bool = False
    """Break a stream off before its end."""
    rendered: int = 0
    """Calls of `/tokenize`."""
    render_delay_s: float = 0.0
    """How long it takes for each."""

    def application(self) -> web.Application:
        app = super().application()
        app.router.add_post("/tokenize", self.tokenize)
        return app

    def render(self, body: Json) -> list[int]:
        """A request's messages as ids."""
        variables = body.get("chat_template_kwargs") or {}
        messages = [_for_template(one) for one in body["messages"]]
        # Each tool as the engine's own data model would dump it.
        tools = [{"type": "function", "function": one.get("function", one)} for one in body.get("tools") or []] or None
        ids: list[int] = self.tokenizer.apply_chat_template(
            messages,
            tools=tools,
            add_generation_prompt=body.get("add_generation_prompt", True),
            return_dict=False,
            **variables,
        )
        return ids

    def sampled(self, said: Said) -> list[int]:
        """Ids that decode to what is said."""
        text, pieces = said.text, []
        chance = random.Random(text)
        while text:
            length = chance.randint(1, 6) if self.odd else len(text)
            pieces.append(text[:length])
            text = text[length:]
        ids = [one for piece in pieces for one in self.tokenizer.encode(piece, add_special_tokens=False)]
        return [*ids, self.tokenizer.eos_token_id] if said.end else ids

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.rendered += 1
        await asyncio.sleep(self.render_delay_s)
        try:
            ids = self.render(body)
        except Exception as error:  # noqa: BLE001 - templates raise what they like; vLLM answers 400
            return web.json_response({"error": {"message": str(error), "code": 400}}, status=400)
        return web.json_response({"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
        prompt = given if given is not None and self.takes_ids else self.render(body)
        self.prompts.append(prompt)
        n = body.get("n") or 1
        choices = [self._choice(index, self.says.pop(0)) for index in range(n)]
        head = {"id": f"chatcmpl-{len(self.prompts)}", "created": 1, "model": body.get("model")}
        sampled = sum(len(one["token_ids"]) for one in choices)
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": sampled,
            "total_tokens": len(prompt) + sampled,
        }
        if not body.get("stream"):
            whole = {"object": "chat.completion", "choices": choices, "usage": usage, "prompt_token_ids": prompt}
            return web.json_response({**head, **whole})
        head["object"] = "chat.completion.chunk"
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for chunk in _chunks(choices, prompt, usage):
            await response.write(b"data: " + json.dumps({**head, **chunk}).encode() + b"\n\n")
        if self.die_before_end:
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _choice(self, index: int, said: Said) -> Json:
        ids = self.sampled(said)
        message: Json = {"role": "assistant", "content": said.content or None, "tool_calls": []}
        if self.reasoning_parser:
            message["reasoning"] = said.thinking or None
        elif said.thinking:
            message["content"] = f"<think>\n{said.thinking}\n</think>\n\n{said.content}"
        for place, (name, arguments) in enumerate(said.tool_calls):
            function = {"name": name, "arguments": arguments}
            message["tool_calls"].append({"id": f"call_{place}", "type": "function", "function": function})
        reason = said.finish_reason or ("tool_calls" if said.tool_calls else "stop")
        entries = [{"token": "", "logprob": -0.5, "bytes": None, "top_logprobs": []} for _ in ids]
        return {
            "index": index,
            "message": message,
            "finish_reason": reason,
            "token_ids": ids,
            "logprobs": {"content": entries},
        }


def _chunks(choices: list[Json], prompt: list[int], usage: Json) -> list[Json]:
    chunks: list[Json] = []
    for one in choices:
        first = {"index": one["index"], "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        chunks.append({"choices": [first], "prompt_token_ids": prompt})
        message = {name: value for name, value in one["message"].items() if value and name != "role"}
        for place, call in enumerate(message.get("tool_calls", [])):
            call["index"] = place
        last = {name: one[name] for name in ("index", "finish_reason", "token_ids", "logprobs")}
        chunks.append({"choices": [{**last, "delta": message}]})
    return [*chunks, {"choices": [], "usage": usage}]


def _for_template(message: Json) -> Json:
    """A message as vLLM hands it to a template: text joined, arguments parsed, thinking under both its names."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "\n".join(one if isinstance(one, str) else one.get("text", "(a picture)") for one in content)
    ready = {**message, "content": content}
    if calls := message.get("tool_calls"):
        functions = [{**one["function"], "arguments": json.loads(one["function"]["arguments"])} for one in calls]
        ready["tool_calls"] = [{**one, "function": made} for one, made in zip(calls, functions, strict=True)]
    if message.get("reasoning") is not None:
        ready["reasoning_content"] = message["reasoning"]
    return ready
