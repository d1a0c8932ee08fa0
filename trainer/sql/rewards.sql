-- One row per span of the given rollouts that was judged: the sum of its newest rewards.
SELECT rollout_id, attempt, span_id, sum(score) AS reward
FROM rewards
WHERE rollout_id IN {rollout_ids:Array(String)}
GROUP BY rollout_id, attempt, span_id
