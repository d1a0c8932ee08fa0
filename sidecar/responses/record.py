"""What a response that passed through says, for the record: as the one chat choice that it amounts to."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from sidecar.chat_answer import Answer, Choice, count, mapping, objects, text
from sidecar.responses.items import joined_text
from sidecar.sse import Event

Json = dict[str, Any]

ENDS = ("response.completed", "response.incomplete", "response.failed")
FINISH = {"max_output_tokens": "length", "content_filter": "content_filter"}
"""Chat's `finish_reason` by `incomplete_details.reason`."""
GROWING = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.function_call_arguments.delta": "arguments",
}
"""What an event adds to."""


def read_response(response: Mapping[str, Any]) -> Answer:
    """The answer in a `response` object."""
    output, usage = objects(response.get("output")), mapping(response.get("usage"))
    finish = _finish_reason(response, output)
    return Answer(
        id=text(response.get("id")),
        model=text(response.get("model")),
        choices=(Choice(0, _message(output), finish),) if output or finish else (),
        prompt_tokens=count(usage.get("input_tokens")),
        completion_tokens=count(usage.get("output_tokens")),
    )


def _finish_reason(response: Mapping[str, Any], output: Sequence[Json]) -> str | None:
    status = response.get("status")
    if status == "completed":
        return "tool_calls" if any(item.get("type") == "function_call" for item in output) else "stop"
    if status == "incomplete":
        reason = text(mapping(response.get("incomplete_details")).get("reason"))
        return FINISH.get(reason or "", reason)
    return "error" if status == "failed" else None  # of one in the background nothing is known yet


def _message(output: Sequence[Json]) -> Json:
    message: Json = {"role": "assistant"}
    content: list[Json] = []
    for item in output:
        kind = item.get("type")
        if kind == "message":
            if found := joined_text(item.get("content")):
                content.append({"type": "text", "text": found})
            refusals = [text(part.get("refusal")) for part in objects(item.get("content"))]
            if refusal := "".join(one for one in refusals if one):
                message["refusal"] = message.get("refusal", "") + refusal
        elif kind == "reasoning":
            found = joined_text(item.get("content")) or joined_text(item.get("summary"))
            if found:
                message["reasoning"] = message.get("reasoning", "") + found
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
        else:
            content.append(item)  # what ran at the provider stays what it is
    return message | {"content": content}


class ResponsesReader:
    """Reads a stream that passes through."""

    def __init__(self) -> None:
        self.done = False
        """The stream came to its own end."""
        self.error: str | None = None
        """The message of an error event, if one came."""
        self._response: Mapping[str, Any] = {}
        self._items: dict[int, Json] = {}
        self._grown: dict[tuple[int, str], list[str]] = {}

    def read(self, event: Event) -> None:
        """Take note of one event."""
        try:
            data = mapping(orjson.loads(event.data)) if event.data is not None else {}
        except orjson.JSONDecodeError:
            return  # an event of a provider, in whatever form it likes
        kind = text(data.get("type")) or ""
        if "response" in data:
            self._response = mapping(data["response"])
        self.done = self.done or kind in ENDS
        if kind in {"response.failed", "error"} or data.get("error"):
            failure = self._response.get("error") if kind == "response.failed" else data.get("error") or data
            self.error = text(mapping(failure).get("message")) or text(failure) or "the provider reported an error"
        place = count(data.get("output_index")) or 0
        if kind in ("response.output_item.added", "response.output_item.done"):
            self._items[place] = dict(mapping(data.get("item")))
            if kind == "response.output_item.done":
                self._grown = {key: pieces for key, pieces in self._grown.items() if key[0] != place}
        elif kind in GROWING:
            self._grown.setdefault((place, GROWING[kind]), []).append(text(data.get("delta")) or "")

    def answer(self) -> Answer:
        """What has arrived so far."""
        if self.done:
            return read_response(self._response)
        items = {place: dict(item) for place, item in self._items.items()}
        for (place, what), pieces in self._grown.items():
            item, grown = items.setdefault(place, {"type": "message"}), "".join(pieces)
            if what == "arguments":
                item["arguments"] = grown
            else:
                part = {"type": "refusal", "refusal": grown} if what == "refusal" else {"type": "text", "text": grown}
                item["content"] = [*objects(item.get("content")), part]
        return read_response({**self._response, "output": [item for _, item in sorted(items.items())]})
