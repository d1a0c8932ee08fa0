-- What does one rollout look like, as spans of the launcher, the agent and the sidecar?
WITH (SELECT trace_id FROM rollouts WHERE split = 'train' AND n_calls > 1 ORDER BY started_at DESC LIMIT 1) AS newest
SELECT ServiceName AS service, SpanName AS span, SpanId AS id, ParentSpanId AS parent, round(Duration / 1e6, 1) AS ms
FROM otel_traces
WHERE TraceId = newest
ORDER BY Timestamp
