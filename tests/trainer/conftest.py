"""What the trainer's tests share: calls, a real collector, recorded runs of agents, and a job on them."""

import dataclasses
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from recorded_agents import Collector, RecordedAgents, Sql
from training_doubles import SidecarDouble
from training_world import Learners, World

from tracegrad.clickhouse import connect
from tracegrad.store_writer import WRITER, kept_password
from trainer.config import TrainConfig
from trainer.transitions import Call

MakeCall = Callable[..., Call]


@pytest.fixture(scope="session")
def make_call() -> MakeCall:
    """A function that makes a call that may be trained on: `make_call(span_id, started_ns, **changes)`."""

    def make(span_id: str, started_ns: int, **changes: object) -> Call:
        call = Call(
            rollout_id="r1",
            attempt=0,
            task_id="t",
            agent="",
            trace_id="ab" * 16,
            span_id=span_id,
            policy="policy",
            policy_version=0,
            started_ns=started_ns,
            prompt_token_ids=np.array([1, started_ns], np.int64),
            response_token_ids=np.array([7, 8], np.int64),
            logprobs=np.array([-0.5, -0.25], np.float32),
            trainable=True,
            untrainable_reason="",
            error_type="",
            input_hash=started_ns,
            sampling='{"temperature":1.0}',
            response_id=f"chatcmpl-{span_id}",
            retry_count=0,
        )
        return dataclasses.replace(call, **changes)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """One real collector process for the session. Tests keep apart by using policies of their own."""
    log = tmp_path_factory.mktemp("collector") / "stderr.log"
    command = [sys.executable, "-m", "tracegrad", "collector", "--data", str(log.parent / "store")]
    command += ["--otlp-http-port", "0", "--otlp-grpc-port", "0", "--clickhouse-port", "0"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stderr=stderr)
    try:
        deadline = time.monotonic() + 60
        while (ready := re.search(r"collector ready.*", log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"no collector, status {process.poll()}:\n{log.read_text()[-3000:]}")
            time.sleep(0.05)
        ports = {name: int(port) for name, port in re.findall(r"(\w+)=\S*?:(\d+)", ready[0])}
        writer = f"{WRITER}:{kept_password(log.parent / 'store')}"
        yield Collector(f"http://127.0.0.1:{ports['otlp_http']}", f"http://{writer}@127.0.0.1:{ports['clickhouse']}")
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def sql(collector: Collector) -> Iterator[Sql]:
    """A function that asks the store: SQL and parameters -> rows."""
    client = connect(collector.clickhouse)
    yield lambda query, **parameters: list(client.query(query, parameters=parameters).named_results())
    client.close()


@pytest.fixture
def agents(collector: Collector, sql: Sql) -> RecordedAgents:
    """Agents on a policy that no other test uses."""
    return RecordedAgents(collector, f"policy-{secrets.token_hex(4)}", sql)


@pytest.fixture
def sidecar(agents: RecordedAgents) -> Iterator[SidecarDouble]:
    """A sidecar's double on a port of its own, with the agents' policy."""
    with SidecarDouble(agents.policy).serving() as double:
        yield double


@pytest.fixture
def config(sidecar: SidecarDouble, tmp_path: Path) -> TrainConfig:
    """A job on the agents' policy, with a base model of a few bytes."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"vocab_size": 64}')
    (model / "model.safetensors").write_bytes(b"base weights")
    return TrainConfig.model_validate(
        {
            "data": {"policy": sidecar.policy, "settle": "0s"},
            "engine": {"model": model, "checkpoints": tmp_path / "checkpoints"},
            "publish": {"sidecar": sidecar.url, "weights": tmp_path / "weights"},
        }
    )


@pytest.fixture
def world(agents: RecordedAgents, config: TrainConfig, sidecar: SidecarDouble, sql: Sql) -> World:
    """A job on the agents' policy, and all that it meets."""
    return World(agents, config, sidecar, sql, Learners())
