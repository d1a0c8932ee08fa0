"""Doubles of what a training job works with: an engine that counts instead of learning, a sidecar's admin port.

The engine's double keeps count of the rows that its weights have seen, through checkpoints. The sidecar's double
speaks the admin interface over a real socket.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from weight_bytes import safetensors

from trainer.config import TrainConfig
from trainer.rows import Row


class CountingLearner:
    """The engine's double. `seen`: the token ids of every row that its weights have learned from."""

    def __init__(self, resume_from: Path | None) -> None:
        self.seen: list[list[int]] = []
        self.logprob_gap = 0.0
        self.loss = 0.125
        if resume_from is not None:
            self.seen = json.loads((resume_from / "state.json").read_text())

    @classmethod
    def start(cls, config: TrainConfig, resume_from: Path | None) -> "CountingLearner":
        """What a job starts its learner with."""
        return cls(resume_from)

    def log_probs(self, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        return [row.behaviour_logprobs[row.mask] + np.float32(self.logprob_gap) for row in rows]

    def update(self, rows: Sequence[Row]) -> dict[str, float]:
        self.seen += [row.token_ids.tolist() for row in rows]
        return {"loss": self.loss, "grad_norm": 1.0, "ppo_kl": 0.0, "clip_fraction": 0.0}

    def write_weights(self, file: Path) -> None:
        file.write_bytes(safetensors(json.dumps(self.seen).encode()))

    def save(self, directory: Path) -> None:
        draft = directory.with_name(directory.name + ".draft")
        draft.mkdir(exist_ok=True)
        (draft / "state.json").write_text(json.dumps(self.seen))
        draft.rename(directory)

    def close(self) -> None:
        """Nothing to give back."""


class ElsewhereLearner(CountingLearner):
    """Gives some response tokens, `elsewhere`, other log-probs than the engine did."""

    elsewhere: frozenset[int] = frozenset()
    gap = 0.5

    def log_probs(self, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        found = super().log_probs(rows)
        for row, of_row in zip(rows, found, strict=True):
            trained = row.token_ids[row.mask]
            of_row[np.isin(trained, list(self.elsewhere))] += np.float32(self.gap)
        return found


@dataclass
class SidecarDouble:
    """The admin interface of a sidecar with one policy, whose engine loads whatever is published."""

    policy: str
    version: int | None = 0
    rolled_back_from: int | None = None
    refuse_with: int | None = None
    published: list[tuple[int, str]] = field(default_factory=list)
    url: str = ""

    @contextmanager
    def serving(self) -> Iterator["SidecarDouble"]:
        """Listen on a free port, told in `url`."""
        state = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert self.path == "/policies"
                replica = {"url": "http://127.0.0.1:1", "version": state.version, "healthy": state.version is not None}
                policy = {"name": state.policy, "version": state.version, "model": "m", "replicas": [replica]}
                policy["rolled_back_from"] = state.rolled_back_from
                self._answer(200, {"policies": [policy]})

            def do_POST(self) -> None:
                assert self.path == f"/policies/{state.policy}/publish"
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if state.refuse_with is not None:
                    self._answer(state.refuse_with, {"error": "the engine does not answer"})
                    return
                content = Path(body["weights"]).read_bytes()
                assert hashlib.sha256(content).hexdigest() == body["sha256"]
                assert dict(state.published).get(body["version"], body["sha256"]) == body["sha256"], "other weights"
                state.version = body["version"]
                state.published.append((body["version"], body["sha256"]))
                self._answer(200, {"name": state.policy, "version": state.version})

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
