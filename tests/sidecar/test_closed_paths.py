"""Agents reach of a policy's engine model calls that are captured, and what is known to be harmless."""

from typing import Any

import pytest
from fake_vllm import FakeVllm
from sidecar_harness import Harness
from yarl import URL

CLOSED = (
    *("/update_weights", "/%75pdate_weights", "/pause/", "//pause", "/tokenize/../pause", "/collective_rpc"),
    *(
        "/start_profile",
        "/stop_profile",
        "/fault_tolerance/apply",
        "/v1/load_lora_adapter",
        "/inference/v1/abort_requests",
    ),
    *(
        "/invocations",
        "/inference/v1/generate",
        "/v1/chat/completions/batch",
        "/v1/chat/completions/",
        "/cohere/v2/chat",
    ),
    *("/v1/systemone", "/echo", "/a/path/of/tomorrow"),
)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_agents_reach_of_an_engine_only_what_is_known_to_be_harmless(
    harness: Harness, fake: FakeVllm, method: str
) -> None:
    for path in CLOSED:
        url = URL(harness.url + path, encoded=True)
        answer = await harness.session.request(method, url, json={"update_info": {"path": "/etc/passwd"}})
        assert (answer.status, (await answer.json())["error"]["code"]) == (403, "closed_path"), path
    assert (fake.control, fake.requests) == ([], [])


@pytest.mark.parametrize("path", ["/tokenize", "/v1/rerank", "/v1/chat/completions/render", "/detokeni%7ae"])
async def test_what_an_engine_tells_is_open(harness: Harness, path: str) -> None:
    answer = await harness.session.post(URL(harness.url + path, encoded=True), json={})
    assert answer.status == 404, "by the engine, which has no such path here"
    assert (await harness.session.get(f"{harness.url}/echo")).status == 201


async def test_providers_have_no_closed_paths(harness_for: Any, fake: FakeVllm) -> None:
    harness = await harness_for(
        {"name": "policy", "upstream": fake.url, "policy": "policy"}, {"name": "*", "upstream": fake.url}
    )
    assert (await harness.session.post(f"{harness.url}/echo", json={})).status == 201
