-- One row: the model calls of the last day. A call whose trace holds nothing else came without a traceparent.
SELECT
    count() AS calls,
    countIf(trainable) AS exact,
    countIf(trace_id IN (SELECT TraceId FROM otel_traces WHERE ServiceName != 'tracegrad.sidecar')) AS with_parent
FROM llm_calls
WHERE started_at > now() - INTERVAL 1 DAY
