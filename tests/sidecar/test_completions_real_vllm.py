"""Text completions in front of a real vLLM: what clients see, and what spans hold.

A stream's text may be cut into chunks at other places from one run to the next, so the chunks of a choice are joined.
"""

import json
import re
from typing import Any

import pytest
from sidecar_harness import Harness

pytestmark = pytest.mark.slow

CASES: dict[str, dict[str, Any]] = {
    "text": {},
    "ids": {"return_token_ids": True},
    "log-probs": {"logprobs": 0},
    "log-probs and ids": {"logprobs": 2, "return_token_ids": True},
    "echo": {"echo": True},
    "echo, log-probs": {"echo": True, "logprobs": 1},
    "echo, ids and log-probs": {"echo": True, "logprobs": 1, "return_token_ids": True},
    "only echo": {"echo": True, "max_tokens": 0, "logprobs": 1},
    "prompt of ids": {"prompt": [5, 6, 7]},
    "several prompts": {"prompt": ["Say hello.", "What is"], "n": 2, "temperature": 1.0, "seed": 3},
    "length": {"max_tokens": 3},
    "stop": {"stop": ["o"], "max_tokens": 60},
    "prompt log-probs": {"prompt_logprobs": 1},
    "refused: log-probs": {"logprobs": -3},
    "refused: ids without log-probs": {"logprob_token_ids": [5]},
    "refused: nothing": {"prompt": ""},
}
STREAMS: tuple[dict[str, Any], ...] = (
    {},
    {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream": True, "stream_options": {"continuous_usage_stats": True}},
)
ASK = {"model": "policy", "prompt": "Say hello.", "temperature": 0, "max_tokens": 12}


@pytest.fixture
async def harness(harness_for: Any, vllm_server: Any) -> Harness:
    started: Harness = await harness_for({"name": "policy", "upstream": vllm_server.url, "policy": "policy"})
    return started


def canonical(body: str) -> Any:
    """What must be equal: random ids and the clock taken out, the chunks of each choice joined."""
    body = re.sub(r'"cmpl-[0-9a-zA-Z]+"', '"ID"', re.sub(r'"created":\d+', '"created":0', body))
    if not body.startswith("data: "):
        return body
    choices: dict[int, list[dict[str, Any]]] = {}
    rest = []
    for event in body.split("\n\n"):
        chunk = json.loads(event[6:]) if event.startswith("data: {") else None
        if chunk is None or not chunk.get("choices"):
            rest.append(chunk or event)
            continue
        if "usage" in chunk:
            chunk["usage"] = sorted(chunk["usage"])
        (choice,) = chunk["choices"]
        joined = choices.setdefault(choice["index"], [])
        if joined and _joins(joined[-1], chunk):
            continue
        joined.append(chunk)
    return choices, rest


def _joins(into: dict[str, Any], chunk: dict[str, Any]) -> bool:
    a, b = into["choices"][0], chunk["choices"][0]
    if list(into) != list(chunk) or list(a) != list(b) or b["finish_reason"] is not None:
        return False
    a["text"] += b["text"]
    assert b["prompt_token_ids"] is None
    if b["token_ids"] is not None:
        a["token_ids"] += b["token_ids"]
    if b["logprobs"] is not None:
        for name, values in b["logprobs"].items():
            a["logprobs"][name] += values
    return True


@pytest.mark.parametrize("case", CASES)
async def test_the_client_sees_what_vllm_alone_would_have_sent(harness: Harness, vllm_server: Any, case: str) -> None:
    for stream in STREAMS:
        body = ASK | CASES[case] | stream
        through = await harness.session.post(f"{harness.url}/v1/completions", json=body)
        direct = await harness.session.post(f"{vllm_server.url}/v1/completions", json=body)
        assert (through.status, through.headers["content-type"]) == (direct.status, direct.headers["content-type"])
        if not stream:
            assert (through.status == 200) == (not case.startswith("refused"))
        assert canonical(await through.text()) == canonical(await direct.text())


async def test_spans_hold_the_tokens_that_were_sampled(harness: Harness, vllm_server: Any) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(vllm_server.model_dir)
    prompts = ["Say hello.", "What is 3 times"]
    for stream in (False, True):
        body = ASK | {"prompt": prompts, "n": 2, "temperature": 1.0, "stream": stream, "return_token_ids": stream}
        await (await harness.session.post(f"{harness.url}/v1/completions", json=body)).read()
    spans = [span for span in await harness.receiver.wait(10) if span.name == "choice"]
    assert len(spans) == 8
    for span in spans:
        assert span.attributes["tracegrad.trainable"] is True
        prompt = prompts[span.attributes["tracegrad.choice.index"] // 2]
        assert tokenizer.decode(span.json("tracegrad.prompt.token_ids")) == prompt
        assert span.json("gen_ai.input.messages")[0]["parts"][0]["content"] == prompt
        ids, logprobs = span.json("tracegrad.response.token_ids"), span.json("tracegrad.response.logprobs")
        assert len(ids) == len(logprobs) > 0
        said = span.json("gen_ai.output.messages")[0]["parts"]
        assert "".join(part["content"] for part in said) == tokenizer.decode(ids, skip_special_tokens=True)
