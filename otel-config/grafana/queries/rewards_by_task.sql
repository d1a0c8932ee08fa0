-- One row is one task, hardest first. `spread` 0 means that its attempts are all alike, so that a group teaches nothing.
SELECT
    task_id,
    count() AS rollouts,
    avg(reward) AS mean,
    stddevPop(reward) AS spread,
    max(started_at) AS last_started_at
FROM otel.rollout_outcomes
WHERE reward IS NOT NULL AND $__timeFilter(started_at) AND $__conditionalAll(task_id IN (${task:singlequote}), $task)
GROUP BY task_id
ORDER BY mean, task_id
LIMIT 200
