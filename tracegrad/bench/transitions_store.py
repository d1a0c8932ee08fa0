"""Stores with made-up rollouts for the transitions bench, and the time that reading them takes its store."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tracegrad.bench.collector_under_test import CollectorUnderTest, collector
from tracegrad.clickhouse import connect, errors_in_one_line
from tracegrad.errors import TracegradError
from tracegrad.settings import Settings
from tracegrad.store_writer import WRITER, kept_password

SQL = Path(__file__).parent / "sql"
POLICY = "bench"
CALLS = 10
"""Of a rollout."""
SPANS = 21
"""Of a rollout: its root, its agent, the calls and nine tools."""
AT_ONCE = 512
"""Rollouts in an insert."""
BEGUN_NS = 1_790_000_000_000_000_000
OF_A_SPAN = (
    "Timestamp, TraceId, SpanId, ParentSpanId, SpanName, SpanKind, ServiceName, ResourceAttributes, SpanAttributes, "
)
OF_A_CALL = "PromptTokenIds, ResponseTokenIds, ResponseLogprobs"
TABLES = {
    "rollout_calls": f"otel_traces ({OF_A_SPAN} {OF_A_CALL}, Duration, StatusCode)",
    "rollout_surroundings": f"otel_traces ({OF_A_SPAN} Duration, StatusCode)",
    "rollout_rewards": "otel_logs (Timestamp, TraceId, SpanId, ServiceName, EventName, LogAttributes)",
}
MERGES = "SELECT count() FROM system.merges"
SETTLED_LOOKS, LOOK_S, MOST_S = 5, 0.2, 300.0


@dataclass(frozen=True)
class Filled:
    """A store with rollouts, `whole` if each call holds its whole prompt."""

    name: str
    rollouts: int
    whole: bool = False

    def directory(self, place: Path) -> Path:
        """Where it is."""
        return place / f"store-{self.name.replace(' ', '-')}"

    def fill(self, place: Path, cores: Collection[int], base: Settings, say: Callable[[str], None]) -> None:
        """Make it, and let its merges end. Raises TracegradError."""
        data = self.directory(place)
        with collector(place, cores, base, data, name=f"{self.name}, filled") as tested:
            password = kept_password(data)
            url = f"http://{WRITER}:{password}@127.0.0.1:{tested.sql_port}"
            client = connect(url)
            for first in range(0, self.rollouts, AT_ONCE):
                say(f"{self.name}: {first:,} of {self.rollouts:,} rollouts are made")
                chosen = {
                    "begun_ns": BEGUN_NS,
                    "first": first,
                    "rollouts": min(AT_ONCE, self.rollouts - first),
                    "whole": int(self.whole),
                    "policy": POLICY,
                }
                for name, table in TABLES.items():
                    with errors_in_one_line(url):
                        client.command(f"INSERT INTO {table} {(SQL / f'{name}.sql').read_text()}", parameters=chosen)
            client.close()
            found = tested.rows
            if found != self.rollouts * SPANS:
                raise TracegradError(f"{found:,} spans are in the store, and {self.rollouts * SPANS:,} were made")
            _wait_for_merges(tested)

    @contextlib.contextmanager
    def served(self, place: Path, cores: Collection[int], base: Settings) -> Iterator[CollectorUnderTest]:
        """By a collector that has just been started, while the block runs."""
        name = f"{self.name}, on {'-'.join(map(str, sorted(cores))) or 'all'}"
        with collector(place, cores, base, self.directory(place), name=name) as tested:
            _wait_for_merges(tested)
            yield tested

    def disk_bytes(self, place: Path) -> int:
        """What it takes."""
        return sum(file.stat().st_size for file in self.directory(place).rglob("*") if file.is_file())


def _wait_for_merges(tested: CollectorUnderTest) -> None:
    """Until none has run for a while: they are work of the inserts, and done once."""
    quiet, deadline = 0, time.monotonic() + MOST_S
    while quiet < SETTLED_LOOKS:
        tested.running.check()
        if time.monotonic() > deadline:
            raise TracegradError(f"merges do not end within {MOST_S:.0f} s")
        time.sleep(LOOK_S)
        quiet = 0 if tested.ask(MERGES) else quiet + 1
