-- One row is one interval and model: how long its calls took.
SELECT
    $__timeInterval(started_at) AS time,
    model,
    quantile(0.5)(dateDiff('microsecond', started_at, ended_at) / 1e6) AS median,
    quantile(0.95)(dateDiff('microsecond', started_at, ended_at) / 1e6) AS p95
FROM otel.llm_calls
WHERE $__timeFilter(started_at) AND $__conditionalAll(policy IN (${policy:singlequote}), $policy)
    AND $__conditionalAll(agent IN (${agent:singlequote}), $agent)
GROUP BY time, model
ORDER BY time, model
