-- One row: what became of every attempt that may be learned from (held-out ones are left out). The counts after
-- `total` exclude each other and add up to it.
WITH
    consumed AS (
        SELECT rollout_id, attempt FROM train_samples
        WHERE step_id IN (SELECT step_id FROM train_steps WHERE policy = {policy:String})
    ),
    called AS (SELECT rollout_id, attempt FROM llm_calls WHERE policy = {policy:String}),
    attempts AS (
        SELECT
            multiIf(
                {again:UInt8} = 0 AND (rollout_id, attempt) IN (consumed), 'trained',
                status NOT IN ('succeeded', 'failed', 'timeout'), 'running',
                reward IS NULL, 'unrewarded',
                (rollout_id, attempt) NOT IN (called), 'uncalled',
                'ready'
            ) AS state
        FROM rollouts
        WHERE split != 'eval' AND toUnixTimestamp64Nano(started_at) >= {since_ns:Int64}
    )
SELECT
    count() AS total,
    countIf(state = 'ready') AS ready,
    countIf(state = 'running') AS running,
    countIf(state = 'unrewarded') AS unrewarded,
    countIf(state = 'uncalled') AS uncalled,
    countIf(state = 'trained') AS trained
FROM attempts
