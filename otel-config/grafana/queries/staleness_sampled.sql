-- One row is one interval and policy: how many versions behind the newest published one its calls were when they were made.
-- Weights that nobody published (version 0, say) are behind all that were.
SELECT
    $__timeInterval(calls.started_at) AS time,
    calls.policy AS policy,
    avg(greatest(newest.place - used.place, 0)) AS mean,
    max(greatest(newest.place - used.place, 0)) AS max
FROM
(
    SELECT started_at, policy, assumeNotNull(policy_version) AS version
    FROM otel.llm_calls
    WHERE $__timeFilter(started_at) AND policy_version IS NOT NULL AND $__conditionalAll(policy IN (${policy:singlequote}), $policy)
) AS calls
ASOF LEFT JOIN
(
    SELECT
        name,
        toDateTime64(created_at, 9) AS published_at,
        toInt64(max(place) OVER (PARTITION BY name ORDER BY created_at)) AS place
    FROM
    (
        SELECT name, created_at, row_number() OVER (PARTITION BY name ORDER BY version) AS place
        FROM otel.policies FINAL
    )
) AS newest ON newest.name = calls.policy AND newest.published_at <= calls.started_at
LEFT ANY JOIN
(
    SELECT name, version, toInt64(row_number() OVER (PARTITION BY name ORDER BY version)) AS place
    FROM otel.policies FINAL
) AS used ON used.name = calls.policy AND used.version = calls.version
GROUP BY time, policy
ORDER BY time, policy
