"""What one check of `tracegrad doctor` found."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the report; `advice` is empty when nothing is to be done."""

    check: str
    verdict: Verdict
    what: str
    advice: str = ""
