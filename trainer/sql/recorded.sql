-- One row per span and policy that a step has consumed: what the newest such step did with it.
SELECT
    samples.span_id AS span_id,
    steps.policy AS policy,
    argMax(samples.step_id, steps.started_at) AS step_id,
    toUnixTimestamp64Nano(max(steps.started_at)) AS step_started_ns,
    argMax(samples.used, steps.started_at) AS used,
    argMax(samples.drop_reason, steps.started_at) AS drop_reason
FROM train_samples AS samples FINAL
INNER JOIN train_steps AS steps FINAL ON steps.step_id = samples.step_id
WHERE samples.rollout_id IN {rollout_ids:Array(String)}
GROUP BY samples.span_id, steps.policy
