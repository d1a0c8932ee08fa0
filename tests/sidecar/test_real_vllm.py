"""The sidecar in front of a real vLLM: what clients see, what spans hold, what happens while weights are swapped.

A stream's text may be cut into chunks at other places from one run to the next, so streams are compared with
neighbouring chunks of a choice joined; everything else must be equal to the letter.
"""

import asyncio
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from sidecar_harness import Harness
from stand_ins import ReceivedSpan
from vllm_metrics import all_running
from weight_bytes import safetensors

from sidecar import engine
from sidecar.engine import EngineError
from sidecar.forward import control_session

pytestmark = pytest.mark.slow

CALCULATOR = {
    "type": "function",
    "function": {"name": "calculator", "parameters": {"type": "object", "properties": {"expression": {}}}},
}
HELLO = [{"role": "user", "content": "Say hello."}]
PRODUCT = [{"role": "user", "content": "What is 3 times 14?"}]
TOOL = {"messages": PRODUCT, "tools": [CALCULATOR]}
CASES: dict[str, dict[str, Any]] = {
    "text": {"messages": HELLO},
    "tool call": TOOL,
    "one tool call": TOOL | {"parallel_tool_calls": False},
    "tool call and ids": TOOL | {"return_token_ids": True},
    "log-probs": {"messages": HELLO, "logprobs": True, "top_logprobs": 2},
    "ids": {"messages": HELLO, "return_token_ids": True},
    "two choices": {"messages": HELLO, "n": 2, "temperature": 1.0, "seed": 5},
    "length": {"messages": HELLO, "max_tokens": 3},
    "stop": {"messages": HELLO, "stop": ["good"]},
    "named tool": TOOL | {"tool_choice": {"type": "function", "function": {"name": "calculator"}}, "max_tokens": 30},
    "refused: log-probs": {"messages": HELLO, "top_logprobs": 3},
    "refused: messages": {"messages": "x"},
    "refused: temperature": {"messages": HELLO, "temperature": -3},
}
STREAMS: tuple[dict[str, Any], ...] = (
    {},
    {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream": True, "stream_options": {"continuous_usage_stats": True}},
)


@pytest.fixture
async def harness(harness_for: Any, vllm_server: Any) -> Harness:
    started: Harness = await harness_for({"name": "policy", "upstream": vllm_server.url, "policy": "policy"})
    return started


def canonical(body: str) -> Any:
    """What must be equal: random ids and the clock taken out, neighbouring chunks of a choice joined."""
    body = re.sub(r'"(chatcmpl-(?:tool-)?|call_)[0-9a-zA-Z]+"', '"ID"', re.sub(r'"created":\d+', '"created":0', body))
    if not body.startswith("data: "):
        return body
    events: list[Any] = []
    last: dict[int, Any] = {}
    for event in body.split("\n\n"):
        chunk = json.loads(event[6:]) if event.startswith("data: {") else None
        if chunk is None or len(chunk.get("choices", [])) != 1:
            events.append(chunk or event)
            continue
        if "usage" in chunk:
            chunk["usage"] = sorted(chunk["usage"])
        index = chunk["choices"][0]["index"]
        if index not in last or not _join(last[index], chunk):
            last[index] = chunk
            events.append((index, chunk))
    # Chunks of different choices may overtake each other.
    choices = sorted((one for one in events if isinstance(one, tuple)), key=lambda one: one[0])
    return json.dumps([choices, [one for one in events if not isinstance(one, tuple)]])


def _join(into: dict[str, Any], chunk: dict[str, Any]) -> bool:
    a, b = into["choices"][0], chunk["choices"][0]
    shapes = [(list(one), list(one["choices"][0]), list(one["choices"][0]["delta"])) for one in (into, chunk)]
    if shapes[0] != shapes[1] or a["finish_reason"] is not None or b["finish_reason"] is not None:
        return False
    if calls := a["delta"].get("tool_calls"):
        if set(b["delta"]["tool_calls"][0]) != {"index", "function"} or set(calls[0]) != {"index", "function"}:
            return False
        calls[0]["function"]["arguments"] += b["delta"]["tool_calls"][0]["function"]["arguments"]
    elif a["delta"].get("content"):
        a["delta"]["content"] += b["delta"]["content"]
    if a.get("token_ids"):
        a["token_ids"] += b["token_ids"]
    if a["logprobs"]:
        a["logprobs"]["content"] += b["logprobs"]["content"]
    return True


@pytest.mark.parametrize("case", CASES)
async def test_the_client_sees_what_vllm_alone_would_have_sent(harness: Harness, vllm_server: Any, case: str) -> None:
    for stream in STREAMS:
        body = {"model": "policy", "temperature": 0, "max_tokens": 60} | CASES[case] | stream
        through = await harness.chat(body)
        direct = await harness.session.post(f"{vllm_server.url}/v1/chat/completions", json=body)
        assert (through.status, through.headers["content-type"]) == (direct.status, direct.headers["content-type"])
        assert (through.status == 200) == (not case.startswith("refused"))
        assert canonical(await through.text()) == canonical(await direct.text())


def log_probs(model_dir: Path, span: ReceivedSpan) -> list[float]:
    """What transformers says of the response tokens, in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    prompt, response = span.json("tracegrad.prompt.token_ids"), span.json("tracegrad.response.token_ids")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    table = torch.log_softmax(logits, -1)
    return [float(table[place, token]) for place, token in enumerate(response)]


async def test_spans_hold_the_tokens_that_were_sampled(harness: Harness, vllm_server: Any) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(vllm_server.model_dir)
    for stream in (False, True):
        for body in ({"messages": HELLO}, TOOL, {"messages": HELLO, "temperature": 1.0}):
            await (await harness.chat({"temperature": 0, "stream": stream} | body)).read()
    for span in await harness.receiver.wait(6):
        assert span.attributes["tracegrad.trainable"] is True
        prompt = tokenizer.decode(span.json("tracegrad.prompt.token_ids"))
        assert prompt.endswith("<|im_start|>assistant\n")
        sampled = span.json("tracegrad.response.token_ids")
        response = tokenizer.decode(sampled)
        part = span.json("gen_ai.output.messages")[0]["parts"][0]
        if part["type"] == "tool_call":
            assert json.loads(response.split("<tool_call>")[1].split("</tool_call>")[0])["name"] == part["name"]
        else:
            # A sampled special token is a token, and no text.
            assert tokenizer.decode(sampled, skip_special_tokens=True) == part["content"]
        expected = log_probs(vllm_server.model_dir, span)
        assert span.json("tracegrad.response.logprobs") == pytest.approx(expected, abs=1e-4)


async def publication(harness: Harness, version: int, source: Path) -> dict[str, Any]:
    """What asks for it, of weights that are where the sidecar reads them."""
    file = harness.weights / "policy" / str(version) / "model.safetensors"
    await asyncio.to_thread(file.parent.mkdir, parents=True)
    await asyncio.to_thread(shutil.copy, source / "model.safetensors", file)
    sha256 = hashlib.sha256(await asyncio.to_thread(file.read_bytes)).hexdigest()
    return {"version": version, "weights": str(file.parent), "sha256": sha256}


async def ask(harness: Harness, body: dict[str, Any]) -> dict[str, Any]:
    answer = await harness.session.post(f"{harness.admin}/policies/policy/publish", json=body)
    told: dict[str, Any] = await answer.json()
    assert answer.status == 200, told
    return told


async def publish(harness: Harness, version: int, source: Path) -> dict[str, Any]:
    return await ask(harness, await publication(harness, version, source))


async def test_weights_are_swapped_under_calls_in_flight(
    harness: Harness, vllm_server: Any, model_maker: Any, tmp_path: Path
) -> None:
    other = await asyncio.to_thread(model_maker, tmp_path / "other", seed=1)
    # So long a prompt fills blocks of the prefix cache, which calls in flight hold while the weights change.
    prompt = [{"role": "user", "content": "Say hello. " * 40}]
    long = {"messages": prompt, "ignore_eos": True, "max_tokens": 320, "temperature": 1.0}
    mixed: list[bool] = []
    try:
        for number in range(1, 9):  # where a call ended before the engine heard of the weights, another time
            base = 1000 + 2 * number  # versions that no other test publishes
            await publish(harness, base, vllm_server.model_dir)
            body = await publication(harness, base + 1, other)
            early = [asyncio.create_task(harness.chat(long | {"stream": bool(one % 2)})) for one in range(8)]
            await all_running(harness.session, vllm_server.url, early)
            assert (await ask(harness, body))["version"] == base + 1
            answers = [*await asyncio.gather(*early), await harness.chat(long | {"max_tokens": 20})]
            assert [answer.status for answer in answers] == [200] * 9
            for answer in answers:
                await answer.read()
            spans = {span.span_id: span for span in await harness.receiver.wait(9 * number)}
            calls = [spans[answer.headers["x-tracegrad-span-id"]] for answer in answers]
            for call in calls[:8]:
                assert call.attributes["gen_ai.usage.output_tokens"] == 320, "nothing was cut short"
            late = calls[8]
            assert late.attributes["tracegrad.policy.version"] == base + 1
            expected = log_probs(other, late)
            assert late.json("tracegrad.response.logprobs") == pytest.approx(expected, abs=1e-4)
            mixed = [one.attributes.get("tracegrad.untrainable.reason") == "mixed_versions" for one in calls[:8]]
            if all(mixed):
                break
            for call in (one for one, is_mixed in zip(calls, mixed, strict=False) if not is_mixed):
                sampled_by = {base: vllm_server.model_dir, base + 1: other}[call.attributes["tracegrad.policy.version"]]
                expected = log_probs(sampled_by, call)
                assert call.json("tracegrad.response.logprobs") == pytest.approx(expected, abs=1e-4)
        assert all(mixed), "the weights changed while all eight were in flight"
    finally:
        await publish(harness, 1100, vllm_server.model_dir)


async def test_after_a_file_that_vllm_refuses_it_serves_nothing_until_the_next(
    harness: Harness, vllm_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.policy.MEND_WAIT_S", 0.5)
    file = harness.weights / "model.safetensors"
    for content, status, serves in ((b"no weights", 400, 200), (safetensors(), 502, 503)):
        file.write_bytes(content)
        body = {"version": 2000, "weights": str(file), "sha256": hashlib.sha256(content).hexdigest()}
        answer = await harness.session.post(f"{harness.admin}/policies/policy/publish", json=body)
        assert answer.status == status
        assert (await harness.chat({"messages": HELLO, "temperature": 0})).status == serves
    await publish(harness, 2001, vllm_server.model_dir)
    answer = await harness.chat({"messages": HELLO, "temperature": 0})
    assert answer.headers["x-tracegrad-policy"] == "policy@2001"


async def test_the_engine_itself_checks_what_it_reads(harness: Harness, vllm_server: Any) -> None:
    await publish(harness, 2002, vllm_server.model_dir)
    file = harness.weights / "policy" / "2002" / "model.safetensors"
    session, url = harness.session, vllm_server.url
    await engine.pause(session, url)
    try:
        with pytest.raises(EngineError, match="refused /update_weights"):
            await engine.load_weights(session, url, str(file), hashlib.sha256(b"another").hexdigest(), 2003)
        assert await engine.weight_version(session, url, 60) == 2002
        sha256 = hashlib.sha256(await asyncio.to_thread(file.read_bytes)).hexdigest()
        await engine.load_weights(session, url, str(file), sha256, 2003)
        assert await engine.weight_version(session, url, 60) == 2003
    finally:
        await engine.resume(session, url)


async def test_the_engine_tells_whether_it_holds_strict_tools_to_their_schema(vllm_server: Any) -> None:
    async with control_session() as session:
        assert await engine.token_settings(session, vllm_server.url) == ("raw_logprobs", True)


async def test_the_engine_tells_what_its_log_probs_are_of(harness_for: Any, vllm_server: Any) -> None:
    pins = {"logprobs_mode": "raw_logprobs", "temperature": 1.0}
    harness = await harness_for(
        {"name": "policy", "upstream": vllm_server.url, "policy": "policy", "pins": pins, "pin_calls": "all"}
    )
    answer = await harness.chat({"messages": HELLO, "temperature": 0, "max_tokens": 5})
    assert answer.status == 200
    span = await harness.receiver.one()
    applied = span.json("tracegrad.sampling")
    assert (applied["temperature"], applied["logprobs_mode"]) == (1.0, "raw_logprobs")
    assert span.attributes["tracegrad.trainable"] is True
    assert (await harness.session.get(f"{harness.admin}/readyz")).status == 200
