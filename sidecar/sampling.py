"""What a request says of sampling, for the span that tells of it (`tracegrad.sampling`).

Invariant: every field of a request that changes which tokens come, beside the prompt, is in the record where the
request has it, under the engine's own name (vLLM 0.32). Whoever trains decides by it; the trainer takes only what
leaves the policy's distribution as it is. Where tokens are put in place of sampled ones, no record helps (`forced`).
"""

from collections.abc import Mapping
from typing import Any

import orjson

from sidecar.chat_answer import mapping, objects
from sidecar.traits import Traits

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "n", "max_tokens")
"""Recorded always; null is the engine's own default."""
SHAPING = (
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens", "bad_words"),
    *("allowed_token_ids", "structured_outputs", "response_format", "use_beam_search", "thinking_token_budget"),
    *("watermarking", "vllm_xargs", "ignore_eos", "stop_token_ids", "repetition_detection"),
)
"""Further fields that change which tokens are sampled, or when that ends: recorded where the request has them."""


def sampling(body: Mapping[str, Any], traits: Traits | None = None) -> str:
    """`tracegrad.sampling` (JSON text) of a request in chat completions' names; `traits`: of the engine that served it.

    `tool_choice` is there where it constrains the tokens, `logprobs_mode` where the engine told it, and `strict_tools`
    where a tool is strict, unless the engine is known not to make the model keep to such a tool's schema.
    """
    values = {name: body.get(name) for name in SAMPLING}
    values["max_tokens"] = max_tokens(body)
    values |= {name: body[name] for name in SHAPING if body.get(name) is not None}
    if body.get("tool_choice") not in (None, "auto", "none"):
        values["tool_choice"] = body["tool_choice"]
    if _has_strict_tools(body) and (traits is None or traits.strict_tools is not False):
        values["strict_tools"] = True
    if traits is not None and traits.logprobs_mode is not None:
        values["logprobs_mode"] = traits.logprobs_mode
    return orjson.dumps(values).decode()


def forced(body: Mapping[str, Any]) -> bool:
    """Whether the engine may put tokens into the answer that it did not sample: their log-probs are not the policy's.

    A search picks among sequences; a thinking budget (-1: none) ends thinking by the engine's own tokens.
    """
    return bool(body.get("use_beam_search")) or body.get("thinking_token_budget") not in (None, -1)


def max_tokens(body: Mapping[str, Any]) -> Any:
    """The limit of a request, under its newer or its older name."""
    given = body.get("max_completion_tokens")
    return body.get("max_tokens") if given is None else given


def _has_strict_tools(body: Mapping[str, Any]) -> bool:
    if not body.get("tools") or body.get("tool_choice") == "none":
        return False
    return any(mapping(tool.get("function")).get("strict") is True for tool in objects(body["tools"]))
