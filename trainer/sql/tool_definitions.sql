-- One row per span of the given rollouts that tells what tools a call was offered, or where that is told.
SELECT DISTINCT
    RolloutId AS rollout_id, RolloutAttempt AS attempt, SpanId AS span_id, ParentSpanId AS parent_span_id,
    SpanAttributes['gen_ai.tool.definitions'] AS definitions, SpanAttributes['tracegrad.extends.span_id'] AS extends_span_id,
    SpanAttributes['tracegrad.extends.tools'] = 'true' AS as_extended
FROM otel_traces
WHERE RolloutId IN {rollout_ids:Array(String)} AND (definitions != '' OR IsLlmCall OR as_extended)
