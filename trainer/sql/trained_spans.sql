-- One row per span of the given rollouts that a recorded step of the policy was trained on.
SELECT DISTINCT span_id
FROM train_samples FINAL
WHERE used AND rollout_id IN {rollout_ids:Array(String)}
    AND step_id IN (SELECT step_id FROM train_steps WHERE policy = {policy:String})
