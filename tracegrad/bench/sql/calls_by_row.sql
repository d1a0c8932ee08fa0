-- One row per sampled choice of the given rollouts, with all that a job asks of it and a hash of its whole messages.
SELECT
    rollout_id, attempt, task_id, agent, trace_id, span_id, policy, policy_version,
    toUnixTimestamp64Nano(started_at) AS started_ns, toUnixTimestamp64Nano(ended_at) AS ended_ns,
    prompt_token_ids, response_token_ids, logprobs, trainable, untrainable_reason, error_type, finish_reason,
    sipHash64(input_messages) AS input_hash, sampling, response_id, retry_count, tool_call_ids, answer_faults
FROM llm_calls
WHERE rollout_id IN {rollout_ids:Array(String)}
