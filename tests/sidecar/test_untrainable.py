"""Each reason why a call must not be trained on, produced by what causes it."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from fake_vllm import FakeVllm
from sidecar_harness import Harness

OLD_ENGINE = {
    "id": "c",
    "object": "chat.completion",
    "model": "policy",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}


async def trainable(harness: Harness, fake: FakeVllm) -> None:
    await harness.chat({})


async def without_token_ids(harness: Harness, fake: FakeVllm) -> None:
    fake.garbage = json.dumps(OLD_ENGINE).encode()
    await harness.chat({})


async def with_a_token_lost(harness: Harness, fake: FakeVllm) -> None:
    fake.drop_token = True
    await (await harness.chat({"stream": True})).read()


async def without_logprobs(harness: Harness, fake: FakeVllm) -> None:
    fake.drop_logprobs = True
    await harness.chat({})


async def by_beam_search(harness: Harness, fake: FakeVllm) -> None:
    await harness.chat({"use_beam_search": True, "logprobs": True, "return_token_ids": True})


async def aborted_by_the_engine(harness: Harness, fake: FakeVllm) -> None:
    fake.finish_reason = "abort"
    await harness.chat({})


async def with_an_error(harness: Harness, fake: FakeVllm) -> None:
    fake.error = (400, "too long")
    await harness.chat({})


async def while_weights_changed(harness: Harness, fake: FakeVllm) -> None:
    fake.token_delay_s = 0.05
    answer = await harness.chat({"stream": True})
    await answer.content.readany()
    fake.version = "7"
    await answer.read()


async def of_a_path_that_passes_through(harness: Harness, fake: FakeVllm) -> None:
    await harness.session.post(f"{harness.url}/v1/embeddings", json={"model": "policy", "input": "x"})


async def whose_client_left(harness: Harness, fake: FakeVllm) -> None:
    fake.token_delay_s = 5
    answer = await harness.chat({"stream": True})
    await answer.content.readany()
    answer.close()


CAUSES: dict[Callable[[Harness, FakeVllm], Awaitable[None]], str | None] = {
    trainable: None,
    without_token_ids: "no_token_ids",
    with_a_token_lost: "incomplete_token_ids",
    without_logprobs: "no_logprobs",
    by_beam_search: "no_logprobs",
    aborted_by_the_engine: "aborted",
    with_an_error: "error",
    while_weights_changed: "mixed_versions",
    of_a_path_that_passes_through: "passthrough",
    whose_client_left: "client_disconnected",
}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.__name__)
async def test_a_call(harness: Harness, fake: FakeVllm, cause: Callable[[Harness, FakeVllm], Awaitable[None]]) -> None:
    await asyncio.wait_for(cause(harness, fake), 20)
    span = await harness.receiver.one()
    reason = CAUSES[cause]
    assert span.attributes["tracegrad.trainable"] is (reason is None)
    assert span.attributes.get("tracegrad.untrainable.reason") == reason
