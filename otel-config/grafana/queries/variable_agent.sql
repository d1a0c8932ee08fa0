-- One row is one agent that made calls.
SELECT DISTINCT agent FROM otel.llm_calls WHERE agent != '' AND $__timeFilter(started_at) ORDER BY agent LIMIT 1000
