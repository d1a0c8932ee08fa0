-- One row is one sampled choice of the given rollouts, and whose it is.
SELECT rollout_id, attempt, span_id, agent
FROM call_contexts
WHERE rollout_id IN {rollout_ids:Array(String)} AND agent != ''
