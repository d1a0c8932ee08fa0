-- One row: of the calls of policies, how many may be trained on, and of all calls, how many failed.
SELECT
    countIf(policy != '') AS calls_of_policies,
    if(calls_of_policies = 0, NULL, countIf(policy != '' AND trainable) / calls_of_policies) AS trainable,
    if(count() = 0, NULL, countIf(error_type != '') / count()) AS failed
FROM otel.llm_calls
WHERE $__timeFilter(started_at) AND $__conditionalAll(policy IN (${policy:singlequote}), $policy)
    AND $__conditionalAll(agent IN (${agent:singlequote}), $agent)
