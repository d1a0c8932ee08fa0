-- One row per attempt of a rollout, of the tasks or rollouts asked for; an empty list asks for all. Where a policy is asked
-- for, only attempts with a call of it, and those without a call of any.
SELECT rollout_id, attempt, task_id, trace_id, root_span_id, status, error_type, split, reward
FROM rollout_outcomes
WHERE toUnixTimestamp64Nano(started_at) >= {since_ns:Int64}
    AND (empty({rollout_ids:Array(String)}) OR has({rollout_ids:Array(String)}, rollout_id))
    AND (empty({task_ids:Array(String)}) OR has({task_ids:Array(String)}, task_id))
    AND ({policy:String} = '' OR empty(policies) OR has(policies, {policy:String}))
ORDER BY rollout_id, attempt
