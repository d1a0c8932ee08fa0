"""The gate: which calls may be trained on. What is not proved exact is dropped with a reason, never silently.

Reasons, in the order they are looked for: the sidecar's own untrainable reason, such as `mixed_versions`; `no_tokens`;
`no_logprobs`; `undecodable` (a token id that the model or its tokenizer does not have); `unknown_version` (sampled by
weights that this job neither published nor started from); `stale`; `too_long`; `off_distribution` (the captured
log-probs are not of the distribution that was sampled); `trained_before`. A job adds `logprob_mismatch`, see
`trainer.agreement`, and a batch `no_reward`. What groups add (`singleton_group`, `no_signal`, see `trainer.advantage`)
and what a failure policy adds (`failed_...`) says nothing against a call.
"""

import json
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.transitions import Call
from trainer.vocabulary import Vocabulary

NEUTRAL: dict[str, Callable[[Any], bool]] = {
    "temperature": lambda value: value == 1,
    "top_p": lambda value: value == 1,
    "top_k": lambda value: value in (0, -1),
    "min_p": lambda value: value == 0,
    "presence_penalty": lambda value: value == 0,
    "frequency_penalty": lambda value: value == 0,
    "repetition_penalty": lambda value: value == 1,
    "logit_bias": lambda value: not value,
    "min_tokens": lambda value: value == 0,
    "bad_words": lambda value: not value,
    "allowed_token_ids": lambda value: not value,
    "structured_outputs": lambda value: not value,
    "tool_choice": lambda value: value in ("auto", "none"),
    "use_beam_search": lambda value: not value,
    "thinking_token_budget": lambda value: value == -1,
    "watermarking": lambda value: not value,
    "vllm_xargs": lambda value: not value,
    "ignore_eos": lambda value: not value,
    "strict_tools": lambda value: not value,
    "logprobs_mode": lambda value: value in ("raw_logprobs", "processed_logprobs"),
    "response_format": lambda value: not value or value in ("text", {"type": "text"}),
}
"""Sampling parameters that change the distribution, and whether a value leaves it as it is.

Not here are those that only end an answer: `max_tokens`, `stop`, `stop_token_ids`, `repetition_detection`. A text that
goes on after its own end (`ignore_eos`) is not what the policy writes.

A parameter that is absent or null has the engine's default. That is assumed to be neutral, which is true of a vLLM
that runs with `--generation-config vllm`, as `tracegrad up` starts it. vLLM's own choice is `auto`, which takes the
defaults of the model's `generation_config.json`, often a temperature or top_p; no span shows the difference.
"""

ROUNDING = 1e-3
"""No log-prob is above 0; more than this is none, but a logit."""


@dataclass(frozen=True)
class Gate:
    """What one job accepts.

    `lineage`: the versions of the policy, oldest first, from the one the job started from to the newest; None
    leaves age out of account. `vocabulary`: the model's; None leaves it out of account. `trained`: ids of the spans
    that earlier steps were trained on, where that must not happen twice.
    """

    max_prompt_tokens: int
    max_response_tokens: int
    max_staleness: int
    lineage: Sequence[int] | None
    vocabulary: Vocabulary | None = None
    trained: AbstractSet[str] = frozenset()

    def staleness(self, version: int | None) -> int | None:
        """How many versions were published after `version`; None when it is not of the lineage."""
        if self.lineage is None or version is None or version not in self.lineage:
            return None
        return len(self.lineage) - 1 - self.lineage.index(version)

    def drop_reason(self, call: Call) -> str:
        """Why `call` may not be trained on; empty when it may."""
        return self._token_reason(call) or self._version_reason(call.policy_version) or self._use_reason(call)

    def _token_reason(self, call: Call) -> str:
        """Whether there are exact tokens at all, with what was sampled told of each, and the model has them."""
        if not call.trainable:
            return call.untrainable_reason or "untrainable"
        if len(call.prompt_token_ids) == 0 or len(call.response_token_ids) == 0:
            return "no_tokens"
        if len(call.logprobs) != len(call.response_token_ids) or not _are_logprobs(call.logprobs):
            return "no_logprobs"
        known = self.vocabulary
        if known is None or (known.decodes(call.prompt_token_ids) and known.decodes(call.response_token_ids)):
            return ""
        return "undecodable"

    def _version_reason(self, version: int | None) -> str:
        if self.lineage is None:
            return ""
        staleness = self.staleness(version)
        if staleness is None:
            return "unknown_version"
        return "stale" if staleness > self.max_staleness else ""

    def _use_reason(self, call: Call) -> str:
        """Whether a job may use it as it is, and still may."""
        too_long = (
            len(call.prompt_token_ids) > self.max_prompt_tokens
            or len(call.response_token_ids) > self.max_response_tokens
        )
        if too_long:
            return "too_long"
        if not sampled_from_policy(call.sampling):
            return "off_distribution"
        return "trained_before" if call.span_id in self.trained else ""


def _are_logprobs(values: np.ndarray) -> bool:
    return bool(np.all(np.isfinite(values)) and np.all(values <= ROUNDING))


def sampled_from_policy(sampling: str) -> bool:
    """Whether sampling parameters (JSON text) leave the policy's distribution as it is.

    Parameters that were not recorded prove nothing, so they do not.
    """
    try:
        parameters = json.loads(sampling)
    except (json.JSONDecodeError, RecursionError):  # text that nests thousands deep is nobody's parameters either
        return False
    if not isinstance(parameters, dict):
        return False
    return all(value is None or name not in NEUTRAL or NEUTRAL[name](value) for name, value in parameters.items())
