-- One row per sampled choice of the given rollouts, of every agent and policy. Messages are most of the store, and are
-- not read here: see input_hashes.sql.
SELECT
    rollout_id, attempt, task_id, agent, trace_id, span_id, policy, policy_version,
    toUnixTimestamp64Nano(started_at) AS started_ns, toUnixTimestamp64Nano(ended_at) AS ended_ns,
    prompt_token_ids, response_token_ids, logprobs, trainable, untrainable_reason, error_type, finish_reason,
    sampling, response_id, retry_count, tool_call_ids, answer_faults
FROM llm_calls
WHERE rollout_id IN {rollout_ids:Array(String)}
