"""The sidecar that is measured: the command as users run it, with a policy route and nothing switched off.

Its spans are spooled to disk and delivered to the stand-in, which proves the version of its weights.
"""

import contextlib
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tracegrad.bench import payload, processes
from tracegrad.bench.phases import Harness, Target
from tracegrad.errors import TracegradError
from tracegrad.settings import Settings

OURS = {"host", "port", "admin_host", "admin_port", "data", "weights", "workers", "reuse_port"}
"""Values of `[sidecar]` that the bench chooses."""
_CHOICES = re.compile(r'^tracegrad_sidecar_choices_total\{trainable="(\w+)",reason="(\w*)"\} (\S+)$', re.MULTILINE)

_CONTINUATIONS = re.compile(r'^tracegrad_sidecar_continuations_total\{.*outcome="(\w+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class SidecarUnderTest:
    """One that answers."""

    target: Target
    admin_port: int

    def trainable(self) -> tuple[float, Mapping[str, float]]:
        """The share of its answers that may be trained on, and how many may not by why."""
        found = {reason: float(count) for _, reason, count in _CHOICES.findall(self._metrics())}
        total = sum(found.values())
        share = found.pop("", 0.0) / total if total else 0.0
        return share, found

    def continued(self) -> float:
        """The share of calls with an earlier turn here that were prompted with exactly its tokens."""
        found = {outcome: float(count) for outcome, count in _CONTINUATIONS.findall(self._metrics())}
        found.pop("no_history", None)
        total = sum(found.values())
        return found.get("tokens", 0.0) / total if total else 0.0

    def _metrics(self) -> str:
        status, page = processes.ask(self.admin_port, "GET", "/metrics")
        if status != 200:
            raise TracegradError(f"the sidecar's /metrics was answered with status {status}")
        return page.decode()


@contextlib.contextmanager
def sidecar(
    harness: Harness, cores: Collection[int], base: Settings, *, name: str = "sidecar", workers: int = 1
) -> Iterator[SidecarUnderTest]:
    """One while the block runs. `base`: whose `[sidecar]` it takes, but for where things are."""
    directory = harness.directory / name.replace(" ", "-")
    directory.mkdir()
    port, admin_port = processes.free_ports(2)
    config = directory / "tracegrad.toml"
    config.write_text(_toml(harness, directory, base, {"port": port, "admin_port": admin_port, "workers": workers}))
    argv = [sys.executable, "-m", "tracegrad", "sidecar", "--config", str(config)]
    with processes.started(name, argv, directory, cores) as running:
        processes.wait_for(running, admin_port, "/readyz")
        yield SidecarUnderTest(Target(name, port, running, own=True), admin_port)


def _toml(harness: Harness, directory: Path, base: Settings, chosen: Mapping[str, Any]) -> str:
    given = base.sidecar.model_dump(mode="json", exclude_unset=True)
    kept = {key: value for key, value in given.items() if key not in OURS and not key.startswith("admin_key")}
    weights = directory / "weights"
    weights.mkdir()
    places = {"data": str(directory / "data"), "weights": str(weights)}
    route = {"name": payload.MODEL, "upstream": harness.url, "policy": "bench"}
    lines = [f'otlp = "{harness.url}"', "[sidecar]", *_values({**kept, **places, **chosen})]
    return "\n".join([*lines, "[[model]]", *_values(route), ""])


def _values(values: Mapping[str, Any]) -> list[str]:
    # For numbers, truths and plain texts TOML is written as JSON is.
    return [f"{name} = {orjson.dumps(value).decode()}" for name, value in values.items() if value is not None]
