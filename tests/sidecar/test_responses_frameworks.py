"""What untouched agents of frameworks sent to `/v1/responses`, answered by a policy instead."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_vllm import FakeVllm
from openai.types.responses import Response
from sidecar_harness import Harness

from sidecar.sse import EventReader

CAPTURES = Path(__file__).parents[2] / "../shared/fixtures/framework_captures"


@pytest.mark.skipif(not CAPTURES.exists(), reason="needs the shared fixtures beside the checkout")
@pytest.mark.parametrize("framework", ["oaa", "maf"])
async def test_a_frameworks_calls_are_served_and_can_train(harness_for: Any, fake: FakeVllm, framework: str) -> None:
    lines = (CAPTURES / f"{framework}.http.jsonl").read_text(encoding="utf-8").splitlines()
    calls = [one for one in map(json.loads, lines) if one["path"].endswith("/v1/responses")]
    assert len(calls) >= 10
    harness: Harness = await harness_for({"name": "my-model", "upstream": fake.url, "policy": "policy"})
    latest: dict[str, str] = {}
    """By instructions, which name the agent: the response that its next call continues."""
    continued = 0
    for number, call in enumerate(calls):
        body = call["body"]
        if body.get("previous_response_id"):
            # The recording's ids are another server's: here the same agent's last response has their place.
            continued += 1
            body["previous_response_id"] = latest[body["instructions"]]
            body["input"] = [item | {"call_id": "call_1"} for item in body["input"]]
        answer = await harness.session.post(harness.url + call["path"], json=body)
        text = await answer.text()
        assert answer.status == 200, text
        if body.get("stream"):
            text = json.dumps(json.loads(EventReader().feed(text.encode())[-1].data or b"")["response"])
        response = Response.model_validate_json(text)
        assert response.status == "completed"
        latest[body["instructions"]] = response.id
        asked = fake.requests[number]
        assert asked["messages"][0] == {"role": "system", "content": body["instructions"]}
        roles = [message["role"] for message in asked["messages"]]
        if body.get("previous_response_id"):
            assert roles[1] == "user", "the conversation so far is there"
            assert roles[-2:] == ["assistant", "tool"]
        assert "system" not in roles[1:]
        assert [tool["function"]["name"] for tool in asked.get("tools", [])] == [
            tool["name"] for tool in body.get("tools", [])
        ]
    assert (continued > 0) == (framework == "maf")
    for span in await harness.receiver.wait(len(calls)):
        assert span.attributes["tracegrad.trainable"] is True
        assert span.attributes["tracegrad.rollout.id"] == "r-7"
