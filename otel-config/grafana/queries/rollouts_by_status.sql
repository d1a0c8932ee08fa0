-- One row: how many attempts began in the time range, by how they stand now.
SELECT
    countIf(status = 'running') AS running,
    countIf(status = 'succeeded') AS succeeded,
    countIf(status = 'failed') AS failed,
    countIf(status = 'timeout') AS timeout,
    countIf(status = 'lost') AS lost
FROM otel.rollout_outcomes
WHERE $__timeFilter(started_at) AND $__conditionalAll(task_id IN (${task:singlequote}), $task)
