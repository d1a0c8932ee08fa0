"""The trainer's side of the transitions bench, as a process: `python -m tracegrad.bench.transitions_reader`.

Each line of its input is an order as JSON, and each line of its output what came of it. Ways to read: what a job does,
from its plan to packed rows; and, of the same calls, what is measured beside it.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tracegrad.bench import transitions_beside
from trainer.backlog import Sought
from trainer.batch_choices import Choices
from trainer.config import TrainConfig
from trainer.gate import Gate
from trainer.merge_limits import merge_limits
from trainer.merging import rows_of
from trainer.plan import whole_groups
from trainer.rollout import Rollout
from trainer.samples import samples_of
from trainer.since import LATEST_NS, Since
from trainer.store import Store
from trainer.vocabulary import Vocabulary

N_VOCABULARY = 151_936
MODEL = {
    **{"model_type": "qwen2", "vocab_size": N_VOCABULARY, "hidden_size": 896, "intermediate_size": 4864},
    **{"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2},
}
"""Qwen2.5-0.5B, as far as it is asked what may be merged."""


@dataclass(frozen=True)
class Order:
    """What to read: all that waits in the store at `url`, `batch` rollouts at a time. `way`: a name of `WAYS`."""

    way: str
    url: str
    policy: str
    batch: int
    directory: str
    most: int = 0
    """Rollouts; 0: all."""


@dataclass
class Read:
    """What came of it. Tokens of a transition are those of its state and its action: prompt and response."""

    rollouts: int = 0
    transitions: int = 0
    tokens: int = 0
    trained: int = 0
    """Tokens that rows train."""
    packed: int = 0
    """Tokens that rows hold, those that several transitions share once."""
    rows: int = 0
    batches: int = 0
    plan_s: float = 0.0
    """Until it was known which rollouts wait, by the clock."""
    seconds: float = 0.0
    """In all."""
    cpu_s: float = 0.0
    peak_bytes: int = 0
    """The most memory that this process ever had."""


def as_a_job_does(order: Order) -> Read:
    """Plan, read, judge, credit, gate, merge and pack, with a job's defaults; a batch is forgotten before the next."""
    read = Read()
    config, gate = _job(order)
    limits, choices, policy = merge_limits(config), Choices.of_job(config), config.data.policy
    store = Store(order.url)
    begun = time.perf_counter()
    sought = Sought(policy, Since(0, untrained_only=True), LATEST_NS, choices.penalized_statuses)
    store.backlog(sought)
    waiting = store.untrained(sought)
    read.plan_s = time.perf_counter() - begun
    for batch in _batches(waiting[: order.most or None], order.batch):
        rollouts = store.filled(batch)
        proving = replace(gate, trained=store.trained_spans(policy, rollouts))
        samples = samples_of(rollouts, policy, choices, proving)
        rows, _ = rows_of(
            samples,
            merge=limits.merge,
            max_row_tokens=limits.max_row_tokens,
            branches=limits.branches,
            token_cost=limits.token_cost,
        )
        calls = [sample.transition.call for sample in samples.all]
        read.batches += 1
        read.rollouts += len(rollouts)
        read.transitions += len(calls)
        read.tokens += sum(len(call.prompt_token_ids) + len(call.response_token_ids) for call in calls)
        read.rows += len(rows)
        read.packed += sum(len(row.token_ids) for row in rows)
        read.trained += sum(row.n_trained for row in rows)
        del rollouts, proving, samples, rows, calls
    store.close()
    return read


def _beside(what: Callable[[str, Sequence[str]], tuple[int, int]]) -> Callable[[Order], Read]:
    """Of the same rollouts, something else: it gives the number of calls, and of their tokens."""

    def read_so(order: Order) -> Read:
        store = Store(order.url)
        sought = Sought(order.policy, Since(0, untrained_only=True), LATEST_NS)
        waiting = store.untrained(sought)[: order.most or None]
        store.close()
        read = Read(rollouts=len(waiting))
        begun, cpu_s = time.perf_counter(), time.process_time()
        for batch in _batches(waiting, order.batch):
            transitions, tokens = what(order.url, [rollout.rollout_id for rollout in batch])
            read.transitions += transitions
            read.tokens += tokens
            read.batches += 1
        read.seconds, read.cpu_s = time.perf_counter() - begun, time.process_time() - cpu_s
        return read

    return read_so


WAYS: dict[str, Callable[[Order], Read]] = {
    "job": as_a_job_does,
    "rows": _beside(transitions_beside.row_by_row),
    "columns": _beside(transitions_beside.stored_columns),
}


def _job(order: Order) -> tuple[TrainConfig, Gate]:
    """A job with defaults on a model whose size is known, and its gate."""
    model = Path(order.directory) / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(MODEL))
    config = TrainConfig.model_validate({"data": {"policy": order.policy}, "engine": {"model": model}})
    gate = Gate(
        max_prompt_tokens=config.engine.max_prompt_tokens,
        max_response_tokens=config.engine.max_response_tokens,
        max_staleness=config.data.max_staleness,
        lineage=(0,),
        vocabulary=Vocabulary(np.ones(N_VOCABULARY, np.bool_)),
    )
    return config, gate


def _batches(rollouts: Sequence[Rollout], size: int) -> Iterator[list[Rollout]]:
    """Groups are never torn."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    waiting: list[Rollout] = []
    for group in groups.values():
        waiting += group
        if len(waiting) >= size:
            taken = whole_groups(waiting, size)
            yield taken
            waiting = waiting[len(taken) :]
    if waiting:
        yield waiting


def carry_out(value: dict[str, Any]) -> dict[str, Any]:
    """One order."""
    order = Order(**value)
    begun, cpu_s = time.perf_counter(), time.process_time()
    read = WAYS[order.way](order)
    read.seconds = read.seconds or time.perf_counter() - begun
    read.cpu_s = read.cpu_s or time.process_time() - cpu_s
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read.peak_bytes = most if sys.platform == "darwin" else most << 10
    return asdict(read)


def main() -> None:
    """Until its input ends."""
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(orjson.dumps(carry_out(orjson.loads(line))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
