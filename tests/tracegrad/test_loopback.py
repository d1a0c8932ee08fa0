"""With a proxy in the environment, nothing that is on this machine is asked for through it."""

import http.server
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from tracegrad import clickhouse
from tracegrad.cli.admin_port import AdminPort
from tracegrad.errors import TracegradError
from tracegrad.loopback import is_loopback, open_url


class _Sidecar(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"policies": []}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server on loopback, while the environment names a proxy that is not there."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with http.server.HTTPServer(("127.0.0.1", 0), _Sidecar) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_the_sidecar_is_asked_directly(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("127.0.0.1", "localhost"):
        monkeypatch.setenv("TRACEGRAD_SIDECAR_ADMIN_URL", f"http://{host}:{port}")
        assert AdminPort(None).ask("GET", "policies") == {"policies": []}


def test_the_store_is_asked_directly(port: int) -> None:
    with pytest.raises(TracegradError) as caught:
        clickhouse.connect(f"http://127.0.0.1:{port}")
    assert "refused" in str(caught.value), "it was reached, and is no ClickHouse"


def test_elsewhere_the_proxy_is_asked(port: int) -> None:
    with pytest.raises(OSError, match="refused"):
        open_url(urllib.request.Request("http://192.0.2.1:1/"), 5)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", [None, "", "192.0.2.1", "example.com", "localhost.example.com"])
def test_other_machines(host: str | None) -> None:
    assert not is_loopback(host)
