"""What one engine is like, beside its weights: settings of its process, which hold for as long as it lives."""

from dataclasses import dataclass
from typing import Any

LOGITS_MODES = ("raw_logits", "processed_logits")
"""In these an engine's "log-probs" are none."""


@dataclass
class Traits:
    """What is known. All but the pin is forgotten when the engine may have become another one."""

    logprobs_mode: str | None = None
    """What the log-probs it returns are of, by its own word; None: not known."""
    strict_tools: bool | None = None
    """Whether it makes calls of strict tools keep to their schema; None: not known."""
    stream_mark: dict[str, Any] | None = None
    """What its streams add to finishing chunks (`sidecar.held`); None: not known."""
    pinned_mode: str | None = None
    """What its log-probs must be of, as the policy says; None: whatever they are of."""

    @property
    def as_pinned(self) -> bool:
        """Whether its log-probs are of the kind that the policy pins."""
        return self.pinned_mode is None or self.logprobs_mode == self.pinned_mode

    @property
    def exact_logprobs(self) -> bool:
        """Whether they may be trained on: they are log-probs, as far as is known, and as pinned."""
        return self.as_pinned and self.logprobs_mode not in LOGITS_MODES

    def problem(self, url: str) -> str:
        """Why it is not as pinned, and what to do; empty where it is."""
        if self.as_pinned:
            return ""
        has = f"returns {self.logprobs_mode}" if self.logprobs_mode else "does not tell its logprobs_mode"
        return (
            f"engine at {url} {has}, but its policy pins logprobs_mode = {self.pinned_mode}: "
            f"start vLLM with VLLM_SERVER_DEV_MODE=1 and --logprobs-mode={self.pinned_mode}"
        )

    def streamed(self, mark: dict[str, Any] | None) -> None:
        """One of its streams has ended, and told this of its chunks (None: nothing)."""
        if mark is not None:
            self.stream_mark = mark

    def forget(self) -> None:
        """Contact was lost: what comes back may be another engine."""
        self.logprobs_mode = self.strict_tools = self.stream_mark = None
