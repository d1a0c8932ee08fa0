-- One row is one phase of one optimiser step: how long it took.
SELECT toDateTime(ended_at) AS time, substring(metric.1, 9) AS phase, metric.2 AS seconds
FROM otel.train_steps FINAL
ARRAY JOIN JSONExtractKeysAndValues(metrics, 'Float64') AS metric
WHERE $__timeFilter(ended_at) AND startsWith(metric.1, 'seconds_')
    AND $__conditionalAll(policy IN (${policy:singlequote}), $policy)
ORDER BY time, phase
