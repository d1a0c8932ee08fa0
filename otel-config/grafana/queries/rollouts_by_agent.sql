-- One row is one agent: the attempts that it made calls in. An attempt of several agents counts for each.
SELECT
    agent,
    count() AS rollouts,
    countIf(status = 'succeeded') / count() AS succeeded,
    avg(reward) AS mean_reward,
    quantileIf(0.5)(dateDiff('millisecond', started_at, assumeNotNull(ended_at)) / 1000, ended_at IS NOT NULL) AS median_seconds
FROM otel.rollouts
ARRAY JOIN if(empty(agents), ['(no agent span)'], agents) AS agent
WHERE $__timeFilter(started_at) AND $__conditionalAll(task_id IN (${task:singlequote}), $task)
GROUP BY agent
ORDER BY rollouts DESC, agent
LIMIT 100
