-- One row is one interval and error of a call.
SELECT $__timeInterval(started_at) AS time, error_type AS error, count() AS calls
FROM otel.llm_calls
WHERE $__timeFilter(started_at) AND error_type != '' AND $__conditionalAll(policy IN (${policy:singlequote}), $policy)
    AND $__conditionalAll(agent IN (${agent:singlequote}), $agent)
GROUP BY time, error
ORDER BY time, error
