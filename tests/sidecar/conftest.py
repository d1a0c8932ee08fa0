"""One sidecar between a fake vLLM and an OTLP receiver: real sockets, one process."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from chat_templates import APPEND_ONLY, WithTemplate, tokenizer
from fake_vllm import FakeVllm
from sidecar_harness import Harness, listening
from stand_ins import Receiver, receiver_fixture
from template_engine import TemplateEngine

from sidecar.server import serve
from tracegrad.settings import Settings

__all__ = ["receiver_fixture"]


@pytest.fixture
async def fake() -> AsyncIterator[FakeVllm]:
    state = FakeVllm()
    async with listening(state.application()) as state.url:
        yield state


@pytest.fixture
async def harness_for(receiver: Receiver, tmp_path: Path) -> AsyncIterator[Any]:
    """A function that starts a sidecar with the given `[[model]]` entries; `limits`: more values of `[sidecar]`.

    Each has a data directory of its own.
    """
    directories = (tmp_path / "data", *(tmp_path / f"data-{number}" for number in range(2, 10)))
    unused = iter(directories)
    async with contextlib.AsyncExitStack() as stack:

        async def start(*models: dict[str, Any], limits: dict[str, Any] | None = None, **values: Any) -> Harness:
            weights = tmp_path / "weights"
            weights.mkdir(exist_ok=True)
            settings = Settings.model_validate(
                {
                    "otlp": receiver.url,
                    "sidecar": {"port": 0, "admin_port": 0, "weights": weights, "data": next(unused)} | (limits or {}),
                    "model": models,
                    **values,
                }
            )
            ports = await stack.enter_async_context(serve(settings, shutdown_s=1.0))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            base = "http://127.0.0.1:"
            return Harness(f"{base}{ports.port}", f"{base}{ports.admin_port}", session, receiver, weights)

        yield start


@pytest.fixture
async def harness(harness_for: Any, fake: FakeVllm) -> Harness:
    """A sidecar in front of one fake vLLM, as policy `policy`."""
    started: Harness = await harness_for({"name": "policy", "upstream": fake.url, "policy": "policy"})
    return started


@pytest.fixture
def another_fake() -> Any:
    """A function that serves one more fake vLLM, at a port or at any."""

    @contextlib.asynccontextmanager
    async def start(port: int = 0) -> AsyncIterator[FakeVllm]:
        state = FakeVllm()
        async with listening(state.application(), port) as state.url:
            yield state

    return start


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested is what engines say, and not how soon machines that are shared let them."""
    monkeypatch.setattr("sidecar.continuation.road.LIMIT_S", 10.0)


@pytest.fixture
async def served(harness_for: Any) -> AsyncIterator[Any]:
    """A function that serves an engine with a chat template (or tokeniser), and a sidecar in front of it."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            template: Any = APPEND_ONLY, setting: str = "auto", name: str = "policy", **engine: Any
        ) -> tuple[Harness, TemplateEngine]:
            words = WithTemplate(tokenizer(), template) if isinstance(template, str) else template
            state = TemplateEngine(tokenizer=words, **engine)
            state.url = await stack.enter_async_context(listening(state.application()))
            route = {"name": name, "upstream": state.url, "policy": "policy", "continuation": setting}
            return await harness_for(route), state

        yield start
