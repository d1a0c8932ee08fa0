-- One row is one task that was run.
SELECT DISTINCT task_id FROM otel.rollouts WHERE task_id != '' ORDER BY task_id LIMIT 1000
