-- One row per optimiser step of the demo, in order. No log-prob difference: the step had no row to compare.
SELECT
    to_version AS version,
    JSONExtractFloat(metrics, 'reward_mean') AS reward,
    if(JSONHas(metrics, 'logprob_max_diff'), JSONExtractFloat(metrics, 'logprob_max_diff'), NULL) AS logprob_max_diff
FROM train_steps FINAL
WHERE job = 'demo'
ORDER BY started_at
