-- One row is one interval and reason why calls of a policy may not be trained on. docs/sidecar.md says what each means.
SELECT $__timeInterval(started_at) AS time, untrainable_reason AS reason, count() AS choices
FROM otel.llm_calls
WHERE $__timeFilter(started_at) AND NOT trainable AND policy != ''
    AND $__conditionalAll(policy IN (${policy:singlequote}), $policy) AND $__conditionalAll(agent IN (${agent:singlequote}), $agent)
GROUP BY time, reason
ORDER BY time, reason
