"""Merged rows on a real model: loss, gradient, metrics and log-probabilities are those of one row per call."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from call_trees import call_trees, piece, responses
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray
from tiny_models import VOCABULARY, Recorder, write_llama

from trainer.config import TrainConfig
from trainer.engine import Engine
from trainer.packing import Piece, Room, merged, one_by_one
from trainer.rows import Row

pytestmark = pytest.mark.slow

TOKEN_LOSSES = ("vanilla", "dppo_tv", "dppo_kl", "gpg", "kl_cov", "cispo")
"""All that verl can compute here but gspo and sapo, which look at sequences, and clip_cov, which draws its tokens."""

UNCHANGING = 1e-30
"""A learning rate that moves no float32 weight."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def start(llama: Path) -> Callable[..., Engine]:
    """A function that starts an engine with `[engine]` and `[algorithm]` settings; weights stay as they are."""
    started: dict[str, Engine] = {}

    def make(micro_batch_rows: int = 4, **algorithm: Any) -> Engine:
        engine = {"model": llama, "lr": UNCHANGING, "weight_decay": 0.0, "max_grad_norm": 1e9}
        engine["micro_batch_rows"] = micro_batch_rows
        config = TrainConfig.model_validate({"engine": engine, "algorithm": algorithm})
        key = config.model_dump_json()
        if key not in started:
            started[key] = Engine(config)
        return started[key]

    return make


def tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY, count)]


T = [tokens(k, 3 + k % 4) for k in range(8)]
"""What the agent is told."""
A = [tokens(90 + k, 2 + k % 5) for k in range(8)]
"""What it answers."""
FIRST = T[0] + A[0]
SHAPES: dict[str, list[tuple[list[int], list[int]]]] = {
    "chain": [(T[0], A[0]), (FIRST + T[1], A[1]), (FIRST + T[1] + A[1] + T[2], A[2])],
    "n > 1": [(T[0], A[0]), (T[0], A[1]), (T[0], A[0])],
    "branches": [(T[0], A[0]), (FIRST + T[1], A[1]), (FIRST + T[2], A[2]), (FIRST, A[3]), (FIRST, A[4])],
    "nested": [
        (T[0], A[0]),
        (FIRST + T[1], A[1]),
        (FIRST + T[1] + A[1] + T[2], A[2]),
        (FIRST + T[1] + A[1] + T[3], A[3]),
        (FIRST + T[1] + A[1] + T[3], A[4]),
        (FIRST + T[1] + A[1] + T[3] + A[4] + T[5], A[5]),
        (FIRST + T[4], A[6]),
    ],
    "a dropped call": [(T[0], A[0]), (FIRST + T[1] + A[1] + T[2], A[2]), (FIRST + T[1] + A[1] + T[3], A[3])],
    "no merge": [(T[0], A[0]), (T[1], A[1])],
}


def calls_of(shapes: Sequence[str], engine: Engine) -> list[Piece]:
    """A rollout per shape. Behaviour is the present policy up to noise: some ratios lie beyond every clip range."""
    calls = [
        dataclasses.replace(
            piece(prompt, response, key=rollout), behaviour_logprobs=np.zeros(len(response), np.float32)
        )
        for rollout, shape in enumerate(shapes)
        for prompt, response in SHAPES[shape]
    ]
    rng = np.random.default_rng(len(calls))
    found = []
    for call, exact in zip(calls, engine.log_probs(one_by_one(calls)), strict=True):
        noise = rng.normal(0, 0.5, len(exact))
        noise[0] = -1.5
        advantages = rng.normal(0, 1, len(exact) if rng.random() < 0.5 else ())
        found.append(
            dataclasses.replace(
                call,
                behaviour_logprobs=(exact + noise).astype(np.float32),
                advantages=np.asarray(advantages),
                weight=float(rng.uniform(0.01, 0.1)),
            )
        )
    return found


def gradient(engine: Engine, rows: list[Row]) -> tuple[torch.Tensor, dict[str, float]]:
    """The gradient of all parameters, as one vector, and the update's metrics."""
    recorder = Recorder(engine)
    metrics = engine.update(rows)
    recorder.remove()
    return torch.cat([part.flatten() for part in recorder.steps[0].values()]), metrics


def check_same(engine: Engine, calls: list[Piece], most: int = 1000) -> list[Row]:
    apart, metrics = gradient(engine, one_by_one(calls))
    rows, _ = merged(calls, Room(most))
    together, metrics_of_merged = gradient(engine, rows)
    assert apart.norm() > 1e-2
    assert (together - apart).norm() <= 1e-5 * apart.norm()
    for name, value in metrics.items():
        assert metrics_of_merged[name] == pytest.approx(value, rel=1e-5, abs=1e-7), name
    return rows


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_has_the_gradient_of_its_calls(start: Callable[..., Engine], shape: str) -> None:
    engine = start()
    calls = calls_of([shape], engine)
    rows = check_same(engine, calls)
    assert len(rows) == (2 if shape == "no merge" else 1)
    assert (rows[0].branches is None) == (shape in {"chain", "no merge"})


@pytest.mark.parametrize(("micro_batch_rows", "most"), [(4, 16), (4, 1000), (64, 1000)])
def test_many_rollouts_in_any_micro_batches(start: Callable[..., Engine], micro_batch_rows: int, most: int) -> None:
    """Branched and plain rows, padding rows, rows that became too long, all in one update."""
    engine = start(micro_batch_rows)
    rows = check_same(engine, calls_of([*SHAPES, "chain", "chain"], engine), most)
    assert len(rows) == 9 if most == 1000 else len(rows) > 11
    assert {row.branches is None for row in rows} == {True, False}


def test_one_row_per_micro_batch(start: Callable[..., Engine]) -> None:
    engine = start(1)
    check_same(engine, calls_of(["branches", "chain"], engine))


@pytest.mark.parametrize(
    "algorithm",
    [{"aggregation": "token-mean"}, {"aggregation": "token-sum"}, *({"loss": name} for name in TOKEN_LOSSES)],
    ids=str,
)
def test_losses_that_look_at_tokens_keep_their_meaning(start: Callable[..., Engine], algorithm: dict[str, str]) -> None:
    """One micro-batch: kl_cov chooses its tokens among those of a micro-batch."""
    engine = start(64, **algorithm)
    check_same(engine, calls_of(list(SHAPES), engine))


def test_log_probs_are_those_of_the_calls_alone(start: Callable[..., Engine]) -> None:
    engine = start()
    calls = calls_of(list(SHAPES), engine)
    check_log_probs(engine, calls)


def check_log_probs(engine: Engine, calls: list[Piece]) -> None:
    rows, _ = merged(calls, Room(1000))
    alone = engine.log_probs(one_by_one(calls))
    for row, log_probs in zip(rows, engine.log_probs(rows), strict=True):
        assert len(log_probs) == row.n_trained
        spread: NDArray[np.float32] = np.zeros(len(row.token_ids), np.float32)
        spread[row.mask] = log_probs
        for number, of_response in responses(row, calls).items():
            np.testing.assert_allclose(spread[of_response], alone[number], atol=1e-5)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=call_trees(max_calls=8))
def test_log_probs_of_any_tree(start: Callable[..., Engine], calls: list[Piece]) -> None:
    check_log_probs(start(), calls)
