-- One row per span of the traces in which an attempt of the given rollouts has spans.
SELECT
    rollout_id, attempt, trace_id, span_id, parent_span_id, name, agent, is_tool = 1 AS is_tool, tool_name, tool_call_id,
    toUnixTimestamp64Nano(started_at) AS started_ns, toUnixTimestamp64Nano(ended_at) AS ended_ns,
    status_code, error_type, http_status, error_message, is_call = 1 AS is_call
FROM rollout_tree
WHERE rollout_id IN {rollout_ids:Array(String)}
