"""Other proxies are started as their makers say and measured, or named when they are not there; here, stand-ins."""

import stat
import sys
from pathlib import Path

import pytest

from tracegrad.bench import machine, peers
from tracegrad.bench.phases import harness
from tracegrad.bench.plan import Plan
from tracegrad.bench.tables import peer_table
from tracegrad.errors import TracegradError

FORWARD = '''
"""A proxy of few lines: forwards calls, and says yes to everything else."""
import http.client
import http.server
import json


def server(port, upstream, expect="/v1/chat/completions"):
    """Without `upstream`, it is the endpoint that it is told of."""
    told = {"upstream": upstream}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self):
            self.answer(200, b"{}")

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if not self.path.endswith("/chat/completions"):
                told["upstream"] = json.loads(body)[0].get("endpoint") or told["upstream"]
                return self.answer(201, b"{}")
            if self.path != expect:
                return self.answer(404, self.path.encode())
            host = told["upstream"].split("//")[1].split("/")[0]
            connection = http.client.HTTPConnection(host)
            connection.request("POST", "/v1/chat/completions", body)
            self.answer(200, connection.getresponse().read())

        def answer(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    http.server.ThreadingHTTPServer.request_queue_size = 64
    return http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
'''

LITELLM = """
import sys
from forward import server

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
config = open(options["--config"]).read()
assert "return_token_ids: true" in config and "model: openai/bench-model" in config
upstream = config.split("api_base: ")[1].split()[0]
server(int(options["--port"]), upstream).serve_forever()
"""

RLLM = """
import sys
from forward import server

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
server(int(options["--port"]), options["--worker"], "/sessions/bench/v1/chat/completions").serve_forever()
"""

AGENT_LIGHTNING = """
import sys
from forward import server

options = dict(one.split("=") for one in sys.argv[1:])
assert options["default_proxy.model_name"] == "bench-model"
path = "/proxy/rollout/bench/attempt/0/mode/train/openai/v1/chat/completions"
server(int(options["port"]), None, path).serve_forever()
"""

TENSORZERO = """
import threading
import types
from forward import server


def _start_http_gateway(*, config_file, clickhouse_url, postgres_url, valkey_url, async_setup):
    config = open(config_file).read()
    assert "/return_token_ids" in config
    upstream = config.split('api_base = "')[1].split('"')[0]
    made = server(0, upstream, "/openai/v1/chat/completions")
    threading.Thread(target=made.serve_forever, daemon=True).start()
    return types.SimpleNamespace(base_url=f"http://0.0.0.0:{made.server_address[1]}/openai/v1")
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The Python of an environment that has them all."""
    packages, commands = tmp_path / "packages", tmp_path / "bin"
    for directory in (packages / "agentlightning", commands):
        directory.mkdir(parents=True)
    (packages / "forward.py").write_text(FORWARD)
    (packages / "litellm.py").write_text("")
    (packages / "rllm_model_gateway.py").write_text("")
    (packages / "tensorzero.py").write_text(TENSORZERO)
    (packages / "agentlightning" / "__init__.py").write_text("")
    (packages / "agentlightning" / "server.py").write_text(AGENT_LIGHTNING)
    for name, script in (("litellm", LITELLM), ("rllm-model-gateway", RLLM)):
        (packages / f"{name}_command.py").write_text(script)
        _executable(commands / name, f'exec {commands / "python"} {packages / f"{name}_command.py"} "$@"')
    _executable(commands / "python", f'PYTHONPATH={packages} exec {sys.executable} "$@"')
    return commands / "python"


def _executable(file: Path, line: str) -> None:
    file.write_text(f"#!/bin/sh\n{line}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def plan(**given: str) -> Plan:
    return Plan(lambda _: None, repeats=1, seconds=0.1, concurrency=2, peers=given, peer_calls=20)


def test_every_peer_is_started_told_and_measured(environment: Path, tmp_path: Path) -> None:
    names = [peer.name for peer in peers.PEERS]
    with harness(tmp_path, machine.cores(), lambda _: None) as bench:
        given = plan(**dict.fromkeys(names, str(environment)))
        peers.check(given.peers)
        measured = peers.measure(bench, given)
        calls = bench.counts().calls
    assert [(one.name, one.why) for one in measured] == [(name, "") for name in names]
    assert calls > 4 * 20
    found = {metric.name: metric.value for metric in peers.metrics(measured)}
    for name in names:
        added, rate = found[f"peer_{name}_added_latency_p50_ms"], found[f"peer_{name}_requests_per_s"]
        assert added is not None
        assert added > 0
        assert rate is not None
        assert rate > 0
    assert many_rows(measured) == names


def many_rows(measured: list[peers.PeerMeasured]) -> list[str]:
    (many,) = {id(one.many): one.many for one in measured[:1]}.values()
    assert many is not None
    ours = type(many)(many.title, many.load, {"sidecar": many.runs[measured[0].name]})
    (table,) = peer_table(measured, ours)
    assert table.rows[0][4] == "1.0x" or not machine.LINUX
    return [row[0] for row in table.rows]


def test_one_that_is_not_there_or_does_not_start_is_named_and_the_rest_go_on(environment: Path, tmp_path: Path) -> None:
    (environment.parent / "litellm").unlink()
    _executable(environment.parent / "rllm-model-gateway", "echo the store is locked >&2; exit 3")
    (tmp_path / "packages" / "tensorzero.py").unlink()
    names = ("litellm", "rllm", "tensorzero")
    with harness(tmp_path, machine.cores(), lambda _: None) as bench:
        measured = peers.measure(bench, plan(**dict.fromkeys(names, str(environment))))
    why = {one.name: one.why for one in measured}
    assert why["litellm"].startswith("failed: ")
    assert "litellm" in why["litellm"]
    assert why["rllm"] == "failed: rllm ended with status 3; it said: the store is locked"
    assert why["tensorzero"] == "not installed"
    assert peers.metrics(measured) == []


def test_a_peer_that_cannot_be_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(TracegradError, match="no peer is called 'lightllm': known are litellm, "):
        peers.check({"lightllm": sys.executable})
    with pytest.raises(TracegradError, match="cannot be run: give the Python of an environment that has litellm"):
        peers.check({"litellm": str(tmp_path / "no-python")})
