-- Continues attempts.sql. One row per attempt that a step may learn from, oldest first; one that died before its first
-- call only beside others of its task.
SELECT rollout_id, attempt, task_id, trace_id, root_span_id, status, error_type, split, reward
FROM attempts
WHERE state IN ('ready', 'alongside')
QUALIFY state = 'ready' OR countIf(state = 'ready') OVER (PARTITION BY task_id) > 0
ORDER BY started_at, rollout_id, attempt
