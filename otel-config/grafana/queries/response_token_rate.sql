-- One row is one interval, policy (or model, where no policy is) and agent: response tokens a second. Prompts are not
-- put together for that.
SELECT
    $__timeInterval(calls.started_at) AS time,
    concat(if(calls.policy = '', calls.model, calls.policy), if(contexts.agent = '', '', ' / '), contexts.agent) AS series,
    sum(length(calls.response_token_ids)) / $__interval_s AS tokens
FROM
(
    SELECT trace_id, span_id, started_at, policy, model, response_token_ids
    FROM otel.recorded_calls
    WHERE $__timeFilter(started_at) AND $__conditionalAll(policy IN (${policy:singlequote}), $policy)
) AS calls
LEFT ANY JOIN
(
    SELECT trace_id, span_id, agent FROM otel.call_contexts WHERE $__timeFilter(started_at)
) AS contexts ON contexts.trace_id = calls.trace_id AND contexts.span_id = calls.span_id
WHERE $__conditionalAll(contexts.agent IN (${agent:singlequote}), $agent)
GROUP BY time, series
ORDER BY time, series
