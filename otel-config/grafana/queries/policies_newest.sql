-- One row is one policy: its newest version, and how long ago that was published.
SELECT
    name AS policy,
    max(policies.version) AS version,
    dateDiff('second', argMax(created_at, policies.version), now64(6)) AS seconds_since,
    count() AS versions
FROM otel.policies AS policies FINAL
WHERE $__conditionalAll(name IN (${policy:singlequote}), $policy)
GROUP BY name
ORDER BY name
