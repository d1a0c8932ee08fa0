-- One row is one optimiser step and verdict: how many sampled choices it used, and how many it dropped for which reason.
SELECT toDateTime(steps.ended_at) AS time, if(samples.used, 'used', samples.drop_reason) AS verdict, count() AS samples
FROM (SELECT step_id, used, drop_reason FROM otel.train_samples FINAL) AS samples
INNER JOIN
(
    SELECT step_id, ended_at
    FROM otel.train_steps FINAL
    WHERE $__timeFilter(ended_at) AND $__conditionalAll(policy IN (${policy:singlequote}), $policy)
) AS steps ON steps.step_id = samples.step_id
GROUP BY time, verdict
ORDER BY time, verdict
