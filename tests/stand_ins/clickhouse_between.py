"""A ClickHouse server whose answers get lost: a real one, and this between it and its client."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import urllib3


class Between(ThreadingHTTPServer):
    """Passes requests on to a server, but for inserts of rows, of which it does what `behaviours` say in turn.

    `status text` answers so and passes nothing on; `lost` passes it on and breaks the connection; `cut` breaks it at
    once; `hang` does nothing until the end. `selects`
    are such answers to other statements, `tries` to inserts of no rows; `running`: what it says of `system.processes`,
    in turn.
    """

    daemon_threads = True

    def __init__(self, target: str, login: str, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.target = target
        self.login = urllib3.make_headers(basic_auth=login) if login else {}
        self.http = urllib3.PoolManager()
        self.behaviours: list[str] = []
        self.running: list[int] = []
        self.selects: list[str] = []
        self.tries: list[str] = []
        self.inserts: list[tuple[dict[str, str], bytes]] = []
        self.kills: list[str] = []
        self.logins: set[str | None] = set()
        self.end = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections break here on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Between

    def do_POST(self) -> None:  # noqa: PLR0911 - one for each of what it does
        body = self.rfile.read(int(self.headers["Content-Length"]))
        between = self.server
        between.logins.add(self.headers["Authorization"])
        text = body[:400].decode(errors="replace")
        if text.startswith("INSERT INTO otel.otlp") and body.endswith(b" FORMAT Protobuf\n"):
            return self._refuse(between.tries.pop(0)) if between.tries else self._pass(body)
        if text.startswith("INSERT INTO otel.otlp"):
            parameters = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            between.inserts.append((parameters, body))
            behaviour = between.behaviours.pop(0) if between.behaviours else "pass"
            if behaviour[0].isdigit():
                return self._refuse(behaviour)
            if behaviour == "hang":
                between.end.wait(30)
                return None
            if behaviour in ("cut", "lost"):
                if behaviour == "lost":
                    self._ask(body)
                self.close_connection = True
                return self.connection.close()
        elif text.startswith("KILL QUERY"):
            between.kills.append(text)
        elif between.selects:
            return self._refuse(between.selects.pop(0))
        elif "system.processes" in text and between.running:
            return self._answer(200, b"%d\n" % between.running.pop(0), None)
        return self._pass(body)

    def _refuse(self, behaviour: str) -> None:
        status, _, said = behaviour.partition(" ")
        code = said.removeprefix("Code: ").partition(".")[0] if said.startswith("Code: ") else None
        self._answer(int(status), said.encode(), code)

    def _ask(self, body: bytes) -> Any:
        between = self.server
        headers = between.login | {"Content-Encoding": self.headers.get("Content-Encoding", "identity")}
        return between.http.request("POST", between.target + self.path, body=body, headers=headers)

    def _pass(self, body: bytes) -> None:
        reply = self._ask(body)
        self._answer(reply.status, reply.data, reply.headers.get("X-ClickHouse-Exception-Code"))

    def _answer(self, status: int, body: bytes, code: str | None) -> None:
        self.send_response(status)
        if code is not None:
            self.send_header("X-ClickHouse-Exception-Code", code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@contextmanager
def running_between(target: str, login: str = "", port: int = 0) -> Iterator[Between]:
    """One that listens, until the end of the block. It asks `target` as `user:password`, whoever asks it."""
    server = Between(target, login, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.end.set()
        server.shutdown()
        thread.join()
        server.server_close()


def writer(collector: Any) -> str:
    """Who may write into a collector's embedded store: `user:password`; empty where everybody may."""
    kept = collector.log.with_suffix("") / "writer.password"
    return f"writer:{kept.read_text().strip()}" if kept.exists() else ""


def as_store(collector: Any, parameters: str = "") -> str:
    """A collector's embedded store, as the address of a server to write into."""
    login = writer(collector)
    address: str = collector.clickhouse.replace("http://", f"clickhouse://{login}{'@' if login else ''}")
    return address + parameters
