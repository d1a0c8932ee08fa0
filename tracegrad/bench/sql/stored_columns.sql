-- One row per call of the given rollouts: the numbers that its span holds, and how many tokens it has in all.
SELECT
    PromptTokenIds, ResponseTokenIds, ResponseLogprobs,
    ExtendsTokens + length(PromptTokenIds) + length(ResponseTokenIds) AS n_tokens
FROM otel_traces
WHERE IsLlmCall AND RolloutId IN {rollout_ids:Array(String)}
