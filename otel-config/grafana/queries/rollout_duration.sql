-- One row is one interval: how long the attempts took that ended in it.
SELECT
    $__timeInterval(assumeNotNull(ended_at)) AS time,
    quantile(0.5)(dateDiff('millisecond', started_at, assumeNotNull(ended_at)) / 1000) AS median,
    quantile(0.95)(dateDiff('millisecond', started_at, assumeNotNull(ended_at)) / 1000) AS p95
FROM otel.rollout_outcomes
WHERE ended_at IS NOT NULL AND $__timeFilter(assumeNotNull(ended_at))
    AND $__conditionalAll(task_id IN (${task:singlequote}), $task)
GROUP BY time
ORDER BY time
