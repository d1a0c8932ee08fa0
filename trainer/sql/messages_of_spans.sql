-- One row per given call of the given rollouts: what it was asked and answered, as JSON text.
SELECT trace_id, span_id, input_messages, output_messages
FROM llm_calls
WHERE rollout_id IN {rollout_ids:Array(String)} AND span_id IN {span_ids:Array(String)}
