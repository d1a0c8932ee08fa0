"""What a request line may name; anything else is refused in words that say what is wrong."""

import asyncio
import json
from typing import Any

import pytest
from fake_vllm import FakeVllm
from sidecar_harness import Harness

from sidecar.dialect import Refusal
from sidecar.target import Target, split_target


@pytest.mark.parametrize(
    ("raw", "target"),
    [
        ("/v1/chat/completions", Target("/v1/chat/completions", None, 0)),
        ("/rollout/r1/v1/chat/completions?x=%2F", Target("/v1/chat/completions?x=%2F", "r1", 0)),
        ("/rollout/r1/attempt/3/v1/models", Target("/v1/models", "r1", 3)),
        ("/rollout/r1/attempt/999999999/v1/models", Target("/v1/models", "r1", 999999999)),
        ("/rollout/a%2Fb/v1/models", Target("/v1/models", "a/b", 0)),
        (f"/rollout/{'r' * 200}/v1/models", Target("/v1/models", "r" * 200, 0)),
        ("/rollout/r1/v1", Target("/v1", "r1", 0)),
        ("/rollouts", Target("/rollouts", None, 0)),
        ("http://host/v1/models", Target("/v1/models", None, 0)),
        ("HTTP://host:1/rollout/r1/v1/models?a=http://b", Target("/v1/models?a=http://b", "r1", 0)),
        ("https://host", Target("/", None, 0)),
        ("http://host?a=b", Target("/?a=b", None, 0)),
    ],
)
def test_a_path_and_what_its_prefix_names(raw: str, target: Target) -> None:
    assert split_target(raw) == target


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("/rollout/r%0a1/v1/models", "must be printable ASCII without spaces"),
        ("/rollout/%20/v1/models", "must be printable ASCII without spaces"),
        ("/rollout/caf%C3%A9/v1/models", "must be printable ASCII without spaces"),
        (f"/rollout/{'r' * 201}/v1/models", "has 201 characters, and may have 200"),
        ("/rollout//v1/models", "the rollout id in the path is empty"),
        ("/rollout/r1/attempt/zz/v1/models", "the attempt in the path must be a number: 'zz' is none"),
        ("/rollout/r1/attempt//v1/models", "must be a number"),
        ("/rollout/r1/attempt/-1/v1/models", "must be a number"),
        ("/rollout/r1/attempt/1000000000/v1/models", "may be 999999999 at most"),
        ("/rollout/r1/chat/completions", "/rollout/ID/v1/"),
        ("/rollout/r1/attempt/1", "/rollout/ID/attempt/N/v1/"),
        ("*", "OPTIONS * is not answered here"),
        ("nonsense", "must be a path"),
    ],
)
def test_what_cannot_be_meant(raw: str, said: str) -> None:
    with pytest.raises(Refusal) as caught:
        split_target(raw, "OPTIONS")
    assert said in caught.value.message


async def spoken(harness: Harness, line: str) -> tuple[int, Any]:
    """Status and body of the answer to a request line."""
    reader, writer = await asyncio.open_connection(*harness.url.removeprefix("http://").split(":"))
    writer.write(f"{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(body)


async def test_an_address_names_its_path(harness: Harness) -> None:
    status, models = await spoken(harness, "GET http://elsewhere/v1/models")
    assert (status, models["object"]) == (200, "list")


async def test_a_client_that_takes_it_for_a_proxy_is_told(harness: Harness) -> None:
    for line in ("CONNECT example.com:443", "OPTIONS *"):
        status, answer = await spoken(harness, line)
        assert (status, answer["error"]["code"]) == (405 if "CONNECT" in line else 400, "invalid_target")


async def test_refusals_speak_the_apis_words(harness: Harness, fake: FakeVllm) -> None:
    answer = await harness.session.post(f"{harness.url}/rollout//v1/messages", json={})
    assert answer.status == 400
    assert (await answer.json())["error"]["type"] == "invalid_request_error"
    assert fake.requests == []


@pytest.mark.parametrize("rollout_id", ["r" * 201, "caf\u00e9", "a b"])
async def test_a_header_that_no_span_could_have_is_refused(harness: Harness, fake: FakeVllm, rollout_id: str) -> None:
    answer = await harness.chat({}, x_rollout_id=rollout_id)
    assert (answer.status, (await answer.json())["error"]["code"]) == (400, "invalid_rollout_id")
    assert "the x-rollout-id header" in (await answer.json())["error"]["message"]
    assert (await harness.chat({}, at="/rollout/r1/v1", x_rollout_id=rollout_id)).status == 200, "the path comes first"
    assert len(fake.requests) == 1
