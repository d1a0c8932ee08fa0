"""The whole product, started as a user starts it: `tracegrad up` with a small warm-started model, on free ports."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tracegrad.demo import warm_start
from tracegrad.demo.run import agent_file

READY_TIMEOUT_S = 300
COMMAND_TIMEOUT_S = 240
PORTS = ("otlp_http_port", "otlp_grpc_port", "clickhouse_port", "port", "admin_port", "vllm")


@dataclass(frozen=True)
class Road:
    """A running `tracegrad up`. Commands run in `home`, whose tracegrad.toml says where the services are."""

    home: Path
    config: Path
    model: Path
    ports: dict[str, int]

    @property
    def environment(self) -> dict[str, str]:
        """What points at the services: the configuration in `home`, and no setting of whoever runs the tests."""
        return {name: value for name, value in os.environ.items() if not name.startswith("TRACEGRAD_")}

    def url(self, port: str) -> str:
        return f"http://127.0.0.1:{self.ports[port]}"

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """One `tracegrad` command, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "tracegrad", *arguments],
            cwd=self.home,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    def json(self, *arguments: str, **environment: str) -> Any:
        """What a command prints with `--json`; it must succeed."""
        result = self.run(*arguments, "--json", **environment)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def sql(self, query: str) -> list[dict[str, Any]]:
        """Rows of a query, by the command that users have."""
        result = self.run("sql", "--json", query)
        assert result.returncode == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    def tasks(self, name: str, rows: list[dict[str, str]]) -> Path:
        """A task file of `rows`."""
        file = self.home / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return file

    def roll_out(self, tasks: Path, *options: str, **environment: str) -> Any:
        """`tracegrad rollout` of the untouched agent."""
        agent = ("opentelemetry-instrument", "python", str(agent_file()), "{question}")
        result = self.run("rollout", "--tasks", str(tasks), *options, "--json", "--", *agent, **environment)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's model after a short warm start: it calls the calculator, if often with the wrong numbers."""
    directory = tmp_path_factory.mktemp("model") / "model"
    config = warm_start.WarmStart(seed=11, steps=120, batch=32)
    warm_start.build(directory, config, set(), lambda step, loss: None)
    return directory


@pytest.fixture(scope="session")
def road(tmp_path_factory: pytest.TempPathFactory, small_model: Path, free_port: Any) -> Iterator[Road]:
    home = tmp_path_factory.mktemp("road")
    ports = {name: free_port() for name in PORTS}
    config = home / "tracegrad.toml"
    config.write_text(
        f"""
[collector]
otlp_http_port = {ports["otlp_http_port"]}
otlp_grpc_port = {ports["otlp_grpc_port"]}
clickhouse_port = {ports["clickhouse_port"]}

[sidecar]
port = {ports["port"]}
admin_port = {ports["admin_port"]}

[vllm]
port = {ports["vllm"]}
args = ["--dtype=float32", "--max-model-len=512", "--seed=0"]

[[model]]
name = "policy"
upstream = "http://127.0.0.1:{ports["vllm"]}"
policy = "policy"
"""
    )
    chosen = Road(home, config, small_model, ports)
    output = home / "up.log"
    with output.open("wb") as log:
        up = subprocess.Popen(
            [sys.executable, "-m", "tracegrad", "up", "--config", str(config), "--model", str(small_model)],
            cwd=home,
            env=chosen.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    deadline = time.monotonic() + READY_TIMEOUT_S
    while "stop with Ctrl-C" not in output.read_text():
        assert up.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.5)
    yield chosen
    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 0, output.read_text()
