-- One row is one task that was run in the time range.
SELECT DISTINCT TaskId AS task_id
FROM otel.otel_traces
WHERE TaskId != '' AND $__timeFilter(Timestamp)
ORDER BY task_id
LIMIT 1000
