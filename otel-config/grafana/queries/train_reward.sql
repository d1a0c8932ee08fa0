-- One row is one optimiser step: the mean reward of the rollouts that it learned from.
SELECT toDateTime(ended_at) AS time, policy, JSONExtract(metrics, 'reward_mean', 'Nullable(Float64)') AS reward
FROM otel.train_steps FINAL
WHERE $__timeFilter(ended_at) AND $__conditionalAll(policy IN (${policy:singlequote}), $policy)
ORDER BY time, policy
