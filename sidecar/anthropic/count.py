"""`/v1/messages/count_tokens`: how long a prompt would be. Not a model call: nothing is sampled, nothing is recorded.

Of a policy the engine counts the very prompt that the translated call would have (`/tokenize`), so that the number
is the one that the call's usage will show. Of a provider the request passes, by the model it names.
"""

from collections.abc import Mapping

import aiohttp
import orjson
from aiohttp import web

from sidecar.anthropic.request import to_prompt
from sidecar.chat_answer import count, mapping
from sidecar.chat_request import with_fields
from sidecar.dialect import Json, Refusal
from sidecar.failures import INVALID_ANSWER, UNREACHABLE, answered, error_message
from sidecar.forward import Inbound, engine_headers, request_headers, response_headers, upstream_url
from sidecar.openai_error import JSON
from sidecar.routes import Route

MESSAGES_PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"
TOKENIZE = "/tokenize"
RENDERED = ("model", "messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")


async def count_tokens(session: aiohttp.ClientSession, inbound: Inbound, body: Json, route: Route) -> web.Response:
    """The count. Raises Refusal."""
    named = {"model": route.served} if body and route.served not in (None, body.get("model")) else {}
    headers = request_headers(inbound.request.headers, route.authorization)
    headers["accept-encoding"] = "identity"
    if route.policy is None:
        passed = with_fields(inbound.raw, body, named)
        _, answer, raw = await _post(session, route, inbound.path, passed, headers)
        return web.Response(status=answer.status, body=raw, headers=response_headers(answer.headers, changed=False))
    sent = orjson.dumps({**_rendered(to_prompt(body)), **named})
    url, answer, raw = await _post(session, route, TOKENIZE, sent, engine_headers(headers))
    try:
        counted = count(mapping(orjson.loads(raw)).get("count"))
    except orjson.JSONDecodeError:
        counted = None
    if answer.status != 200 or counted is None:
        said = answered(f"{url}{TOKENIZE}", answer.status, answer.reason)
        if answer.status >= 400:
            raise Refusal(answer.status, error_message(raw, said))
        raise Refusal(502, f"{said} without a `count`: is it a vLLM server?", INVALID_ANSWER)
    return web.Response(body=orjson.dumps({"input_tokens": counted}), headers=JSON)


def _rendered(chat: Json) -> Json:
    """Of a chat completion what its prompt depends on, as `/tokenize` takes it."""
    effort = chat.get("reasoning_effort")
    wanted = {"reasoning_effort": effort, "enable_thinking": effort != "none"} if effort else {}
    template = {**wanted, **mapping(chat.get("chat_template_kwargs"))}
    fields = {name: chat[name] for name in RENDERED if name in chat}
    return {**fields, **({"chat_template_kwargs": template} if template else {})}


async def _post(
    session: aiohttp.ClientSession, route: Route, path: str, data: bytes, headers: Mapping[str, str]
) -> tuple[str, aiohttp.ClientResponse, bytes]:
    """Which upstream answered, and what."""
    for url in route.upstreams:
        try:
            async with session.post(upstream_url(url, path), data=data, headers=headers) as answer:
                return url, answer, await answer.read()
        except aiohttp.ClientConnectorError:
            continue
        except (aiohttp.ClientError, OSError) as error:
            raise Refusal(502, f"upstream at {url} closed the connection: {error}", UNREACHABLE) from error
    raise Refusal(502, f"no upstream answers at {', '.join(route.upstreams)}: start the model server", UNREACHABLE)
