-- How much reward did each policy version earn?
SELECT c.policy_version AS version, uniqExact(r.rollout_id) AS rollouts, round(avg(r.reward), 3) AS mean_reward
FROM rollouts AS r
INNER JOIN (
    SELECT DISTINCT rollout_id, policy_version FROM llm_calls WHERE policy_version IS NOT NULL
) AS c ON c.rollout_id = r.rollout_id
WHERE r.split = 'train'
GROUP BY version
ORDER BY version
