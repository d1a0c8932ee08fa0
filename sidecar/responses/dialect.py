"""`/v1/responses`: translated for policies, read for the record where it passes through."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web

from sidecar.chat import OpenAIErrors
from sidecar.chat_answer import Answer, objects, text
from sidecar.dialect import Caller, Exchange, Json, Native, Refusal, StreamReader, StreamWriter
from sidecar.openai_error import JSON, error_kind
from sidecar.responses.answer import Asked, whole_response
from sidecar.responses.checks import BadRequest, check
from sidecar.responses.ids import Ids, response_of
from sidecar.responses.items import SYSTEM_ROLES, joined_text, kind_of, normalised, unanswered
from sidecar.responses.record import ResponsesReader, read_response
from sidecar.responses.request import chat_of
from sidecar.responses.store import Stored, StoreError
from sidecar.responses.store_thread import StoreThread
from sidecar.responses.stored import unreadable
from sidecar.responses.stream import ResponsesWriter


class ResponsesExchange:
    """One call of a policy: a chat completion, and how its answer becomes a response."""

    def __init__(self, store: StoreThread, tenant: str, asked: Asked, items: list[Json], chat: Json) -> None:
        self.chat = chat
        self._store = store
        self._tenant = tenant
        self._asked = asked
        self._items = items
        self._unkept: Stored | None = None

    def seen_id(self, engine_id: str) -> str:
        """The response's own id, whatever the engine's."""
        return self._asked.ids.response

    def answer(self, chat: Json) -> Json:
        """The response."""
        response = whole_response(self._asked, chat)
        self._keep(response)
        return response

    def writer(self) -> StreamWriter:
        """A writer of the response's events."""
        return ResponsesWriter(self._asked, self._keep)

    async def settle(self) -> None:
        """Store the response, where its client wants it stored."""
        if (stored := self._unkept) is not None:
            self._unkept = None
            await self._store.put(self._tenant, stored)

    def _keep(self, response: Json) -> None:
        if self._asked.body.get("store") is not False and response["status"] != "failed":
            previous = text(self._asked.body.get("previous_response_id"))
            self._unkept = Stored(response["id"], previous, self._items, response)


class ResponsesDialect(OpenAIErrors):
    """The Responses API, with the responses it keeps."""

    operation = "chat"
    native: Native | None = None

    def __init__(self, store: StoreThread) -> None:
        self._store = store

    def error(self, refusal: Refusal) -> web.Response:
        """An error answer, which may name a parameter."""
        if not isinstance(refusal, BadRequest):
            return super().error(refusal)
        error = {"message": refusal.message, "type": error_kind(refusal.status), "param": refusal.param}
        body = orjson.dumps({"error": {**error, "code": refusal.code}})
        return web.Response(status=refusal.status, body=body, headers={**JSON, **refusal.headers})

    def error_event(self, message: str, code: str) -> bytes:
        """An error event, for a stream that has not begun."""
        data = orjson.dumps({"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0})
        return b"event: error\ndata: " + data + b"\n\n"

    async def open(self, body: Json, caller: Caller) -> Exchange | None:
        """The chat completion for a request, with the conversation it continues. Raises Refusal."""
        check(body)
        ids = Ids.new()
        try:
            earlier = await self._earlier(body, caller)
            items = [await self._resolved(item, caller) for item in normalised(body.get("input"), ids)]
        except StoreError as error:
            raise unreadable(error) from error
        if (call_id := unanswered([*earlier, *items])) is not None:
            raise BadRequest(f"No tool call found for function call output with call_id {call_id}.", "input")
        chat = chat_of(body, [*earlier, *items])
        if not chat["messages"]:
            raise BadRequest("`input` is missing: say something to the model", "input", "missing_required_parameter")
        return ResponsesExchange(self._store, caller.tenant, Asked(body, ids, len(items)), items, chat)

    def as_chat(self, body: Json) -> Json:
        """The request in chat's names, without what only the provider remembers."""
        return chat_of(body, normalised(body.get("input"), Ids("")))

    def read(self, answer: Json) -> Answer:
        """What a `response` says."""
        return read_response(answer)

    def reader(self) -> StreamReader:
        """A reader for a stream that passes through."""
        return ResponsesReader()

    def system(self, body: Json) -> str:
        """The instructions, or the text of the first system or developer message."""
        if instructions := text(body.get("instructions")):
            return instructions
        place = _first_system(body.get("input"))
        return "" if place is None else joined_text(body["input"][place].get("content"))

    def replace_system(self, body: Json, text: str) -> Json:
        """A copy whose instructions, or whose first system or developer message, are `text`."""
        place = None if body.get("instructions") else _first_system(body.get("input"))
        if place is None:
            return {**body, "instructions": text}
        items = list(body["input"])
        items[place] = {**items[place], "content": text}
        return {**body, "input": items}

    async def _earlier(self, body: Mapping[str, Any], caller: Caller) -> list[Json]:
        previous = text(body.get("previous_response_id"))
        if not previous:
            return []
        if (chain := await self._store.chain(caller.tenant, previous)) is None:
            message = f"Previous response with id '{previous}' not found."
            raise BadRequest(message, "previous_response_id", "previous_response_not_found")
        return [item for stored in chain for item in (*stored.input, *stored.response["output"])]

    async def _resolved(self, item: Json, caller: Caller) -> Json:
        if item["type"] != "item_reference":
            return item
        response_id = response_of(item["id"])
        stored = await self._store.get(caller.tenant, response_id) if response_id else None
        kept: Sequence[Json] = (*stored.input, *stored.response["output"]) if stored else ()
        for one in kept:
            if one["id"] == item["id"]:
                return one
        raise BadRequest(f"Item with id '{item['id']}' not found.", "input", status=404)


def _first_system(given: Any) -> int | None:
    items = given if isinstance(given, list) else []
    for place, item in enumerate(items):
        if objects([item]) and kind_of(item) == "message" and item.get("role") in SYSTEM_ROLES:
            return place
    return None
