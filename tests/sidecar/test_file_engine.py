"""The `file` weight transfer in a real vLLM: what it serves after a swap is what transformers computes."""

import asyncio
import hashlib
import json
import logging
import shutil
import subprocess
import sys
import time
import types
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from vllm_metrics import all_running

from sidecar import vllm_file_engine
from trainer.config import TrainConfig
from trainer.engine import Engine
from trainer.rows import Row

pytestmark = pytest.mark.slow

PROMPTS = ([5, 17, 40], [9] * 30, list(range(10, 60)))
N_TOKENS = 24
OFFLINE = Path(__file__).with_name("offline_vllm.py")


@dataclass
class Live:
    """A vLLM under test, spoken to as the sidecar does."""

    url: str
    model: str
    session: aiohttp.ClientSession

    async def post(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        async with self.session.post(self.url + path, json=body or {}) as answer:
            return answer.status, await answer.text()

    async def control(self, path: str, body: dict[str, Any] | None = None) -> None:
        status, text = await self.post(path, body)
        assert status == 200, f"{path}: {status} {text}"

    async def swap(self, file: Path, version: str, sha256: str | None = None) -> float:
        """All of the protocol; returns how long generation stood still, in seconds."""
        started = time.monotonic()
        await self.control("/pause?mode=keep")
        await self.control("/start_weight_update")
        await self.control("/update_weights", {"update_info": {"path": str(file), "sha256": sha256}})
        await self.control("/finish_weight_update", {"weight_version": version})
        await self.control("/reset_prefix_cache?reset_running_requests=true")
        await self.control("/resume")
        return time.monotonic() - started

    async def refused(self, path: str, **update_info: Any) -> str:
        """An update that fails, and the resume after it; returns what vLLM answered."""
        await self.control("/pause?mode=keep")
        await self.control("/start_weight_update")
        status, text = await self.post("/update_weights", {"update_info": {"path": path, **update_info}})
        await self.control("/resume")
        assert status == 500
        return text

    async def version(self) -> str:
        async with self.session.get(self.url + "/weight_info") as answer:
            return str((await answer.json())["weight_version"])

    async def complete(self, prompt: list[int], n_tokens: int = N_TOKENS, **sampling: Any) -> dict[str, Any]:
        given = {"temperature": 0.0, "logprobs": 0, **sampling}
        body = {"model": self.model, "prompt": prompt, "max_tokens": n_tokens, "return_token_ids": True, **given}
        status, text = await self.post("/v1/completions", {**body, "ignore_eos": True})
        assert status == 200, text
        choice: dict[str, Any] = json.loads(text)["choices"][0]
        return choice

    async def greedy(self) -> list[list[int]]:
        return [(await self.complete(list(prompt)))["token_ids"] for prompt in PROMPTS]


@pytest.fixture
async def live(vllm_server: Any, tmp_path: Path) -> AsyncIterator[Live]:
    """The session's vLLM, untied; it has its own weights and no root again afterwards."""
    # vLLM closes idle connections, and aiohttp does not repeat a POST that met a closed one.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        vllm = Live(vllm_server.url, vllm_server.served_name, session)
        version = await vllm.version()
        await vllm.control("/init_weight_transfer_engine", {"init_info": {"root": str(tmp_path)}})
        yield vllm
        await vllm.control("/init_weight_transfer_engine", {"init_info": {}})
        await vllm.swap(vllm_server.model_dir / "model.safetensors", version)


@pytest.fixture(scope="module")
def learned(vllm_server: Any) -> Engine:
    """An engine whose policy has learned other answers than the model that vLLM was started with."""
    config = {"model": vllm_server.model_dir, "lr": 5e-3, "micro_batch_rows": 8}
    engine = Engine(TrainConfig.model_validate({"engine": config, "algorithm": {"loss": "gpg"}}))
    rng = np.random.default_rng(7)
    answers = [rng.integers(5, 200, N_TOKENS) for _ in PROMPTS]
    rows = [
        Row.of_response(np.array(prompt), answer, np.zeros(N_TOKENS, np.float32), advantage=1.0, weight=1 / N_TOKENS)
        for prompt, answer in zip(PROMPTS, answers, strict=True)
    ]
    for _ in range(60):
        engine.update(rows)
    return engine


def greedy_of(model: Any) -> list[list[int]]:
    """Greedy token ids by transformers, one sequence at a time."""
    with torch.no_grad():
        found = []
        for prompt in PROMPTS:
            ids = list(prompt)
            for _ in range(N_TOKENS):
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
            found.append(ids[len(prompt) :])
        return found


def load_with(model_dir: Path, file: Path, directory: Path) -> Any:
    """The model of `model_dir` with the weights of `file`, in transformers."""
    directory.mkdir()
    shutil.copy(model_dir / "config.json", directory)
    shutil.copy(file, directory / "model.safetensors")
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


async def test_vllm_serves_what_the_trainer_wrote(
    live: Live, vllm_server: Any, learned: Engine, tmp_path: Path
) -> None:
    before = await live.greedy()
    file = tmp_path / "policy" / "1" / "model.safetensors"
    learned.write_weights(file)
    stall_s = await live.swap(file, "1", hashlib.sha256(file.read_bytes()).hexdigest())
    logging.getLogger(__name__).info("swap took %.3f s", stall_s)
    assert await live.version() == "1"
    after = await live.greedy()
    assert after == greedy_of(load_with(vllm_server.model_dir, file, tmp_path / "hf"))
    assert all(new != old for new, old in zip(after, before, strict=True))

    sampled = [await live.complete(list(prompt), temperature=1.0, seed=3) for prompt in PROMPTS]
    rows = [
        Row.of_response(
            np.array(prompt, np.int64),
            np.array(choice["token_ids"], np.int64),
            np.array(choice["logprobs"]["token_logprobs"], np.float32),
            advantage=0.0,
            weight=0.0,
        )
        for prompt, choice in zip(PROMPTS, sampled, strict=True)
    ]
    for row, log_probs in zip(rows, learned.log_probs(rows), strict=True):
        np.testing.assert_allclose(row.behaviour_logprobs[row.mask], log_probs, atol=1e-4)


async def test_requests_in_flight_live_through_a_swap(live: Live, learned: Engine, tmp_path: Path) -> None:
    learned.write_weights(tmp_path / "w.safetensors")
    n_tokens, lived_through = 420, False
    for number in range(2, 10):  # where a request ended before the swap, another time
        requests = [
            asyncio.create_task(live.complete([5, index], n_tokens, temperature=1.0, seed=index)) for index in range(8)
        ]
        await all_running(live.session, live.url, requests)
        await live.swap(tmp_path / "w.safetensors", str(number))
        lived_through = not any(request.done() for request in requests)
        late = await live.complete([5])
        answers = await asyncio.gather(*requests)
        assert [len(answer["token_ids"]) for answer in answers] == [n_tokens] * 8
        assert len(late["token_ids"]) == N_TOKENS
        if lived_through:
            break
    assert lived_through, "too fast: nothing was in flight"


async def test_what_is_refused_changes_nothing(
    live: Live, vllm_server: Any, learned: Engine, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before, version = await live.greedy(), await live.version()
    good = tmp_path / "good.safetensors"
    learned.write_weights(good)
    tensors = load_file(good)
    outside = tmp_path_factory.mktemp("outside") / "w.safetensors"
    shutil.copy(good, outside)
    norm = tensors["model.norm.weight"]
    broken = {
        "lacks": {name: tensor for name, tensor in tensors.items() if name != "model.layers.1.mlp.up_proj.weight"},
        "unknown": {**tensors, "model.layers.2.mlp.up_proj.weight": norm.clone()},
        "shape": {**tensors, "model.norm.weight": norm[:-1].clone()},
    }
    for name, given in broken.items():
        save_file(given, tmp_path / f"{name}.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(good.read_bytes()[:-4])
    missing = "model.layers.1.mlp.up_proj.weight"
    assert "lie outside" in await live.refused(str(outside))
    assert "are not a .safetensors file" in await live.refused(str(tmp_path / "none.safetensors"))
    assert "is cut short" in await live.refused(str(tmp_path / "cut.safetensors"))
    assert f"lacks {missing}" in await live.refused(str(tmp_path / "lacks.safetensors"))
    assert "has unknown model.layers.2" in await live.refused(str(tmp_path / "unknown.safetensors"))
    assert "of shape [63], not [64]" in await live.refused(str(tmp_path / "shape.safetensors"))
    assert "lie outside" in await live.refused("")
    assert "not 0000" in await live.refused(str(good), sha256="0" * 64)
    assert "unexpected keyword argument" in await live.refused(str(good), checksum="0" * 64)
    assert await live.greedy() == before
    assert await live.version() == version

    await live.swap(good, "3")
    assert await live.greedy() == greedy_of(load_with(vllm_server.model_dir, good, tmp_path / "hf"))
    assert await live.version() == "3"


async def test_a_root_that_is_no_directory_is_refused(live: Live, tmp_path: Path) -> None:
    for root in ("weights", str(tmp_path / "nowhere")):
        status, text = await live.post("/init_weight_transfer_engine", {"init_info": {"root": root}})
        assert status == 500
        assert "is not an absolute path of a directory" in text


def test_tied_embeddings_and_a_load_that_breaks_off(model_maker: Callable[..., Path], tmp_path: Path) -> None:
    """The head that is tied to the embedding is swapped too; what a broken load left behind does not stay."""
    old = model_maker(tmp_path / "old", tied=True)
    new = model_maker(tmp_path / "new", tied=True, seed=3, steps=20)
    file = new / "model.safetensors"
    assert "lm_head.weight" not in load_file(file)
    run = subprocess.run([sys.executable, OFFLINE, old, file], capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    stages = json.loads(run.stdout.splitlines()[-1])
    expected = [
        greedy_of(AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32))[0] for directory in (old, new)
    ]
    assert expected[0] != expected[1]
    assert stages["before"] == expected[0]
    assert stages["error"] == "the disk is gone"
    assert len(stages["mixed"]) == N_TOKENS
    assert stages["after"] == expected[1]
    assert stages["version"] == "1"


def test_registering_twice_is_registering_once() -> None:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    vllm_file_engine.register()
    load = WeightTransferEngineFactory._registry["file"]
    vllm_file_engine.register()
    assert WeightTransferEngineFactory._registry["file"] is load
    assert load().__name__ == "FileWeightTransferEngine"


def test_a_vllm_without_the_factory_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = "vllm.distributed.weight_transfer.factory"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    vllm_file_engine.register()
    assert "tracegrad cannot hand weights to this vLLM, which needs version 0.32" in caplog.text
