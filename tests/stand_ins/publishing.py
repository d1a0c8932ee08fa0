"""What a trainer and an operator do at a sidecar's admin port, for tests."""

import asyncio
import hashlib
from typing import Any

import pytest
from sidecar_harness import Harness
from weight_bytes import safetensors


def write_weights(harness: Harness, version: int, content: bytes = b"weights") -> dict[str, Any]:
    """A publication of a file that exists, as the trainer would send it."""
    directory = harness.weights / "policy" / str(version)
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "model.safetensors"
    written = safetensors(content)
    file.write_bytes(written)
    return {"version": version, "weights": str(directory), "sha256": hashlib.sha256(written).hexdigest()}


async def publish(harness: Harness, body: dict[str, Any], policy: str = "policy") -> tuple[int, dict[str, Any]]:
    answer = await harness.session.post(f"{harness.admin}/policies/{policy}/publish", json=body)
    return answer.status, await answer.json()


async def policy_of(harness: Harness) -> dict[str, Any]:
    listed = await (await harness.session.get(f"{harness.admin}/policies")).json()
    found: dict[str, Any] = listed["policies"][0]
    return found


async def ready(harness: Harness, status: int = 200) -> None:
    for _ in range(300):
        if (await harness.session.get(f"{harness.admin}/readyz")).status == status:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"/readyz did not become {status}")
