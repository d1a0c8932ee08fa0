-- One row is one attempt, and what rules make of it. `state` is one of: `judged`; `nobodys_fault` (interrupted or never
-- started: without any reward it is never trained on); `unfinished` (running, or lost without a reward, which a reward of ours
-- would turn into one to be trained on). One without a root span was not started by the launcher: rewarded by somebody else
-- and quiet, it is over.
WITH
    rewarded AS (SELECT rollout_id, attempt FROM rewards WHERE source != {source:String}),
    status IN ('succeeded', 'failed', 'timeout') AS finished,
    (rollout_id, attempt) IN (rewarded) AND toUnixTimestamp64Nano(last_seen_at) < {quiet_before_ns:Int64} AS is_over
SELECT
    rollout_id,
    attempt,
    task_id,
    trace_id,
    ifNull(root_span_id, '') AS known_root_span_id,
    status,
    ifNull(error_type, '') AS known_error_type,
    toUnixTimestamp64Nano(started_at) AS started_ns,
    toUnixTimestamp64Nano(ifNull(ended_at, last_seen_at)) AS ended_ns,
    multiIf(
        finished AND error_type IN {nobodys_fault:Array(String)}, 'nobodys_fault',
        finished OR is_over, 'judged',
        'unfinished') AS state
FROM rollout_outcomes
WHERE ({rollout:String} = '' OR rollout_id = {rollout:String})
    AND toUnixTimestamp64Nano(started_at) >= {since_ns:Int64}
ORDER BY started_at, rollout_id, attempt
