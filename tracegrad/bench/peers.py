"""Other proxies that agents' calls go through, measured the same way where they are installed.

Each is best kept in an environment of its own, whose Python is then named: `--peer litellm=/opt/litellm/bin/python`.
Each is asked to get ids and log-probs from the engine where it can be.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tracegrad.bench import machine, payload, processes
from tracegrad.bench.metric import Metric
from tracegrad.bench.phases import DIRECT, Harness, Phase, Target, alternate
from tracegrad.bench.plan import Plan
from tracegrad.bench.processes import Running
from tracegrad.errors import TracegradError

START_S = 120.0
LITELLM = """\
model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: {url}/v1
      api_key: none
      logprobs: true
      extra_body: {{return_token_ids: true}}
litellm_settings: {{num_retries: 0}}
"""
LITELLM_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}


@dataclass(frozen=True)
class Start:
    """Where one peer is started: `port` is free, `url` the engine's."""

    python: str
    port: int
    url: str
    directory: Path

    def script(self, name: str) -> str:
        """A command of the peer's environment."""
        return str(Path(self.python).parent / name)


@dataclass(frozen=True)
class Peer:
    """How one is started and asked. `ready`: a path that answers 200 once it is up; `address`: a file with its URL."""

    name: str
    module: str
    """What must be importable."""
    command: Callable[[Start], Sequence[str]]
    ready: str = ""
    address: bool = False
    path: str = "/v1/chat/completions"
    model: str = payload.MODEL
    environment: Mapping[str, str] = field(default_factory=dict)
    set_up: Callable[[Start], None] = lambda _: None


@dataclass(frozen=True)
class PeerMeasured:
    """What came of one. Without phases, `why` tells why not."""

    name: str
    why: str = ""
    alone: Phase | None = None
    many: Phase | None = None
    rss_growth: float | None = None


def _litellm(start: Start) -> list[str]:
    config = start.directory / "litellm.yaml"
    config.write_text(LITELLM.format(model=payload.MODEL, url=start.url))
    where = ["--host", "127.0.0.1", "--port", str(start.port)]
    return [start.script("litellm"), "--config", str(config), *where, "--num_workers", "1", "--telemetry", "False"]


def _agent_lightning(start: Start) -> list[str]:
    options = ["host=127.0.0.1", f"port={start.port}", f"default_proxy.model_name={payload.MODEL}"]
    return [start.python, "-m", "agentlightning.server", *options]


def _tell_agent_lightning(start: Start) -> None:
    model = {"model": payload.MODEL, "endpoint": f"{start.url}/v1", "version": 0}
    processes.tell(start.port, "/api/models", [model])
    processes.tell(start.port, "/api/rollouts", [{"input": {"data_id": "1"}, "rollout_id": "bench"}])


def _rllm(start: Start) -> list[str]:
    where = ["--host", "127.0.0.1", "--port", str(start.port), "--worker", f"{start.url}/v1"]
    return [start.script("rllm-model-gateway"), *where, "--store", "memory", "--log-level", "WARNING"]


def _tensorzero(start: Start) -> list[str]:
    script = Path(__file__).with_name("tensorzero_gateway.py")
    return [start.python, str(script), start.url, payload.MODEL, str(start.directory / "address")]


PEERS = (
    Peer("litellm", "litellm", _litellm, "/health/liveliness", environment=LITELLM_ENVIRONMENT),
    Peer(
        "agentlightning",
        "agentlightning",
        _agent_lightning,
        "/healthz",
        path="/proxy/rollout/bench/attempt/0/mode/train/openai/v1/chat/completions",
        set_up=_tell_agent_lightning,
    ),
    Peer("rllm", "rllm_model_gateway", _rllm, "/health", path="/sessions/bench/v1/chat/completions"),
    Peer(
        "tensorzero",
        "tensorzero",
        _tensorzero,
        address=True,
        model=f"tensorzero::model_name::{payload.MODEL}",
    ),
)


def check(given: Mapping[str, str], known: Sequence[Peer] = PEERS) -> None:
    """Raises TracegradError for a name or a Python that does not exist, before anything is measured."""
    names = {peer.name: peer for peer in known}
    for name, python in given.items():
        if name not in names:
            raise TracegradError(f"no peer is called {name!r}: known are {', '.join(names)}")
        _is_installed(python, names[name].module)


