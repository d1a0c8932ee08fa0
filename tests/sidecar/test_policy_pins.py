"""A policy may pin sampling settings for training traffic; they are recorded as applied."""

import asyncio
import json
from typing import Any

import pytest
from fake_vllm import FakeVllm
from publishing import policy_of, ready
from sidecar_harness import Harness

from sidecar.routes import build_routes
from tracegrad.errors import SettingsError
from tracegrad.settings import Settings

PINS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
ASKED = {"temperature": 0.2, "top_p": 0.5, "max_tokens": 9}


def entry(fake: FakeVllm, **values: Any) -> dict[str, Any]:
    return {"name": "policy", "upstream": fake.url, "policy": "policy", **values}


async def sampling_of(harness: Harness, count: int) -> list[dict[str, Any]]:
    return [json.loads(span.attributes["tracegrad.sampling"]) for span in await harness.receiver.wait(count)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("named", ["path", "header", "baggage"])
async def test_pins_hold_for_named_rollouts(harness_for: Any, fake: FakeVllm, named: str, stream: bool) -> None:
    harness = await harness_for(entry(fake, pins=PINS))
    at = "/rollout/r1/v1" if named == "path" else "/v1"
    headers = {"header": {"x_rollout_id": "r1"}, "baggage": {"baggage": "rollout.id=r1,rollout.split=train"}}
    answer = await harness.chat(ASKED | {"stream": stream}, at=at, **headers.get(named, {}))
    assert answer.status == 200
    await answer.read()
    sent = fake.requests[0]
    assert {name: sent[name] for name in PINS} == PINS
    assert sent["max_tokens"] == 9, "what is not pinned stays the agent's"
    (applied,) = await sampling_of(harness, 1)
    assert {name: applied[name] for name in PINS} == PINS
    span = await harness.receiver.one()
    assert span.attributes["gen_ai.request.temperature"] == 1.0
    assert span.attributes["tracegrad.trainable"] is True


async def test_other_calls_keep_their_own_settings(harness_for: Any, fake: FakeVllm) -> None:
    harness = await harness_for(entry(fake, pins=PINS))
    await harness.chat(ASKED)
    await harness.chat(ASKED, at="/rollout/r1/v1", baggage="rollout.id=r1,rollout.split=eval")
    for sent in fake.requests:
        assert (sent["temperature"], sent["top_p"], "top_k" in sent) == (0.2, 0.5, False)
    for applied in await sampling_of(harness, 2):
        assert (applied["temperature"], applied["top_p"], applied["top_k"]) == (0.2, 0.5, None)


async def test_pins_can_hold_for_all_calls(harness_for: Any, fake: FakeVllm) -> None:
    harness = await harness_for(entry(fake, pins=PINS, pin_calls="all"))
    await harness.chat(ASKED)
    assert fake.requests[0]["temperature"] == 1.0


async def test_what_log_probs_are_of_is_recorded(harness_for: Any, fake: FakeVllm) -> None:
    fake.logprobs_mode = "processed_logprobs"
    harness = await harness_for(entry(fake))
    found = None
    for number in range(1, 100):
        await harness.chat({})
        found = (await sampling_of(harness, number))[-1].get("logprobs_mode")
        if found is not None:
            break
        await asyncio.sleep(0.02)
    assert found == "processed_logprobs"


async def test_an_engine_that_tells_no_mode_is_recorded_without(
    harness_for: Any, fake: FakeVllm, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sidecar")
    harness = await harness_for(entry(fake))
    await ready(harness)
    await harness.chat({})
    (applied,) = await sampling_of(harness, 1)
    assert "logprobs_mode" not in applied
    assert f"replica found url={fake.url}" in caplog.text
    assert "/server_info" not in caplog.text, "nobody pinned it"


async def test_the_pinned_mode_is_asked_for_before_an_engine_serves(harness_for: Any, fake: FakeVllm) -> None:
    fake.logprobs_mode = "raw_logprobs"
    harness = await harness_for(entry(fake, pins={"logprobs_mode": "raw_logprobs"}))
    await harness.chat({})
    assert "logprobs_mode" not in fake.requests[0], "no request can set it"
    span = await harness.receiver.one()
    assert span.attributes["tracegrad.trainable"] is True
    assert json.loads(span.attributes["tracegrad.sampling"])["logprobs_mode"] == "raw_logprobs"
    await ready(harness)


async def test_an_engine_of_another_mode_is_not_ready_and_trains_nothing(
    harness_for: Any, fake: FakeVllm, another_fake: Any
) -> None:
    fake.logprobs_mode = "processed_logprobs"
    harness = await harness_for(entry(fake, pins={"logprobs_mode": "raw_logprobs"}))
    assert (await harness.chat({})).status == 200, "agents go on"
    span = await harness.receiver.one()
    assert span.attributes["tracegrad.untrainable.reason"] == "no_logprobs"
    unready = await harness.session.get(f"{harness.admin}/readyz")
    assert unready.status == 503
    (problem,) = (await unready.json())["problems"]
    assert "returns processed_logprobs, but its policy pins logprobs_mode = raw_logprobs" in problem
    assert "--logprobs-mode=raw_logprobs" in problem
    assert (await policy_of(harness))["replicas"][0]["healthy"] is False
    async with another_fake() as right:
        right.logprobs_mode = "raw_logprobs"
        both = await harness_for(entry(fake, upstream=[fake.url, right.url], pins={"logprobs_mode": "raw_logprobs"}))
        for number in range(6):
            await both.chat({}, x_rollout_id=f"r{number}")
        assert len(right.requests) == 6, "one with the right mode serves instead"


async def test_an_engine_that_does_not_tell_the_pinned_mode_trains_nothing(harness_for: Any, fake: FakeVllm) -> None:
    harness = await harness_for(entry(fake, pins={"logprobs_mode": "raw_logprobs"}))
    assert (await harness.chat({})).status == 200
    assert (await harness.receiver.one()).attributes["tracegrad.trainable"] is False
    problems = (await (await harness.session.get(f"{harness.admin}/readyz")).json())["problems"]
    assert "no /server_info: start vLLM with VLLM_SERVER_DEV_MODE=1" in problems[0]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"name": "a", "pins": {"temperature": 1.0}}], "has pins but no policy"),
        (
            [
                {"name": name, "policy": "p", "pins": {"logprobs_mode": f"{name}_logprobs"}}
                for name in ("raw", "processed")
            ],
            "pin different logprobs_mode",
        ),
    ],
)
def test_pins_that_make_no_sense_are_refused(entries: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        build_routes(Settings.model_validate({"model": entries}))


@pytest.mark.parametrize("pins", [{"temprature": 1}, {"temperature": -1}, {"top_p": 0}, {"logprobs_mode": "best"}])
def test_pins_are_checked(pins: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(pins))):
        Settings.model_validate({"model": [{"name": "a", "policy": "p", "pins": pins}]})
