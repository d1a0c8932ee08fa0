"""What a rule has found."""

from typing import NamedTuple


class Finding(NamedTuple):
    """How much of it was found on a span, and what, in words. An empty `span_id` stands for the rollout as a whole."""

    span_id: str
    amount: float
    explanation: str
