"""What a fake vLLM answers to text completions, with the shape and the quirks of vLLM 0.32.

Prompt ids and sampled ids stand in each choice; `echo` puts the prompt before the text unless ids are asked for, and
its log-probs before those of the answer.
"""

import json
from typing import Any

import orjson

PARTS = ["Once ", "upon ", "a t\u00efme", "."]
FINGERPRINT = "vllm-0.32.0-fake"


def prompts_of(body: dict[str, Any]) -> list[str | list[int]]:
    prompt = body["prompt"]
    return prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]


def prompt_ids(prompt: str | list[int]) -> list[int]:
    """One id per character; a list of ids is itself."""
    return prompt if isinstance(prompt, list) else [ord(one) for one in prompt]


def whole(body: dict[str, Any], finish_reason: str) -> bytes:
    choices = []
    for prompt in prompts_of(body):
        asked = prompt_ids(prompt)
        for _ in range(body.get("n") or 1):
            index = len(choices)
            choices.append(
                {
                    "index": index,
                    "text": _echoed(body, prompt) + "".join(PARTS),
                    "logprobs": _logprobs(body, asked, _tokens(index)),
                    "finish_reason": finish_reason,
                    "stop_reason": None,
                    "token_ids": _tokens(index) if body.get("return_token_ids") else None,
                    "prompt_logprobs": None,
                    "prompt_token_ids": asked if body.get("return_token_ids") else None,
                    "routed_experts": None,
                }
            )
    answer = {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": body.get("model"),
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": _usage(body),
        "kv_transfer_params": None,
    }
    return json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode()


def events(body: dict[str, Any], finish_reason: str) -> list[bytes]:
    options = body.get("stream_options") or {}
    include_usage = bool(options.get("include_usage"))
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body.get("model")}
    n = body.get("n") or 1
    chunks = []
    for place, part in enumerate(PARTS):
        first, last = place == 0, place == len(PARTS) - 1
        for index in range(n * len(prompts_of(body))):
            prompt = prompts_of(body)[index // n]
            own, asked = _tokens(index)[place : place + 1], prompt_ids(prompt)
            choice = {
                "index": index,
                "text": (_echoed(body, prompt) if first else "") + part,
                "logprobs": _logprobs(body, asked if first else [], own),
                "finish_reason": finish_reason if last else None,
                "stop_reason": None,
                "prompt_token_ids": asked if first and (body.get("return_token_ids") or body.get("echo")) else None,
                "token_ids": own if body.get("return_token_ids") else None,
            }
            mark = {"system_fingerprint": FINGERPRINT} if last and not include_usage else {}
            chunks.append({**head, "choices": [choice], **mark})
    if include_usage:
        chunks.append({**head, "choices": [], "usage": _usage(body), "system_fingerprint": FINGERPRINT})
    # vLLM writes chunks with pydantic and whole answers with json: the two spell small numbers differently.
    return [b"data: " + orjson.dumps(one) + b"\n\n" for one in chunks] + [b"data: [DONE]\n\n"]


def _tokens(index: int) -> list[int]:
    return [1000 * index + place for place in range(len(PARTS))]


def _echoed(body: dict[str, Any], prompt: str | list[int]) -> str:
    if not body.get("echo") or body.get("return_token_ids"):
        return ""
    return prompt if isinstance(prompt, str) else "".join(map(chr, prompt))


def _logprobs(body: dict[str, Any], asked: list[int], own: list[int]) -> dict[str, Any] | None:
    if body.get("logprobs") is None:
        return None
    tokens = [*asked, *own] if body.get("echo") else own
    values: list[float | None] = [-1e-05 - one / 7 for one in tokens]
    if body.get("echo") and asked:
        values[0] = None
    return {
        "text_offset": list(range(len(tokens))),
        "token_logprobs": values,
        "tokens": [f"t{one}" for one in tokens],
        "top_logprobs": [value and {f"t{one}": value} for one, value in zip(tokens, values, strict=True)],
    }


def _usage(body: dict[str, Any]) -> dict[str, Any]:
    asked = sum(len(prompt_ids(one)) for one in prompts_of(body))
    sampled = len(PARTS) * len(prompts_of(body)) * (body.get("n") or 1)
    return {"prompt_tokens": asked, "total_tokens": asked + sampled, "completion_tokens": sampled}
