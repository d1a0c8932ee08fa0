"""A model call of a policy: asked for with tokens, recorded with them, answered without them.

Every such call is a native one of the engine (`Native`). Where the client speaks another API, an `Exchange` turns the
native answer, as its client would have got it, into the client's.
"""

from dataclasses import replace

import orjson
from aiohttp import web

from sidecar.call import Call
from sidecar.chat import CHAT
from sidecar.chat_request import with_fields
from sidecar.continuation.render import Renderer
from sidecar.deliver import Capture, deliver
from sidecar.dialect import Refusal
from sidecar.failures import DIED, unreachable
from sidecar.forward import Clients, Inbound, engine_headers, recorded_headers
from sidecar.policy import Replica
from sidecar.routes import Route
from tracegrad.http_client import BrokenError, NotSentError


async def captured_call(
    clients: Clients, inbound: Inbound, call: Call, route: Route, capture: Capture
) -> web.StreamResponse:
    """Serve one call; fills in `call`. A replica that takes no connection is skipped: not a byte was sent to it.

    Once any byte of the request may have reached a replica the call is not tried elsewhere, also where a kept-alive
    connection turns out closed and nothing was answered: the engine may have begun to sample, and a request that ends
    engines must not be led through all of them. The client gets a 502, which SDKs try again by themselves.
    """
    assert route.policy is not None  # noqa: S101 - the caller chose by it
    call.policy = route.policy.name
    call.pins = pins = route.pins_of(call.identity)
    fields, hidden = capture.native.capture_fields({**capture.body, **pins} if pins else capture.body)
    capture = replace(capture, hidden=hidden)
    if pins:
        fields = {**pins, **fields}
    if route.served is not None and route.served != capture.body.get("model"):
        fields["model"] = route.served
    raw = capture.raw or orjson.dumps(capture.body)
    sent = with_fields(raw, capture.body, fields)
    path = inbound.path if capture.exchange is None else capture.native.path
    headers = recorded_headers(inbound.request.headers, route.authorization, call)
    if capture.raw is None:
        engine_headers(headers)
    tried: list[Replica] = []
    rollout_id = call.identity.rollout_id if call.identity.has_company else None
    while (replica := await route.policy.choose(tried, rollout_id)) is not None:
        with replica.serving() as stamp:
            call.replica, call.upstream, call.start = replica, replica.url, stamp
            data = sent
            if route.continuation is not None and capture.native is CHAT and call.identity.has_company:
                renderer = Renderer(clients.session, replica.url, headers.get("authorization"))
                call.continuation = await route.continuation.extend(
                    renderer, call.identity, {**capture.body, **fields}, tenant=call.tenant
                )
                if call.continuation is not None and (more := call.continuation.fields):
                    data = with_fields(raw, capture.body, {**fields, **more})
            try:
                async with clients.engines.post(replica.url, path, headers, data) as upstream:
                    return await deliver(inbound, call, replica, upstream, capture)
            except NotSentError as error:
                replica.lost(f"engine at {replica.url} does not answer: {error}")
                tried.append(replica)
            except BrokenError as error:
                return _died(capture, call, replica, error)
    return unreachable(capture.dialect, call, ", ".join(replica.url for replica in tried))


def _died(capture: Capture, call: Call, replica: Replica, error: Exception) -> web.Response:
    replica.doubt()
    message = (
        f"upstream at {replica.url} closed the connection before it answered: {str(error) or type(error).__name__}"
    )
    call.status = 502
    call.fail(DIED, message)
    return capture.dialect.error(Refusal(502, message, DIED))
