-- One row per optimiser step of the demo, oldest first.
SELECT
    to_version AS version,
    JSONExtractFloat(metrics, 'reward_mean') AS reward,
    JSONExtractFloat(metrics, 'logprob_max_diff') AS logprob_max_diff
FROM train_steps FINAL
WHERE job = 'demo'
ORDER BY version
