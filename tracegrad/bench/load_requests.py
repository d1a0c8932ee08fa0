"""What each connection of a load sends: the same request again and again, or the turns of one rollout after another."""

import os
from collections.abc import Iterator

from tracegrad.bench import payload


def anonymous(path: str, port: int, *, model: str, stream: bool) -> Iterator[bytes]:
    """Calls that nothing connects."""
    head, body = _encoded(port, payload.request(model=model, stream=stream))
    request = f"POST {path}".encode() + head + body
    while True:
        yield request


class Rollouts:
    """Calls of rollouts that no other load has. All connections share what was encoded."""

    def __init__(self, path: str, port: int, *, model: str, turns: int) -> None:
        self._path = path
        self._rest = [b"".join(_encoded(port, payload.request(model=model, turn=turn))) for turn in range(turns)]
        self._begun = 0

    def play(self) -> Iterator[bytes]:
        """The turns of a rollout, each of which repeats all before it; and then those of the next."""
        while True:
            self._begun += 1
            line = f"POST /rollout/bench-{os.getpid()}-{self._begun}{self._path}".encode()
            for rest in self._rest:
                yield line + rest


def _encoded(port: int, body: bytes) -> tuple[bytes, bytes]:
    head = (
        f" HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"accept: */*\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode(), body
