"""A chat completion's answer as a `response` object."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sidecar.chat_answer import count, mapping, objects, text
from sidecar.responses.ids import Ids
from sidecar.responses.request import wants_logprobs

Json = dict[str, Any]

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""`incomplete_details.reason` by chat's `finish_reason`."""
FAILED = ("abort", "error")
ECHOED: Json = {
    **{"instructions": None, "max_output_tokens": None, "max_tool_calls": None, "parallel_tool_calls": True},
    **{"previous_response_id": None, "prompt_cache_key": None, "safety_identifier": None, "service_tier": None},
    **{"store": True, "temperature": None, "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": None},
    **{"truncation": "disabled", "user": None, "metadata": {}, "presence_penalty": 0.0, "frequency_penalty": 0.0},
}
"""What a response repeats of its request, and what it says where the request says nothing: null is the engine's own."""


@dataclass(frozen=True)
class Asked:
    """What a response needs to know of its request."""

    body: Mapping[str, Any]
    ids: Ids
    first_output: int
    """The place of the first output item: after the request's own items."""
    created_at: int = field(default_factory=lambda: int(time.time()))

    def response(self, status: str, model: str | None, output: Sequence[Json], **more: Any) -> Json:
        """A `response` object."""
        given = self.body
        echoed = {name: default if given.get(name) is None else given[name] for name, default in ECHOED.items()}
        reasoning, form = mapping(given.get("reasoning")), mapping(given.get("text"))
        return {
            "id": self.ids.response,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": False,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": None,
            "model": model or text(given.get("model")) or "",
            "output": list(output),
            **echoed,
            "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
            "text": {"format": form.get("format") or {"type": "text"}, "verbosity": form.get("verbosity")},
            "usage": None,
            **more,
        }

    def item_id(self, kind: str, output_index: int) -> str:
        """The id of an output item."""
        return self.ids.item(kind, self.first_output + output_index)

    def reasoning(self, output_index: int, found: str, status: str) -> Json:
        """A reasoning item."""
        content = [{"type": "reasoning_text", "text": found}] if found else []
        item_id = self.item_id("reasoning", output_index)
        return {
            **{"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": content},
            "encrypted_content": None,
        }

    def message(self, output_index: int, content: Sequence[Json], status: str) -> Json:
        """A message item."""
        item_id = self.item_id("message", output_index)
        return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": list(content)}

    def function_call(self, output_index: int, call: Mapping[str, Any], arguments: str, status: str) -> Json:
        """A function call item, out of chat's tool call."""
        item_id = self.item_id("function_call", output_index)
        name = text(mapping(call.get("function")).get("name")) or ""
        called = {"call_id": text(call.get("id")) or item_id, "name": name, "arguments": arguments}
        return {"id": item_id, "type": "function_call", "status": status, **called}


def whole_response(asked: Asked, chat: Mapping[str, Any]) -> Json:
    """The response for a `chat.completion`."""
    choices = objects(chat.get("choices"))
    choice = choices[0] if choices else {}
    entries = objects(mapping(choice.get("logprobs")).get("content")) if wants_logprobs(asked.body) else []
    output = output_items(asked, mapping(choice.get("message")), entries)
    return ended(asked, text(chat.get("model")), output, text(choice.get("finish_reason")), mapping(chat.get("usage")))


def output_items(asked: Asked, message: Mapping[str, Any], entries: Sequence[Json]) -> list[Json]:
    """The items of a chat answer: reasoning, text, function calls; an empty text where there is nothing at all."""
    output: list[Json] = []
    reasoning = text(message.get("reasoning")) or text(message.get("reasoning_content")) or ""
    if reasoning:
        output.append(asked.reasoning(0, reasoning, "completed"))
    calls = objects(message.get("tool_calls"))
    content, refusal = text(message.get("content")) or "", text(message.get("refusal"))
    parts = [text_part(content, own_entries(entries, content, after=reasoning))] if content else []
    parts += [{"type": "refusal", "refusal": refusal}] if refusal else []
    if parts or not (calls or output):
        output.append(asked.message(len(output), parts or [text_part("", [])], "completed"))
    for call in calls:
        arguments = text(mapping(call.get("function")).get("arguments")) or ""
        output.append(asked.function_call(len(output), call, arguments, "completed"))
    return output


def ended(
    asked: Asked, model: str | None, output: list[Json], finish_reason: str | None, usage: Mapping[str, Any]
) -> Json:
    """The response at its end; its last item is incomplete where it is."""
    more: Json = {"usage": usage_of(usage)}
    if finish_reason in FAILED or finish_reason is None:
        message = f"the engine ended the answer early ({finish_reason or 'no finish reason'}): ask again"
        return asked.response("failed", model, output, error={"code": "server_error", "message": message}, **more)
    if finish_reason in INCOMPLETE:
        if output:
            output[-1] = {**output[-1], "status": "incomplete"}
        details = {"reason": INCOMPLETE[finish_reason]}
        return asked.response("incomplete", model, output, incomplete_details=details, **more)
    return asked.response("completed", model, output, **more)


def usage_of(usage: Mapping[str, Any]) -> Json:
    """A response's `usage`, out of chat's."""
    given, sampled = count(usage.get("prompt_tokens")) or 0, count(usage.get("completion_tokens")) or 0
    cached = mapping(usage.get("prompt_tokens_details"))
    reasoning = count(mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")) or 0
    return {
        "input_tokens": given,
        "input_tokens_details": {
            "cached_tokens": count(cached.get("cached_tokens")) or 0,
            "cache_write_tokens": count(cached.get("created_cache_tokens")) or 0,
        },
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": given + sampled,
    }


def text_part(content: str, logprobs: Sequence[Json]) -> Json:
    """An `output_text` part."""
    return {"type": "output_text", "annotations": [], "logprobs": list(logprobs), "text": content}


def logprob_entries(entries: Sequence[Json]) -> list[Json]:
    """Chat's log-prob entries with the fields that this API has."""
    return [
        {**_entry(one), "top_logprobs": [_entry(top) for top in objects(one.get("top_logprobs"))]} for one in entries
    ]


def _entry(one: Mapping[str, Any]) -> Json:
    return {"token": one.get("token"), "bytes": one.get("bytes") or [], "logprob": one.get("logprob")}


def own_entries(entries: Sequence[Json], content: str, *, after: str = "") -> list[Json]:
    """The log-probs of a text among those of all sampled tokens, which may be of reasoning (`after`), calls or an end.

    All of them where the tokens do not spell the text, as with characters of several tokens.
    """
    tokens = [text(one.get("token")) or "" for one in entries]
    spelled = "".join(tokens)
    start = spelled.find(content, max(0, spelled.find(after)) + len(after))
    if start < 0:
        return logprob_entries(entries)
    own, place = [], 0
    for token, entry in zip(tokens, entries, strict=True):
        if place + len(token) > start and place < start + len(content):
            own.append(entry)
        place += len(token)
    return logprob_entries(own)
