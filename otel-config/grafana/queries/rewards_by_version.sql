-- One row is one version of one policy: the rewards of the rollouts that it sampled. A rollout during which weights changed
-- counts for its newest version.
SELECT
    concat(versions.policy, '@', toString(versions.version)) AS policy_version,
    avg(rollouts.reward) AS mean,
    quantile(0.1)(rollouts.reward) AS p10,
    quantile(0.9)(rollouts.reward) AS p90
FROM
(
    SELECT rollout_id, attempt, policy, max(assumeNotNull(policy_version)) AS version
    FROM otel.llm_calls
    WHERE $__timeFilter(started_at) AND policy_version IS NOT NULL AND policy != ''
    GROUP BY rollout_id, attempt, policy
) AS versions
INNER JOIN otel.rollout_outcomes AS rollouts
    ON rollouts.rollout_id = versions.rollout_id AND rollouts.attempt = versions.attempt
WHERE rollouts.reward IS NOT NULL AND $__conditionalAll(rollouts.task_id IN (${task:singlequote}), $task)
GROUP BY versions.policy, versions.version
ORDER BY versions.policy, versions.version
