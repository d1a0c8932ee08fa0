"""One rule of a file, and what it makes of an attempt.

Invariant: on one attempt a rule gives at most one reward to a span. All that it finds there adds up.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from reward.event import LARGEST_SCORE
from reward.rules.facts import Attempt
from reward.rules.settings import RuleSettings
from tracegrad.errors import TracegradError
from tracegrad.own_function import told

PREFIX = "rule."
LONGEST_EXPLANATION = 1000


@dataclass(frozen=True)
class Reward:
    """What a span gets by a rule, and why. `span_id` empty: the rollout as a whole, whose root has not arrived."""

    span_id: str
    name: str
    score: float
    label: str
    explanation: str
    version: str


@dataclass(frozen=True)
class Rule:
    """`version`: a digest of its settings and of its module's text, for one of ours of its number in `kinds` instead.

    `find`: yields span id, amount and explanation.
    """

    name: str
    label: str
    settings: RuleSettings
    version: str
    find: Callable[[Attempt], Iterable[Any]]

    def rewards(self, attempt: Attempt) -> list[Reward]:
        """What it gives on an attempt, earliest span first. Raises TracegradError where its function is wrong."""
        agents, tools = getattr(self.settings, "agents", ()), getattr(self.settings, "tools", ())
        amounts: dict[str, float] = {}
        words: dict[str, list[str]] = {}
        try:
            for found in self.find(attempt.restricted(agents, tools)):
                span_id, amount, explanation = self._checked(attempt, found)
                amounts[span_id] = amounts.get(span_id, 0.0) + amount
                words.setdefault(span_id, []).append(explanation)
        except TracegradError:
            raise
        except Exception as error:
            # Whatever a function of the user's raises: it must not give half of its rewards.
            raise TracegradError(f"rule {self.name} failed on rollout {attempt.rollout_id}: {told(error)}") from error
        order = sorted(amounts, key=lambda span_id: (_started(attempt, span_id), span_id))
        scores = [(span_id, self.settings.weight * amounts[span_id], words[span_id]) for span_id in order]
        if beyond := [score for _, score, _ in scores if not abs(score) <= LARGEST_SCORE]:
            raise TracegradError(
                f"rule {self.name} gave {beyond[0]:g} on rollout {attempt.rollout_id}: no score beyond "
                f"{LARGEST_SCORE:g} counts"
            )
        return self._capped(scores)

    def _checked(self, attempt: Attempt, found: Any) -> tuple[str, float, str]:
        try:
            span_id, amount, explanation = found
            span_id, amount = span_id or attempt.root_span_id, float(amount)
        except (TypeError, ValueError) as error:
            raise TracegradError(
                f"rule {self.name} gave {found!r}: it must yield span id, amount and explanation"
            ) from error
        if not math.isfinite(amount):
            raise TracegradError(f"rule {self.name} gave {amount} on rollout {attempt.rollout_id}: no finite number")
        if span_id not in attempt.spans and span_id != attempt.root_span_id:
            raise TracegradError(f"rule {self.name} judged {span_id!r}, no span of rollout {attempt.rollout_id}")
        return span_id, amount, str(explanation)

    def _capped(self, scores: list[tuple[str, float, list[str]]]) -> list[Reward]:
        left = math.inf if self.settings.cap is None else self.settings.cap
        rewards = []
        for span_id, score, words in scores:
            given = math.copysign(min(abs(score), left), score) if left else 0.0
            left -= abs(given)
            text = "; ".join(words)[:LONGEST_EXPLANATION]
            if given != score:
                text += f" (of {score:.6g}, the cap of {self.settings.cap:g} leaves {given:.6g})"
            rewards.append(
                Reward(span_id, PREFIX + self.name, given or 0.0, self.label, text, self.version)  # never -0.0
            )
        return rewards


def _started(attempt: Attempt, span_id: str) -> int:
    span = attempt.spans.get(span_id)
    return span.started_ns if span is not None else attempt.started_ns
