-- What became of every attempt that may be learned from (held-out ones are left out). Of its rewards those of the names
-- `counted` count, or all where `every`. `state` is one of: `trained`; `lost` (nothing is heard of it any more, and no
-- penalty is its reward); `running`; `unrewarded`; `uncalled` (no call of the policy); `settling` (quiet for too short a
-- time, so that a span may still be on its way); `ready`; `alongside` (it counts beside others of its task: it died before
-- its first call, or it ended in one of the `penalized` ways and was given no reward but the penalty).
-- An attempt without a root span was not started by the launcher: rewarded and quiet, it is over.
WITH
    consumed AS (
        SELECT rollout_id, attempt FROM train_samples
        WHERE step_id IN (SELECT step_id FROM train_steps WHERE policy = {policy:String})
    ),
    judged AS (
        SELECT
            * EXCEPT reward,
            if({every:UInt8} OR (rollout_id, attempt) IN (
                SELECT rollout_id, attempt FROM rewards WHERE NOT {every:UInt8} AND has({counted:Array(String)}, name)
            ), reward, NULL) AS reward
        FROM rollout_outcomes
    ),
    candidates AS (
        SELECT
            rollout_id, attempt, task_id, trace_id, root_span_id, status, error_type, split, reward, started_at,
            has(policies, {policy:String}) AS called,
            {again:UInt8} = 0 AND (rollout_id, attempt) IN (consumed) AS trained,
            reward IS NULL AND task_id != '' AND has({penalized:Array(String)}, status) AS penalized,
            status IN ('succeeded', 'failed', 'timeout') OR penalized AS finished,
            finished AND n_calls = 0 AND task_id != '' AS died,
            toUnixTimestamp64Nano(last_seen_at) < {quiet_before_ns:Int64} AS quiet
        FROM judged
        WHERE split != 'eval' AND toUnixTimestamp64Nano(started_at) >= {since_ns:Int64}
    ),
    attempts AS (
        SELECT
            rollout_id, attempt, task_id, trace_id, root_span_id, status, error_type, split, reward, started_at,
            countIf(called AND reward IS NOT NULL AND NOT trained) OVER (PARTITION BY task_id) AS n_called_of_task,
            multiIf(
                trained, 'trained',
                status = 'lost' AND NOT penalized, if(called, 'lost', 'uncalled'),
                NOT finished AND (status != 'running' OR reward IS NULL), 'running',
                reward IS NULL AND NOT (penalized AND n_called_of_task > 0), 'unrewarded',
                NOT called AND (NOT died OR n_called_of_task = 0), 'uncalled',
                NOT quiet, 'settling',
                called AND reward IS NOT NULL, 'ready',
                'alongside'
            ) AS state
        FROM candidates
    )