def measure(bench: Harness, plan: Plan, known: Sequence[Peer] = PEERS) -> list[PeerMeasured]:
    """Every peer in turn; one that fails says why, and does not end the bench."""
    return [_measure(bench, plan, peer) for peer in known]


def _measure(bench: Harness, plan: Plan, peer: Peer) -> PeerMeasured:
    python = plan.peers.get(peer.name, sys.executable)
    if not _is_installed(python, peer.module):
        return PeerMeasured(peer.name, "not installed")
    bench.say(f"{peer.name} is starting")
    try:
        with _started(bench, peer, python) as target:
            targets, few = [bench.direct, target], max(1, plan.repeats - 1)
            alone = alternate(bench, f"{peer.name}, one call at a time", targets, few, plan.plain(1))
            many = alternate(
                bench, f"{peer.name}, {plan.concurrency} at a time", [target], few, plan.plain(plan.concurrency)
            )
            return PeerMeasured(peer.name, "", alone, many, _rss_growth(bench, plan, target))
    except (TracegradError, OSError) as error:
        return PeerMeasured(peer.name, f"failed: {error}")


def _is_installed(python: str, module: str) -> bool:
    if python == sys.executable:
        return importlib.util.find_spec(module) is not None
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    try:
        return subprocess.run([python, "-c", look, module], check=False, capture_output=True).returncode == 0
    except OSError as error:
        raise TracegradError(f"{python} cannot be run: give the Python of an environment that has {module}") from error


@contextlib.contextmanager
def _started(bench: Harness, peer: Peer, python: str) -> Iterator[Target]:
    directory = bench.directory / f"peer-{peer.name}"
    directory.mkdir()
    (port,) = processes.free_ports(1)
    start = Start(python, port, bench.url, directory)
    path = os.pathsep.join((str(Path(python).parent), os.environ.get("PATH", "")))
    environment = {**peer.environment, "PATH": path}
    with processes.started(peer.name, peer.command(start), directory, bench.cores.proxy, environment) as running:
        if peer.address:
            port, where = _address(running, directory / "address")
        else:
            where = peer.path
            processes.wait_for(running, port, peer.ready, START_S)
        peer.set_up(start)
        yield Target(peer.name, port, running, where, peer.model)


def _address(running: Running, file: Path) -> tuple[int, str]:
    """Port and path out of the file into which a peer writes where it listens."""
    deadline = time.monotonic() + START_S
    while not file.exists():
        running.check()
        if time.monotonic() > deadline:
            raise running.failure(f"did not say within {START_S:.0f} s where it listens")
        time.sleep(processes.POLL_S)
    host, _, path = file.read_text().strip().removeprefix("http://").partition("/")
    return int(host.rpartition(":")[2]), f"/{path}"


def _rss_growth(bench: Harness, plan: Plan, target: Target) -> float | None:
    """Bytes that it keeps of a call."""
    assert target.running is not None  # noqa: S101 - it was started
    before = machine.resident_bytes(target.running.pids)
    alternate(bench, f"{target.name}, memory", [target], 1, plan.counted(plan.peer_calls))
    after = machine.resident_bytes(target.running.pids)
    return None if before is None or after is None else (after - before) / plan.peer_calls


def metrics(measured: Sequence[PeerMeasured]) -> list[Metric]:
    """Those of the peers that were measured."""
    found = []
    for peer in measured:
        if peer.alone is None or peer.many is None:
            continue
        name = f"peer_{peer.name}"
        cpu_ms = peer.many.median(peer.name, lambda one: one.cpu_ms)
        added = peer.alone.compared(peer.name, DIRECT, lambda one, base: one.seen.p50_ms - base.seen.p50_ms)
        found += [
            Metric(f"{name}_added_latency_p50_ms", added, f"{peer.name}: added to one call at a time"),
            Metric(
                f"{name}_requests_per_s",
                peer.many.median(peer.name, lambda one: one.seen.per_s),
                f"{peer.name}: calls a second",
            ),
            Metric(f"{name}_cpu_ms_per_call", cpu_ms, f"{peer.name}: CPU time of a call"),
            Metric(f"{name}_rss_growth_bytes_per_call", peer.rss_growth, f"{peer.name}: memory kept of a call"),
        ]
    return found
