-- One row per attempt that a step may learn from: not held out, finished, rewarded, with a call of the policy; with
-- `again` = 0 only those that no step of this policy has consumed. Oldest first.
SELECT rollout_id, attempt, task_id, trace_id, root_span_id, status, split, reward
FROM rollouts
WHERE split != 'eval'
    AND status IN ('succeeded', 'failed', 'timeout')
    AND reward IS NOT NULL
    AND toUnixTimestamp64Nano(started_at) >= {since_ns:Int64}
    AND (rollout_id, attempt) IN (SELECT rollout_id, attempt FROM llm_calls WHERE policy = {policy:String})
    AND (
        {again:UInt8} = 1
        OR (rollout_id, attempt) NOT IN (
            SELECT rollout_id, attempt FROM train_samples
            WHERE step_id IN (SELECT step_id FROM train_steps WHERE policy = {policy:String})
        )
    )
ORDER BY started_at, rollout_id, attempt
