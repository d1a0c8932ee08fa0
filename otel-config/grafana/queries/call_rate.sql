-- One row is one interval and model: calls a second.
SELECT $__timeInterval(started_at) AS time, model, count() / $__interval_s AS calls
FROM otel.llm_calls
WHERE $__timeFilter(started_at) AND $__conditionalAll(policy IN (${policy:singlequote}), $policy)
    AND $__conditionalAll(agent IN (${agent:singlequote}), $agent)
GROUP BY time, model
ORDER BY time, model
