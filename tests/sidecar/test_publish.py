"""Weights are swapped under running calls; every call is stamped with the version the engine itself named."""

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fake_vllm import FakeVllm
from publishing import policy_of, publish, ready, write_weights
from sidecar_harness import Harness, listening

SWAP = ("pause", "start_weight_update", "update_weights", "finish_weight_update", "reset_prefix_cache", "resume")


async def test_a_publication_follows_vllms_protocol(harness: Harness, fake: FakeVllm) -> None:
    await ready(harness)
    assert (await policy_of(harness))["version"] == 0
    first = write_weights(harness, 1)
    file = f"{harness.weights}/policy/1/model.safetensors"
    status, told = await publish(harness, first)
    assert status == 200
    assert (told["name"], told["version"], told["model"]) == ("policy", 1, "policy")
    served = {"url": fake.url, "version": 1, "healthy": True, "standing": "serves", "paused": False, "problem": ""}
    assert told["replicas"] == [served]
    assert told["stall_s"] < 5
    assert fake.control == [
        "init_weight_transfer_engine",
        "pause mode=keep",
        "start_weight_update",
        f"update_weights {file}",
        "finish_weight_update 1",
        "reset_prefix_cache reset_running_requests=true",
        "resume",
    ]
    assert fake.loads == [{"path": file, "sha256": first["sha256"]}], "the engine checks what it reads"
    second = write_weights(harness, 2, b"other") | {"weights": str(harness.weights / "policy/2/model.safetensors")}
    assert (await publish(harness, second))[0] == 200
    assert [one.split()[0] for one in fake.control[7:]] == list(SWAP), "the transfer is initialised once per engine"
    answer = await harness.chat({})
    assert answer.headers["x-tracegrad-policy"] == "policy@2"
    span = await harness.receiver.one()
    assert span.attributes["tracegrad.policy.version"] == 2
    assert span.attributes["tracegrad.trainable"] is True


async def test_publishing_the_same_again_changes_nothing(harness: Harness, fake: FakeVllm) -> None:
    body = write_weights(harness, 1)
    assert (await publish(harness, body))[0] == 200
    steps = len(fake.control)
    assert (await publish(harness, body))[0] == 200
    assert len(fake.control) == steps
    status, told = await publish(harness, write_weights(harness, 1, b"changed"))
    assert status == 409
    assert "use a new version" in told["error"]
    assert len(fake.control) == steps


async def test_calls_in_flight_never_fail_and_are_marked(harness: Harness, fake: FakeVllm) -> None:
    await ready(harness)
    fake.token_delay_s = 0.1
    early = [asyncio.create_task(harness.chat({"stream": stream})) for stream in (True, False)]
    await asyncio.sleep(0.2)
    held = []

    async def call_meanwhile(step: str) -> None:
        if step == "update_weights":
            held.append(asyncio.create_task(harness.chat({"user": "held"})))
            await asyncio.sleep(0.1)
            assert all(request.get("user") != "held" for request in fake.requests), "new calls wait in the sidecar"

    fake.on_step = call_meanwhile
    assert (await publish(harness, write_weights(harness, 1)))[0] == 200
    answers = await asyncio.gather(*early, *held)
    assert [answer.status for answer in answers] == [200] * 3
    assert (await answers[0].text()).endswith("data: [DONE]\n\n")
    assert [answer.headers["x-tracegrad-policy"] for answer in answers] == ["policy@0", "policy@0", "policy@1"]
    spans = {span.span_id: span.attributes for span in await harness.receiver.wait(3)}
    by_call = [spans[answer.headers["x-tracegrad-span-id"]] for answer in answers]
    assert [one.get("tracegrad.untrainable.reason") for one in by_call] == ["mixed_versions", "mixed_versions", None]
    assert [one.get("tracegrad.policy.version") for one in by_call] == [None, None, 1]


