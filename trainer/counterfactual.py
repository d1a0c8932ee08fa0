"""What a step would have trained with other rewards or another credit, beside what it did train.

A step is rebuilt from its own configuration and from the rewards that the store has now. Verdicts that depend on when
the step was made, or on its weights, are taken from its record: they cannot be found again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from tracegrad.errors import InputError, TracegradError
from trainer.batch_choices import Choices
from trainer.config import TrainConfig
from trainer.gate import Gate
from trainer.samples import samples_of
from trainer.store import Store, TrainedStep

OF_ITS_TIME = frozenset({"stale", "unknown_version", "trained_before", "logprob_mismatch", "undecodable"})
"""Reasons of a gate that nobody can look into again."""
TOLERANCE = 1e-9
"""Differences that come from rounding alone."""


@dataclass(frozen=True)
class Side:
    """What became of one transition. `credit`, `advantage`: None where it was not looked at."""

    credit: float | None
    advantage: float | None
    used: bool
    drop_reason: str


ABSENT = Side(None, None, used=False, drop_reason="absent")


@dataclass(frozen=True)
class Difference:
    """One transition as the step trained it, and as it would be trained now."""

    rollout_id: str
    attempt: int
    agent: str
    span_id: str
    trained: Side
    rebuilt: Side

    @property
    def same(self) -> bool:
        """Whether nothing would be different."""
        return (
            self.trained.used == self.rebuilt.used
            and self.trained.drop_reason == self.rebuilt.drop_reason
            and _near(self.trained.credit, self.rebuilt.credit)
            and _near(self.trained.advantage, self.rebuilt.advantage)
        )

    def line(self) -> dict[str, Any]:
        """For programs."""
        sides = {
            name: {
                "credit": side.credit,
                "advantage": side.advantage,
                "used": side.used,
                "drop_reason": side.drop_reason or None,
            }
            for name, side in (("trained", self.trained), ("rebuilt", self.rebuilt))
        }
        return {
            "rollout_id": self.rollout_id,
            "attempt": self.attempt,
            "agent": self.agent,
            "span_id": self.span_id,
            "same": self.same,
            **sides,
        }


def _near(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return first is second
    return abs(first - second) <= TOLERANCE * max(1.0, abs(first), abs(second))


def config_of_step(step: TrainedStep) -> TrainConfig:
    """The `train.toml` that a step was made with. Raises TracegradError where this version cannot read it."""
    try:
        return TrainConfig.model_validate_json(step.config)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TracegradError(
            f"step {step.step_id} was made with settings that this version does not know ({where}: {first['msg']}): "
            "give --job with a train.toml that says the same"
        ) from error


def differences(store: Store, step: TrainedStep, config: TrainConfig, choices: Choices) -> Iterator[Difference]:
    """Every transition of the step's rollouts, by rollout id, start and span id; then those that are gone.

    `config`: the limits. `choices`: rewards, credit and advantages to rebuild it with.
    """
    trained = {sample.span_id: sample for sample in store.samples_of_step(step.step_id)}
    if not trained:
        raise InputError(f"step {step.step_id} trained on nothing: choose another (`tracegrad sql` on train_steps)")
    keys = {(sample.rollout_id, sample.attempt) for sample in trained.values()}
    found = store.rollouts_named(sorted({rollout_id for rollout_id, _ in keys}))
    rollouts = store.filled([rollout for rollout in found if rollout.key in keys])
    gate = Gate(
        max_prompt_tokens=config.engine.max_prompt_tokens,
        max_response_tokens=config.engine.max_response_tokens,
        max_staleness=config.data.max_staleness,
        lineage=None,
    )
    for sample in samples_of(rollouts, step.policy, choices, gate).all:
        call = sample.transition.call
        record = trained.pop(call.span_id, None)
        rebuilt = Side(sample.credit, sample.advantage, sample.used, sample.drop_reason)
        before = ABSENT
        if record is not None:
            before = Side(record.reward, record.advantage, record.used, record.drop_reason)
            if record.drop_reason in OF_ITS_TIME:
                rebuilt = replace(rebuilt, used=False, drop_reason=record.drop_reason)
        yield Difference(call.rollout_id, call.attempt, call.agent, call.span_id, before, rebuilt)
    for record in trained.values():
        if record.n_tokens:
            before = Side(record.reward, record.advantage, record.used, record.drop_reason)
            yield Difference(record.rollout_id, record.attempt, record.agent, record.span_id, before, ABSENT)
