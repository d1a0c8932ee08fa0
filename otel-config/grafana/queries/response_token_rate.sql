-- One row is one interval, policy (or model, where no policy is) and agent: response tokens a second.
SELECT
    $__timeInterval(started_at) AS time,
    concat(if(policy = '', model, policy), if(agent = '', '', ' / '), agent) AS series,
    sum(length(response_token_ids)) / $__interval_s AS tokens
FROM otel.llm_calls
WHERE $__timeFilter(started_at) AND $__conditionalAll(policy IN (${policy:singlequote}), $policy)
    AND $__conditionalAll(agent IN (${agent:singlequote}), $agent)
GROUP BY time, series
ORDER BY time, series
