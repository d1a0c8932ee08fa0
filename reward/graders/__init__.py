"""Graders: an answer and what was expected in, a score from 0 to 1 out. Plain functions, one a file."""

from collections.abc import Callable, Mapping
from typing import Any

from reward.graders.exact import exact
from reward.graders.numeric import numeric

Grader = Callable[[str, Any], float]

GRADERS: Mapping[str, Grader] = {"exact": exact, "numeric": numeric}

__all__ = ["GRADERS", "Grader", "exact", "numeric"]
