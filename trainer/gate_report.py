"""What the gate found in one batch, and whether a job may train on the rest of it.

Invariant: a batch of which too much fails is not trained on at all, and nothing of it is consumed: what is wrong with
so many calls is likely wrong with the others too, only unseen.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tracegrad.errors import TracegradError
from trainer.agreement import LOGPROB_MISMATCH, Agreement
from trainer.config import TrainConfig
from trainer.gate import Gate
from trainer.members import NO_REWARD
from trainer.plan import Plan
from trainer.reasons import FAILED
from trainer.samples import Sample

GROUP_REASONS = frozenset({"singleton_group", "no_signal"})
SPANS_TOLD = 3

ADVICE = {
    LOGPROB_MISMATCH: "check that vLLM serves the weights that this job trains, in float32 and with neutral sampling",
    "undecodable": "engine.model is not the model that vLLM serves",
    "unknown_version": "other weights than this job's sampled them: check what vLLM serves, or train from engine.model",
    "stale": "raise data.max_staleness, or leave old rollouts out with data.since",
    "too_long": "raise engine.max_prompt_tokens or engine.max_response_tokens",
    "off_distribution": "sample with temperature 1 and without top_p, top_k or penalties",
    "no_logprobs": "see the policy's [[model]] entry: its engine has to give log-probs",
    "mixed_versions": "publish less often, or let calls end before",
    "trained_before": "another job trains this policy: end it, or set data.since to train on them again",
    NO_REWARD: "score the rollouts (`tracegrad reward`), or correct data.reward_set",
}


class RefusedError(TracegradError):
    """Too much of a batch may not be trained on."""


class FailedCall(BaseModel):
    """One call that may not be trained on, and what the gate knows of it. `logprob_gap`: the largest of its tokens."""

    model_config = ConfigDict(frozen=True)

    rollout_id: str
    attempt: int
    span_id: str
    agent: str
    reason: str
    policy_version: int | None
    staleness: int | None
    prompt_tokens: int
    response_tokens: int
    logprob_gap: float | None


class GateReport(BaseModel):
    """The verdict on one batch.

    `looked_at`: its calls, without those that the failure policy left out. `reasons`: of those that fail, how many.
    `other_drops`: why calls that pass are not trained on. `failures`: by error type, how often which action was taken,
    over rollouts and calls. `recomputed`: calls whose log-probs were computed again; None where that was left out.
    `failing`: every call that fails, by reason, those that are furthest off first. `merge`: metrics of the rows that
    were made.
    """

    model_config = ConfigDict(frozen=True)

    job: str
    policy: str
    step: int
    at: str
    looked_at: int
    failed: int
    max_failed_share: float
    reasons: dict[str, int]
    other_drops: dict[str, int]
    uncalled_rollouts: int
    failures: dict[str, dict[str, int]]
    recomputed: int | None
    mismatched: int
    logprob_tolerance: float
    logprob_max_diff: float | None
    logprob_mean_diff: float | None
    failing: tuple[FailedCall, ...]
    merge: dict[str, float]

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        number: int,
        plan: Plan,
        gate: Gate,
        *,
        compared: Agreement | None = None,
        recomputed: bool = True,
        merge: Mapping[str, float] | None = None,
    ) -> "GateReport":
        """What there is to say of step `number`. `compared`: None where no call was sampled by the newest version.

        `recomputed`: whether log-probs were looked at at all.
        """
        reasons = Counter(sample.drop_reason for sample in plan.samples.all)
        judged = {reason: count for reason, count in sorted(reasons.items()) if is_gate_reason(reason)}
        by_error: dict[str, dict[str, int]] = defaultdict(dict)
        for (error, action), count in sorted(plan.samples.failures.items()):
            by_error[error][action] = count
        return cls(
            job=config.job,
            policy=config.data.policy,
            step=number,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            looked_at=sum(count for reason, count in reasons.items() if not reason.startswith(FAILED)),
            failed=sum(judged.values()),
            max_failed_share=config.gate.max_failed_share,
            reasons=judged,
            other_drops={name: n for name, n in sorted(reasons.items()) if name and name not in judged},
            uncalled_rollouts=len(plan.uncalled),
            failures=dict(by_error),
            recomputed=(len(compared.gaps) if compared is not None else 0) if recomputed else None,
            mismatched=len(compared.mismatched) if compared is not None else 0,
            logprob_tolerance=config.gate.logprob_tolerance,
            logprob_max_diff=compared.max_diff if compared is not None else None,
            logprob_mean_diff=compared.mean_diff if compared is not None else None,
            failing=_failing(plan.samples.all, gate, compared),
            merge=dict(merge or {}),
        )

    @property
    def failed_share(self) -> float:
        """Of the calls that were looked at, those that fail."""
        return self.failed / self.looked_at if self.looked_at else 0.0

    @property
    def passed(self) -> bool:
        """Whether the job may train on what is left.

        Where the calls that can be compared are not the learner's own, the others are not to be trusted either.
        """
        mismatched = self.mismatched / self.recomputed if self.recomputed else 0.0
        return max(self.failed_share, mismatched) <= self.max_failed_share

    def metrics(self) -> dict[str, float]:
        """As metrics of a step."""
        return {"gate_failed_share": self.failed_share}

    def check(self, told_in: Path | None) -> None:
        """Raise RefusedError where the batch may not be trained on. `told_in`: the file with the whole report."""
        if self.passed:
            return
        most = max(self.reasons, key=lambda reason: self.reasons[reason])
        if self.failed_share <= self.max_failed_share:
            most = LOGPROB_MISMATCH
        spans = [call.span_id for call in sorted(self.failing, key=lambda call: call.reason != most)][:SPANS_TOLD]
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.reasons.items(), key=lambda one: -one[1]))
        gap = f" (log-probs differ by up to {self.logprob_max_diff:.3g})" if self.mismatched else ""
        report = f"; all of it is in {told_in}" if told_in is not None else ""
        raise RefusedError(
            f"the gate refuses the batch, so nothing was trained or consumed: {self.failed} of {self.looked_at} calls "
            f"({self.failed_share:.0%}) fail, gate.max_failed_share is {self.max_failed_share:g}: {counts}{gap}; "
            f"first spans {', '.join(spans)}{report}; {ADVICE.get(most, WAY_OUT)}"
        )


WAY_OUT = "`tracegrad doctor --rollout ID` explains one rollout; gate.max_failed_share = 1 trains on all that pass"


def is_gate_reason(reason: str) -> bool:
    """Whether a drop reason says that the call itself is not fit to train on."""
    return reason != "" and reason not in GROUP_REASONS and not reason.startswith(FAILED)


def _failing(samples: Sequence[Sample], gate: Gate, compared: Agreement | None) -> tuple[FailedCall, ...]:
    """By reason, of each those with the largest numbers first."""
    found = [_failed(sample, gate, compared) for sample in samples if is_gate_reason(sample.drop_reason)]
    return tuple(sorted(sorted(found, key=_badness, reverse=True), key=lambda call: call.reason))


def _failed(sample: Sample, gate: Gate, compared: Agreement | None) -> FailedCall:
    call = sample.transition.call
    return FailedCall(
        rollout_id=call.rollout_id,
        attempt=call.attempt,
        span_id=call.span_id,
        agent=call.agent,
        reason=sample.drop_reason,
        policy_version=call.policy_version,
        staleness=gate.staleness(call.policy_version),
        prompt_tokens=len(call.prompt_token_ids),
        response_tokens=len(call.response_token_ids),
        logprob_gap=compared.gaps.get(call.span_id) if compared is not None else None,
    )


def _badness(call: FailedCall) -> tuple[float, int, int]:
    return call.logprob_gap or 0.0, call.staleness or 0, call.prompt_tokens + call.response_tokens