@pytest.mark.parametrize("step", SWAP[:5])
async def test_a_failed_step_is_told_and_the_engine_resumed(
    harness: Harness, fake: FakeVllm, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.policy.MEND_WAIT_S", 0.1)
    await ready(harness)
    fake.fail_step = step
    status, told = await publish(harness, write_weights(harness, 1))
    assert status == 502
    assert f"refused /{step}" in told["error"]
    assert fake.control[-1] == "resume"
    assert fake.running.is_set()
    assert told["replicas"][0]["version"] == (0 if step == "pause" else None)
    assert f"{fake.url} runs {'version 0' if step == 'pause' else 'unknown weights'}" in told["error"]
    touched = step != "pause"
    answer = await harness.chat({})
    assert answer.status == (503 if touched else 200), "a model that may be corrupted answers no agent"
    assert len(fake.requests) == (not touched)
    span = await harness.receiver.one()
    assert span.attributes.get("tracegrad.untrainable.reason") == ("error" if touched else None)
    if touched:
        assert answer.headers["retry-after"] == "5"
        error = (await answer.json())["error"]
        assert error["code"] == span.attributes["error.type"] == "unknown_weights"
        assert "runs unknown weights and serves nothing, since a weight update failed half-way" in error["message"]
        assert f"refused /{step}" in error["message"]
        assert error["message"].endswith("publish again, or restart it")
        embeddings = {"model": "policy", "input": "x"}
        assert (await harness.session.post(f"{harness.url}/v1/embeddings", json=embeddings)).status == 503
        assert (await policy_of(harness))["replicas"][0]["standing"] == "broken"
    fake.fail_step = None
    assert (await publish(harness, write_weights(harness, 1)))[0] == 200, "the whole sequence again repairs it"
    await ready(harness)
    assert (await policy_of(harness))["version"] == 1


async def test_an_update_left_open_by_another_publisher_is_closed_first(harness: Harness, fake: FakeVllm) -> None:
    await ready(harness)
    fake.updating = True
    assert (await publish(harness, write_weights(harness, 1)))[0] == 200
    assert "update_weights" in fake.control, "an empty transfer, which fails and so ends the open update"


async def test_an_engine_found_paused_is_resumed_and_not_trusted(harness_for: Any, fake: FakeVllm) -> None:
    fake.running.clear()
    harness = await harness_for({"name": "policy", "upstream": fake.url, "policy": "policy"})
    assert (await harness.chat({})).status == 200
    span = await harness.receiver.one()
    assert span.attributes["tracegrad.untrainable.reason"] == "mixed_versions"
    assert "in the middle of a weight update" in (await policy_of(harness))["replicas"][0]["problem"]
    assert (await publish(harness, write_weights(harness, 4)))[0] == 200
    assert (await policy_of(harness))["version"] == 4


async def test_what_may_not_be_published(harness: Harness, fake: FakeVllm, tmp_path: Path) -> None:
    good = write_weights(harness, 1)
    outside = tmp_path / "model.safetensors"
    outside.write_bytes(b"weights")
    link = harness.weights / "link.safetensors"
    link.symlink_to(outside)
    junk = harness.weights / "junk.safetensors"
    junk.write_bytes(b"junk")
    junk_sha256 = hashlib.sha256(b"junk").hexdigest()
    text = harness.weights / "notes.txt"
    text.write_bytes(b"weights")
    for change, status, said in [
        ({"weights": str(outside)}, 400, "must lie under"),
        ({"weights": f"{harness.weights}/../model.safetensors"}, 400, "must lie under"),
        ({"weights": str(link)}, 400, "must lie under"),
        ({"weights": str(text)}, 400, ".safetensors"),
        ({"weights": str(harness.weights)}, 400, "model.safetensors"),
        ({"weights": str(harness.weights / "absent")}, 400, "neither"),
        ({"weights": "a\0b"}, 400, "cannot be read"),
        ({"weights": str(junk), "sha256": junk_sha256}, 400, "is not a safetensors file"),
        ({"sha256": "0" * 64}, 409, "write it again"),
        ({"sha256": "short"}, 400, "sha256"),
        ({"version": 0}, 400, "version"),
        ({"version": True}, 400, "version"),
        ({"version": "1"}, 400, "version"),
        ({"more": 1}, 400, "more"),
    ]:
        answered, told = await publish(harness, good | change)
        assert (answered, said in told["error"]) == (status, True), (change, told)
    assert (await publish(harness, good, policy="nobody"))[0] == 404
    raw = await harness.session.post(f"{harness.admin}/policies/policy/publish", data=b"{")
    assert raw.status == 400
    assert fake.control == []


async def test_one_publication_at_a_time(harness: Harness, fake: FakeVllm) -> None:
    async def slow(_: str) -> None:
        await asyncio.sleep(0.05)

    fake.on_step = slow
    bodies = [write_weights(harness, version) for version in (1, 2)]
    answers = await asyncio.gather(*(publish(harness, body) for body in bodies))
    assert sorted(status for status, _ in answers) == [200, 409]


async def test_replicas_are_updated_one_after_another(harness_for: Any, fake: FakeVllm, another_fake: Any) -> None:
    async with another_fake() as other:
        harness = await harness_for({"name": "policy", "upstream": [fake.url, other.url], "policy": "policy"})
        await ready(harness)
        for _ in range(4):
            await harness.chat({})
        fake.token_delay_s = other.token_delay_s = 0.05
        await asyncio.gather(*(harness.chat({}) for _ in range(4)))
        assert len(fake.requests) > 1 < len(other.requests), "both share the load"
        meanwhile = []

        async def call_meanwhile(step: str) -> None:
            if step == "update_weights":
                meanwhile.append(await harness.chat({}))

        fake.on_step = call_meanwhile
        status, told = await publish(harness, write_weights(harness, 3))
        assert status == 200
        assert [one["version"] for one in told["replicas"]] == [3, 3]
        assert meanwhile[0].headers["x-tracegrad-policy"] == "policy@0", "the other replica serves meanwhile"


async def test_weights_changed_behind_our_back_are_noticed(harness: Harness, fake: FakeVllm) -> None:
    await ready(harness)
    fake.token_delay_s = 0.05
    call = asyncio.create_task(harness.chat({}))
    await asyncio.sleep(0.1)
    fake.version = "5"
    await call
    span = await harness.receiver.one()
    assert span.attributes["tracegrad.untrainable.reason"] == "mixed_versions"
    assert (await policy_of(harness))["version"] == 5


async def test_an_engine_that_cannot_tell_its_version_serves_but_does_not_train(harness_for: Any) -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", FakeVllm().chat)
    async with listening(app) as url:
        harness = await harness_for({"name": "*", "upstream": url, "policy": "policy"})
        started = time.monotonic()
        answer = await harness.chat({})
        assert answer.status == 200
        assert time.monotonic() - started < 0.5, "no call waits for a version that will not come"
        assert "x-tracegrad-policy" not in answer.headers
        span = await harness.receiver.one()
        assert span.attributes["tracegrad.untrainable.reason"] == "mixed_versions"
        problems = (await (await harness.session.get(f"{harness.admin}/readyz")).json())["problems"]
        assert "VLLM_SERVER_DEV_MODE=1" in problems[0]


async def test_pause_holds_calls_until_resume(harness: Harness, fake: FakeVllm) -> None:
    await ready(harness)
    paused = await harness.session.post(f"{harness.admin}/policies/policy/pause")
    assert paused.status == 200
    assert (await paused.json())["replicas"][0]["paused"] is True
    call = asyncio.create_task(harness.chat({}))
    await asyncio.sleep(0.2)
    assert not call.done()
    assert (await publish(harness, write_weights(harness, 1)))[0] == 200
    assert fake.control[-1] != "resume", "a publication does not end an operator's pause"
    await asyncio.sleep(0.1)
    assert not call.done()
    assert (await harness.session.post(f"{harness.admin}/policies/policy/resume")).status == 200
    assert (await call).headers["x-tracegrad-policy"] == "policy@1"


async def test_metrics_count_what_happened(harness: Harness, fake: FakeVllm) -> None:
    await ready(harness)
    await publish(harness, write_weights(harness, 1))
    await publish(harness, write_weights(harness, 2) | {"sha256": "0" * 64})
    await harness.chat({})
    await harness.chat({"model": "nope"})
    await harness.receiver.wait(2)
    answer = await harness.session.get(f"{harness.admin}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    page = (await answer.text()).splitlines()
    for line in [
        'calls_total{status="200"} 1',
        'calls_total{status="404"} 1',
        'choices_total{trainable="true",reason=""} 1',
        'choices_total{trainable="false",reason="error"} 1',
        'publishes_total{policy="policy",outcome="ok"} 1',
        'publishes_total{policy="policy",outcome="refused"} 1',
        'spans_total{state="sent"} 2',
        f'policy_version{{policy="policy",replica="{fake.url}"}} 1',
        f'replica_up{{policy="policy",replica="{fake.url}"}} 1',
        f'in_flight{{policy="policy",replica="{fake.url}"}} 0',
    ]:
        assert f"tracegrad_sidecar_{line}" in page
