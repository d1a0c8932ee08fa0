-- One row is one published version, newest first.
SELECT
    policies.created_at AS created_at,
    policies.name AS policy,
    policies.version AS version,
    policies.parent_version AS parent_version,
    steps.algorithm AS algorithm,
    policies.step_id AS step_id,
    substring(policies.sha256, 1, 12) AS sha256,
    policies.path AS path
FROM (SELECT * FROM otel.policies FINAL) AS policies
LEFT ANY JOIN (SELECT step_id, algorithm FROM otel.train_steps FINAL) AS steps ON steps.step_id = policies.step_id
WHERE $__timeFilter(policies.created_at) AND $__conditionalAll(policies.name IN (${policy:singlequote}), $policy)
ORDER BY created_at DESC
LIMIT 200
