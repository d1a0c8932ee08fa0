-- One row: rollouts that never ended, and finished ones that have no reward.
SELECT
    countIf(status = 'running' AND started_at < now() - INTERVAL 1 HOUR) AS stuck,
    countIf(status != 'running' AND reward IS NULL AND split != 'eval') AS unrewarded
FROM rollouts
