-- One row: the step of that id or, for `last`, the newest one.
SELECT step_id, job, policy, from_version, to_version, algorithm, config, metrics
FROM train_steps FINAL
WHERE {step_id:String} = 'last' OR step_id = {step_id:String}
ORDER BY started_at DESC, step_id DESC
LIMIT 1
