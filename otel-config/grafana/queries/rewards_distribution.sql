-- One row is one rewarded attempt. The panel makes the bars.
SELECT assumeNotNull(reward) AS reward
FROM otel.rollout_outcomes
WHERE reward IS NOT NULL AND $__timeFilter(started_at) AND $__conditionalAll(task_id IN (${task:singlequote}), $task)
ORDER BY started_at DESC
LIMIT 10000
