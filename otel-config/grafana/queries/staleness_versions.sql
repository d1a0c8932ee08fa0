-- One row is one version that was sampled from in the time range, newest first. `behind`: versions published since.
SELECT
    calls.policy AS policy,
    calls.version AS version,
    calls.n_calls AS n_calls,
    calls.last_call_at AS last_call_at,
    policies.n_newer AS behind
FROM
(
    SELECT policy, assumeNotNull(policy_version) AS version, count() AS n_calls, max(started_at) AS last_call_at
    FROM otel.llm_calls
    WHERE $__timeFilter(started_at) AND policy_version IS NOT NULL AND $__conditionalAll(policy IN (${policy:singlequote}), $policy)
    GROUP BY policy, version
) AS calls
LEFT JOIN
(
    SELECT sampled.policy AS policy, sampled.version AS version, countIf(published.version > sampled.version) AS n_newer
    FROM (SELECT DISTINCT policy, assumeNotNull(policy_version) AS version FROM otel.llm_calls WHERE $__timeFilter(started_at) AND policy_version IS NOT NULL) AS sampled
    INNER JOIN (SELECT name, version FROM otel.policies FINAL) AS published ON published.name = sampled.policy
    GROUP BY policy, version
) AS policies ON policies.policy = calls.policy AND policies.version = calls.version
ORDER BY policy, version DESC
LIMIT 100
