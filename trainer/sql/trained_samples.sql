-- One row per transition that the step consumed.
SELECT span_id, trace_id, rollout_id, attempt, agent, reward, advantage, n_tokens, used = 1 AS used, drop_reason
FROM train_samples FINAL
WHERE step_id = {step_id:String}
ORDER BY rollout_id, attempt, span_id
