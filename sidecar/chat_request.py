"""What is added to a chat completion so that the engine tells its tokens, and what must be hidden again.

The client's own bytes are kept: fields are appended to its JSON text, and it is encoded anew only where one of them
is there already. A request that the engine would refuse is left as it is, so that it is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sidecar.chat_answer import mapping


@dataclass(frozen=True)
class Hidden:
    """What the client did not ask for and must not see."""

    token_ids: bool
    logprobs: bool
    usage: bool
    """Of a stream; a whole answer always has it."""

    @property
    def nothing(self) -> bool:
        """Whether the client asked for everything itself."""
        return not (self.token_ids or self.logprobs or self.usage)


def capture_fields(body: Mapping[str, Any]) -> tuple[dict[str, Any], Hidden]:
    """The fields to set in the engine's request, and what to hide from its answer."""
    fields: dict[str, Any] = {}
    if hide_ids := not body.get("return_token_ids"):
        fields["return_token_ids"] = True
    if hide_logprobs := not body.get("logprobs"):
        needs_logprobs = body.get("top_logprobs") or body.get("logprob_token_ids")
        if not needs_logprobs and not body.get("use_beam_search"):
            fields["logprobs"] = True
    hide_usage = False
    if body.get("stream"):
        options = mapping(body.get("stream_options"))
        if hide_usage := not options.get("include_usage"):
            fields["stream_options"] = {**options, "include_usage": True, "continuous_usage_stats": False}
    return fields, Hidden(hide_ids, hide_logprobs, hide_usage)


def with_fields(raw: bytes, body: Mapping[str, Any], fields: Mapping[str, Any]) -> bytes:
    """The request text with `fields` set; `body` is what `raw` holds."""
    if not fields:
        return raw
    if any(name in body for name in fields):
        return orjson.dumps({**body, **fields})
    end = raw.rstrip()
    added = orjson.dumps(fields)[1:]
    return end[:-1] + (b"," if body else b"") + added
