-- One row: a rollout that has ended and, unless {again}, has no reward of the name yet.
SELECT
    rollout_id,
    attempt,
    task_id,
    trace_id,
    root_span_id,
    status,
    error_type,
    stdout
FROM rollout_outcomes
WHERE status IN ('succeeded', 'failed', 'timeout')
    AND ({rollout:String} = '' OR rollout_id = {rollout:String})
    AND ({again:UInt8} OR (rollout_id, attempt) NOT IN
        (SELECT rollout_id, attempt FROM rewards WHERE name = {name:String}))
ORDER BY started_at, rollout_id, attempt
