"""How much a bench measures, and of what."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracegrad.bench import payload
from tracegrad.settings import Settings

PACE_S = 0.02
"""Between two tokens of a stream, about what a large model takes."""
FIRST_CHUNK_DELAY_S = 0.005


@dataclass(frozen=True)
class Plan:
    """The figures of one run; the defaults take less than four minutes. `say` is told what is going on."""

    say: Callable[[str], None]
    base: Settings = field(default_factory=Settings)
    """Whose `[sidecar]` and `[collector]` are measured."""
    repeats: int = 3
    seconds: float = 2.5
    """Of one phase."""
    concurrency: int = 64
    calls: int = 20_000
    """Over which memory is watched."""
    warm_calls: int = 5_000
    turns: int = 8
    """Of a rollout."""
    rollout_calls: int = 4_000
    rollout_warm_calls: int = 16_000
    """The same for calls of rollouts, of which more is remembered."""
    streams: int = 64
    full_streams: int = 400
    """More chunks a second than one core is expected to pass on."""
    stream_tokens: int = payload.RESPONSE_TOKENS
    first_chunk_tokens: int = 8
    peers: Mapping[str, str] = field(default_factory=dict)
    """The Python of the environment that has it, by name; without one, our own is looked at."""
    peer_calls: int = 500
    spans: int = 32_768
    """That a collector gets at once."""
    rollouts: int = 5_120
    """In the large store of the transitions."""
    batch: int = 256
    """Rollouts that become rows at once."""

    @staticmethod
    def quick(say: Callable[[str], None], base: Settings, peers: Mapping[str, str]) -> "Plan":
        """A smoke run: seconds, and figures that mean little."""
        return Plan(
            say,
            base,
            repeats=1,
            seconds=0.3,
            concurrency=16,
            calls=300,
            warm_calls=100,
            turns=4,
            rollout_calls=100,
            rollout_warm_calls=100,
            streams=8,
            full_streams=24,
            stream_tokens=10,
            peers=peers,
            peer_calls=50,
            spans=1_024,
            rollouts=160,
            batch=32,
        )

    def plain(self, concurrency: int) -> dict[str, Any]:
        """Whole answers, for a while."""
        return {"concurrency": concurrency, "seconds": self.seconds, "warm": 2 * concurrency + 20}

    def counted(self, calls: int) -> dict[str, Any]:
        """Whole answers, so many."""
        return {"concurrency": 16, "calls": calls}

    @property
    def short_streams(self) -> dict[str, Any]:
        """Whose first chunks are timed: few at a time, so that none waits for another's."""
        return {"concurrency": 4, "seconds": self.seconds, "warm": 8, "stream": True}

    def paced(self, streams: int) -> dict[str, Any]:
        """One round of streams that begin together."""
        return {"concurrency": streams, "calls": streams, "stream": True}


def peers_given(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=PYTHON` as a mapping. Raises ValueError."""
    found = {}
    for text in texts:
        name, sign, python = text.partition("=")
        if not (name and sign and python):
            raise ValueError(f"{text!r} is not NAME=PYTHON, as in litellm=/opt/litellm/bin/python")
        found[name] = python
    return found
