-- One row per sampled choice of the given rollouts that its agent received whole, of every model: what was asked and answered.
SELECT
    rollout_id, attempt, task_id, agent, trace_id, span_id, policy, policy_version, model,
    toUnixTimestamp64Nano(started_at) AS started_ns, input_messages, output_messages
FROM llm_calls
WHERE rollout_id IN {rollout_ids:Array(String)}
    AND error_type = '' AND untrainable_reason NOT IN ('error', 'aborted', 'client_disconnected')
    AND (rollout_id, attempt, span_id) NOT IN
    (
        SELECT rollout_id, attempt, span_id FROM superseded_calls WHERE rollout_id IN {rollout_ids:Array(String)}
    )
ORDER BY rollout_id, attempt, started_ns, span_id
