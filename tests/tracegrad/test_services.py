"""Services start together, die together, stop in order, and never outlive the process that started them."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from free_ports import free_port

from tracegrad import services
from tracegrad.errors import PortInUseError, SettingsError, TracegradError
from tracegrad.settings import Settings

ANSWERING = """
import http.server, sys
class Ok(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Ok).serve_forever()
"""


def service(name: str, code: str = ANSWERING, port: int | None = None) -> services.Service:
    chosen = port or free_port()
    argv = (sys.executable, "-c", code, str(chosen))
    return services.Service(name, argv, {}, "127.0.0.1", (chosen,), f"http://127.0.0.1:{chosen}/")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_all_are_ready_inside_and_stopped_after_with_the_collector_last(tmp_path: Path) -> None:
    said: list[str] = []
    chosen = [service("collector"), service("vllm"), service("sidecar")]
    async with services.Running(chosen, tmp_path, said.append):
        assert all(listens(one.ports[0]) for one in chosen)
    assert not any(listens(one.ports[0]) for one in chosen)
    assert said[-3:] == ["sidecar stopped", "vllm stopped", "collector stopped"]


async def test_a_service_that_dies_is_an_error_and_the_end_of_its_log_is_shown(tmp_path: Path) -> None:
    dying = service("vllm", "raise SystemExit('no such model here')")
    alive = service("collector")
    said: list[str] = []
    with pytest.raises(TracegradError, match=r"vllm stopped with status 1: see .*vllm\.log"):
        async with services.Running([alive, dying], tmp_path, said.append):
            pass
    assert "  vllm: no such model here" in said
    assert not listens(alive.ports[0]), "the others are stopped too"


async def test_death_while_running_is_noticed(tmp_path: Path) -> None:
    port = free_port()
    async with services.Running([service("sidecar", port=port)], tmp_path, lambda _: None) as running:
        watching = asyncio.create_task(running.watch())
        await asyncio.sleep(0.1)
        assert not watching.done()
        (pid,) = [child for child in children(os.getpid()) if str(port) in command_line(child)]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(TracegradError, match="sidecar stopped with status -9"):
            await asyncio.wait_for(watching, 10)


async def test_a_port_in_use_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first = service("collector")
        with pytest.raises(PortInUseError, match=rf"port {port} on 127.0.0.1 is in use, so sidecar cannot start"):
            async with services.Running([first, service("sidecar", port=port)], tmp_path, lambda _: None):
                pass
        assert not (tmp_path / "collector.log").exists()


def test_services_stop_when_their_parent_is_killed(tmp_path: Path) -> None:
    port = free_port()
    parent = tmp_path / "parent.py"
    parent.write_text(
        textwrap.dedent(f"""
        import asyncio, sys
        from pathlib import Path
        from tracegrad import services
        argv = (sys.executable, "-c", {ANSWERING!r}, "{port}")
        one = services.Service("collector", argv, {{}}, "127.0.0.1", ({port},), "http://127.0.0.1:{port}/")
        async def main():
            async with services.Running([one], Path({str(tmp_path)!r}), print) as running:
                await running.watch()
        asyncio.run(main())
        """)
    )
    process = subprocess.Popen([sys.executable, str(parent)], stdout=subprocess.DEVNULL)
    wait_until(lambda: listens(port))
    process.kill()
    process.wait()
    wait_until(lambda: not listens(port))


async def test_ports_must_be_given_and_differ(tmp_path: Path) -> None:
    port = free_port()
    same = [service("collector", port=port), service("sidecar", port=port)]
    with pytest.raises(SettingsError, match="every port must be given, and differ"):
        async with services.Running(same, tmp_path, lambda _: None):
            pass


def test_an_engine_without_a_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no model at"):
        services.services(Settings(), None, services.Engine(tmp_path))


def wait_until(condition, timeout_s: float = 20) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
