-- One row is one metric of one optimiser step. Which ones: variable `metric`.
SELECT toDateTime(ended_at) AS time, concat(policy, ' ', metric.1) AS series, metric.2 AS value
FROM otel.train_steps FINAL
ARRAY JOIN JSONExtractKeysAndValues(metrics, 'Float64') AS metric
WHERE $__timeFilter(ended_at) AND metric.1 IN (${metric:singlequote})
    AND $__conditionalAll(policy IN (${policy:singlequote}), $policy)
ORDER BY time, series
