-- One row per evaluation that counts on a span of the given rollouts: the newest of its name.
SELECT rollout_id, attempt, span_id, name, score
FROM rewards
WHERE rollout_id IN {rollout_ids:Array(String)}
ORDER BY rollout_id, attempt, span_id, name
