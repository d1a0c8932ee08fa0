"""An engine without a model: prompts of token ids that grow with the messages.

A message is a role token, one id for every four characters, and an end token. An answer's ids are those of its text,
so that the next prompt begins with this one and its answer, if the template is append-only. One that strips thinking
leaves it out of every answer but the one that is being given.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

Json = dict[str, Any]

VOCABULARY = 150_000
END = 1
ROLES = {"system": 2, "user": 3, "assistant": 4, "tool": 5}
FIRST = 10
TOOL: Json = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Searches the documentation.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)


@dataclass(frozen=True)
class Seen:
    """One choice as the engine saw it. `messages`: of the request."""

    prompt: list[int]
    response: list[int]
    messages: list[Json]


@dataclass
class ToyEngine:
    """State and faults. `seen`: by response id, the choices by index."""

    strips_thinking: bool = False
    error: int | None = None
    """Answer with this status."""
    hides_ids: bool = False
    """Answer without token ids, as a provider does."""
    seen: dict[str, list[Seen]] = field(default_factory=dict)

    def application(self) -> web.Application:
        """What listens."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/weight_info", self._weight_info)
        app.router.add_get("/is_paused", self._is_paused)
        app.router.add_get("/v1/models", self._models)
        return app

    async def _weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": "0"})

    async def _is_paused(self, _: web.Request) -> web.Response:
        return web.json_response({"is_paused": False})

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "policy", "object": "model"}]})

    async def _chat(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        if self.error is not None:
            return web.json_response({"error": {"message": "as asked", "code": self.error}}, status=self.error)
        prompt = self.prompt(body)
        answer_id = f"chatcmpl-{len(self.seen)}"
        messages = [answer(f"{answer_id}/{index}") for index in range(body.get("n") or 1)]
        responses = [[*text_ids(said(message)), END] for message in messages]
        self.seen[answer_id] = [Seen(prompt, response, body["messages"]) for response in responses]
        with_ids = bool(body.get("return_token_ids")) and not self.hides_ids
        choices = [
            {
                "index": index,
                "message": message,
                "finish_reason": "tool_calls",
                "logprobs": _logprobs(response) if body.get("logprobs") else None,
                "token_ids": response if with_ids else None,
            }
            for index, (message, response) in enumerate(zip(messages, responses, strict=True))
        ]
        sampled = sum(map(len, responses))
        usage = {"prompt_tokens": len(prompt), "completion_tokens": sampled, "total_tokens": len(prompt) + sampled}
        return web.Response(
            body=orjson.dumps(
                {
                    "id": answer_id,
                    "object": "chat.completion",
                    "created": 1,
                    "model": body.get("model"),
                    "choices": choices,
                    "usage": usage,
                    "prompt_token_ids": prompt if with_ids else None,
                }
            ),
            content_type="application/json",
        )

    def prompt(self, body: Json) -> list[int]:
        """The ids of a request."""
        ids: list[int] = text_ids(orjson.dumps(body.get("tools") or []).decode())
        for message in body["messages"]:
            text = said(message)
            if self.strips_thinking and message["role"] == "assistant":
                text = _THINKING.sub("", text)
            ids += [ROLES[message["role"]], *text_ids(text), END]
        return [*ids, ROLES["assistant"]]


def answer(mark: str) -> Json:
    """What the engine says: it thinks, and calls the tool. The mark makes it differ from every other."""
    return {
        "role": "assistant",
        "content": f"<think>{f'Let me think about {mark}. ' * 6}</think>I look it up: {mark}.",
        "tool_calls": [
            {
                "id": f"call_{mark}",
                "type": "function",
                "function": {"name": "search", "arguments": orjson.dumps({"query": f"all about {mark}"}).decode()},
            }
        ],
    }


def said(message: Mapping[str, Any]) -> str:
    """A message's text as the template writes it."""
    calls = message.get("tool_calls") or []
    return str(message.get("content") or "") + "".join(orjson.dumps(call["function"]).decode() for call in calls)


def text_ids(text: str) -> list[int]:
    """One id for every four characters."""
    return [FIRST + zlib.crc32(text[place : place + 4].encode()) % VOCABULARY for place in range(0, len(text), 4)]


def _logprobs(response: list[int]) -> Json:
    return {"content": [{"token": str(one), "logprob": -(one % 997) / 997, "top_logprobs": []} for one in response]}
