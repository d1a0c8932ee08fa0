"""Why calls are not trained on, in words for people."""

REASONS = {
    "error": "it failed",
    "aborted": "it was broken off by the engine or by the sidecar's end",
    "client_disconnected": "its agent went away before the answer ended",
    "passthrough": "its model has no policy",
    "incomplete_token_ids": "token ids of a part of it are missing",
    "no_token_ids": "the engine gave no token ids",
    "no_tokens": "its prompt or its response has no tokens",
    "no_logprobs": "it lacks log-probs of what was sampled",
    "mixed_versions": "new weights came while it was sampled, or nobody proves that none did",
    "unknown_version": "its weights are not of this job",
    "stale": "its weights are too old",
    "too_long": "its prompt or its response is longer than the job takes",
    "off_distribution": "sampling settings changed the distribution, so its log-probs are not the policy's",
    "undecodable": "it holds token ids that the model or its tokenizer does not have",
    "trained_before": "a step has trained on it",
    "logprob_mismatch": "the learner gives its tokens other log-probs",
    "no_reward": "its rollout has no reward that counts",
    "singleton_group": "its task has too few rollouts to be measured against",
    "no_signal": "all rollouts of its task did equally well",
    "came_late": "a step had consumed its rollout before it arrived",
    "eval": "its rollout is held out",
    "running": "its rollout is not over, or has no reward yet",
    "lost": "nothing was heard of its rollout any more",
}

FAILED = "failed_"
"""What the reasons of a failure policy begin with."""


def in_words(reason: str) -> str:
    """What a drop reason means; the reason itself where there are no words for it."""
    if reason.startswith(FAILED):
        return f"the failure policy leaves it out ({reason.removeprefix(FAILED)})"
    return REASONS.get(reason, reason)
