-- One row: the model calls of the last day.
SELECT count() AS calls, countIf(trainable) AS exact, countIf(parent_span_id != '') AS with_parent
FROM llm_calls
WHERE started_at > now() - INTERVAL 1 DAY
