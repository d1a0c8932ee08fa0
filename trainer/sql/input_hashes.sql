-- One row per sampled choice of the given rollouts: a hash of what was asked.
SELECT rollout_id, attempt, trace_id, span_id, sipHash64(input_messages) AS input_hash
FROM llm_calls
WHERE rollout_id IN {rollout_ids:Array(String)}
