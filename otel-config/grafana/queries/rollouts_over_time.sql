-- One row is one interval and status: the attempts that began in it.
SELECT $__timeInterval(started_at) AS time, status, count() AS rollouts
FROM otel.rollout_outcomes
WHERE $__timeFilter(started_at) AND $__conditionalAll(task_id IN (${task:singlequote}), $task)
GROUP BY time, status
ORDER BY time, status
