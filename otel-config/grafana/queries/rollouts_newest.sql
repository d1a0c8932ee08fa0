-- One row is one attempt, newest first. `seconds` of one that still runs is how long it has been running.
SELECT
    started_at,
    status,
    task_id,
    rollout_id,
    attempt,
    reward,
    round(dateDiff('millisecond', started_at, ifNull(ended_at, now64(9))) / 1000, 1) AS seconds,
    n_calls,
    n_trainable,
    arrayStringConcat(agents, ', ') AS agents,
    error_type,
    trace_id
FROM otel.rollouts
WHERE $__timeFilter(started_at) AND $__conditionalAll(task_id IN (${task:singlequote}), $task)
ORDER BY started_at DESC
LIMIT 200
