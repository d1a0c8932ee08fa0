-- Which calls taught the policy most, which version sampled them, and into which version were they trained?
SELECT
    s.rollout_id AS rollout,
    c.policy_version AS sampled_by,
    t.to_version AS trained_into,
    round(s.advantage, 2) AS advantage,
    c.output_messages AS said
FROM train_samples AS s FINAL
INNER JOIN llm_calls AS c ON c.span_id = s.span_id
INNER JOIN train_steps AS t FINAL ON t.step_id = s.step_id
WHERE s.used
ORDER BY abs(s.advantage) DESC, s.span_id
LIMIT 5
