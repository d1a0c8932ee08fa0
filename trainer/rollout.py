"""One attempt of an agent on a task, as the store has it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainer.reward_sets import Given
from trainer.spans import Span
from trainer.transitions import Attempt, Call


@dataclass(frozen=True, eq=False)
class Rollout:
    """One attempt of an agent on a task, with all its calls, spans and rewards.

    `given`: the newest evaluations of its spans. `rewards`: span id to the sum of those that count. `reward`: their
    sum; None when there are none. `root_span_id`: empty where no launcher ran the agent. `error_type`: of its root.
    """

    rollout_id: str
    attempt: int
    task_id: str
    trace_id: str
    root_span_id: str
    status: str
    error_type: str
    split: str
    reward: float | None
    calls: Sequence[Call] = ()
    spans: Sequence[Span] = ()
    given: Sequence[Given] = ()
    rewards: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> Attempt:
        """What tells this attempt from every other."""
        return self.rollout_id, self.attempt

    @property
    def own_span_id(self) -> str:
        """The span that stands for the rollout as a whole: its root, or else its first call."""
        first = min(self.calls, key=lambda call: (call.started_ns, call.span_id), default=None)
        return self.root_span_id or (first.span_id if first is not None else "")

    @property
    def group(self) -> str:
        """Rollouts of one task are measured against each other; a rollout without a task against none."""
        return f"task {self.task_id}" if self.task_id else f"rollout {self.rollout_id} {self.attempt}"
