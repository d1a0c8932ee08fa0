"""A running sidecar takes up a new configuration, all of it or nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_vllm import FakeVllm
from sidecar_process import until
from stand_ins import Receiver
from talk import MORE, SEA, USER

from sidecar import fleet
from sidecar.exposition import Family, merged, what_stays
from sidecar.operation import Operation
from sidecar.places import placed
from sidecar.server import serve
from tracegrad.errors import SettingsError
from tracegrad.settings import Settings

CHAT = {"model": "policy", "messages": []}


@dataclass
class Changing:
    """A sidecar whose configuration is `values`."""

    values: dict[str, Any]
    running: Operation
    client: aiohttp.ClientSession

    async def chat(self, **headers: str) -> aiohttp.ClientResponse:
        url = f"http://127.0.0.1:{self.running.port}/v1/chat/completions"
        return await self.client.post(url, json=CHAT, headers=headers)


def policy(*upstreams: FakeVllm, name: str = "policy") -> dict[str, Any]:
    return {"name": name, "policy": name, "upstream": [one.url for one in upstreams]}


@pytest.fixture
async def changing(tmp_path: Path, fake: FakeVllm, receiver: Receiver) -> AsyncIterator[Changing]:
    values: dict[str, Any] = {
        "otlp": receiver.url,
        "sidecar": {"port": 0, "admin_port": 0, "data": tmp_path / "changing", "weights": tmp_path / "weights"},
        "model": [policy(fake)],
    }
    start = Settings.model_validate(values)
    async with contextlib.AsyncExitStack() as stack:
        again = serve(start, again=lambda: Settings.model_validate(values), shutdown_s=1.0)
        running = await stack.enter_async_context(again)
        yield Changing(values, running, await stack.enter_async_context(aiohttp.ClientSession()))


async def test_calls_in_flight_finish_where_they_began(
    changing: Changing, fake: FakeVllm, another_fake: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "CHECK_S", 0.02)
    monkeypatch.setattr(fleet, "RETIRE_S", 0.5)
    fake.token_delay_s = 0.1
    async with another_fake() as second:
        first = asyncio.create_task(changing.chat())
        await until(lambda: fake.requests)
        changing.values["model"] = [policy(second)]
        assert await changing.running.reload() == []
        assert (await changing.chat()).status == 200
        assert (await first).status == 200
        assert (len(fake.requests), len(second.requests)) == (1, 1)
        spans = await receiver.wait(2)
        assert [span.attributes["tracegrad.trainable"] for span in spans] == [True, True], (
            "the old engine is still asked"
        )
        await until(lambda: not any(task.get_name() == f"watch {fake.url}" for task in asyncio.all_tasks()))
        assert any(task.get_name() == f"watch {second.url}" for task in asyncio.all_tasks())


async def test_an_engine_that_stays_keeps_what_is_known_of_it(
    changing: Changing, fake: FakeVllm, another_fake: Any
) -> None:
    async with another_fake() as second:
        assert (await changing.chat()).headers["x-tracegrad-policy"] == "policy@0"
        changing.values["model"] = [policy(second, fake), policy(fake, name="more") | {"policy": "policy"}]
        await changing.running.reload()
        (one,) = [task for task in asyncio.all_tasks() if task.get_name() == f"watch {fake.url}"]
        await changing.client.post(f"http://127.0.0.1:{changing.running.admin_port}/policies/policy/pause")
        changing.values["model"] = [policy(fake, second)]
        await changing.running.reload()
        assert not one.done()
        listed = await changing.client.get(f"http://127.0.0.1:{changing.running.admin_port}/policies")
        (described,) = (await listed.json())["policies"]
        assert [replica["paused"] for replica in described["replicas"]] == [True, True], "a pause outlives a reload"


async def test_rollouts_go_on_by_their_tokens(changing: Changing, served: Any, receiver: Receiver) -> None:
    _, engine = await served()

    async def ask(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
        engine.says.append(SEA)
        url = f"http://127.0.0.1:{changing.running.port}/rollout/r/v1/chat/completions"
        answer = await changing.client.post(url, json={"model": "policy", "messages": said})
        return [*said, (await answer.json())["choices"][0]["message"]]

    changing.values["model"] = [policy(engine)]
    await changing.running.reload()
    said = await ask([USER])
    for setting in ("auto", "tokens"):
        changing.values["model"] = [policy(engine) | {"continuation": setting}]
        await changing.running.reload()
        said = await ask([*said, MORE])
    spans = sorted(await receiver.wait(3), key=lambda span: span.start_ns)
    assert [span.attributes.get("tracegrad.continuation") for span in spans] == [None, "tokens", "tokens"]


async def test_tenants_limits_and_the_admin_key_change(changing: Changing, tmp_path: Path) -> None:
    changing.values["tenant"] = [{"name": "a", "key": "key-a"}]
    changing.values["sidecar"] |= {"admin_key": "key-admin", "access_log": str(tmp_path / "log")}
    assert await changing.running.reload() == []
    assert (await changing.chat()).status == 401
    assert (await changing.chat(authorization="Bearer key-a")).status == 200
    admin = f"http://127.0.0.1:{changing.running.admin_port}/metrics"
    assert (await changing.client.get(admin)).status == 401
    del changing.values["tenant"]
    changing.values["sidecar"] |= {"max_body_bytes": 10, "access_log": "off"}
    await changing.running.reload()
    assert (await changing.chat()).status == 413
    assert (tmp_path / "log").read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": [{"name": "a", "upstream": []}]}, "no upstream"),
        ({"tenant": [{"name": "a", "key_env": "NOT_SET_ANYWHERE"}]}, "NOT_SET_ANYWHERE"),
        ({"sidecar": {"access_log": "/absent/log"}}, "no access log at /absent/log"),
        ({"sidecar": {"admin_key_file": "/absent/key"}}, "/absent/key"),
    ],
)
async def test_a_bad_configuration_is_refused_and_the_old_one_stays(
    changing: Changing, change: dict[str, Any], said: str
) -> None:
    good = {**changing.values, "sidecar": dict(changing.values["sidecar"])}
    changing.values |= {**change, "sidecar": changing.values["sidecar"] | change.get("sidecar", {})}
    with pytest.raises(SettingsError, match=said):
        await changing.running.reload()
    answer = await changing.client.post(f"http://127.0.0.1:{changing.running.admin_port}/reload")
    assert answer.status == 400
    assert said in (await answer.json())["error"]
    assert (await changing.chat()).status == 200
    changing.values |= good
    changing.values.pop("tenant", None)
    await changing.running.reload()


async def test_what_needs_a_restart_is_named(changing: Changing, tmp_path: Path) -> None:
    changing.values["sidecar"] |= {"workers": 4, "data": tmp_path / "elsewhere", "timeout_s": 9}
    changing.values["otlp"] = "http://127.0.0.1:9"
    answer = await changing.client.post(f"http://127.0.0.1:{changing.running.admin_port}/reload")
    assert await answer.json() == {
        "status": "reloaded",
        "restart_for": ["sidecar.data", "sidecar.workers", "otlp"],
    }
    assert changing.running.settings.sidecar.timeout_s == 9
    assert changing.running.settings.sidecar.workers == 1


def test_engines_keep_their_places() -> None:
    first = placed(["a", "b", "c"], {}, 4)
    assert first == {"a": 0, "b": 1, "c": 2}
    second = placed(["d", "c", "a"], first, 4)
    assert second == {"c": 2, "a": 0, "d": 3}, "the place that has just become free comes last"
    assert placed(["e", "d", "c", "a"], second, 4)["e"] == 1
    with pytest.raises(SettingsError, match="restart the sidecar"):
        placed(["e", "f", "d", "c", "a"], second, 4)


def test_sums_over_processes() -> None:
    def families(calls: int, oldest: int, version: int) -> list[Family]:
        return [
            Family("calls_total", "counter", "", ("status",), {("200",): calls, (str(calls),): 1}),
            Family("oldest", "gauge", "", (), {(): oldest}, "max"),
            Family("version", "gauge", "", (), {(): version}, "own"),
        ]

    told = [Family.from_json(one.to_json()) for one in families(5, 9, 1)]
    assert told == families(5, 9, 1)
    calls, oldest, version = merged(families(3, 4, 7), [told])
    assert calls.samples == {("200",): 8, ("3",): 1, ("5",): 1}
    assert (oldest.samples[()], version.samples[()]) == (9, 7)
    calls, oldest, version = merged(families(3, 4, 7), [what_stays(told)])
    assert (calls.samples["200",], oldest.samples[()], version.samples[()]) == (8, 4, 7)
