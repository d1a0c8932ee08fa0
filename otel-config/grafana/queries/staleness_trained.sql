-- One row is one optimiser step: how many versions old the calls were that it trained on.
SELECT
    toDateTime(ended_at) AS time,
    policy,
    JSONExtract(metrics, 'staleness_mean', 'Nullable(Float64)') AS mean,
    JSONExtract(metrics, 'staleness_max', 'Nullable(Float64)') AS max
FROM otel.train_steps FINAL
WHERE $__timeFilter(ended_at) AND $__conditionalAll(policy IN (${policy:singlequote}), $policy)
ORDER BY time, policy
