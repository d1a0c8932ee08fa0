-- One row is one interval and finish reason: the sampled choices that ended so.
SELECT $__timeInterval(started_at) AS time, if(finish_reason = '', '(none)', finish_reason) AS reason, count() AS choices
FROM otel.llm_calls
WHERE $__timeFilter(started_at) AND $__conditionalAll(policy IN (${policy:singlequote}), $policy)
    AND $__conditionalAll(agent IN (${agent:singlequote}), $agent)
GROUP BY time, reason
ORDER BY time, reason
