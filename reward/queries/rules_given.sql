-- One row is the newest reward that rules have given to one span of the given rollouts under one name. `span_id`: empty for
-- the rollout as a whole.
SELECT
    RolloutId AS rollout_id,
    RolloutAttempt AS attempt,
    if(SpanId = repeat('0', 16), '', SpanId) AS judged_span_id,
    EvaluationName AS name,
    argMax(TraceId, Timestamp) AS trace_id,
    argMax(assumeNotNull(EvaluationScore), Timestamp) AS score,
    argMax(EvaluationLabel, Timestamp) AS label,
    argMax(LogAttributes['tracegrad.rule.version'], Timestamp) AS version,
    toUnixTimestamp64Nano(max(Timestamp)) AS at_ns
FROM otel_logs
WHERE ServiceName = {source:String} AND EventName = 'gen_ai.evaluation.result' AND EvaluationScore IS NOT NULL
    AND RolloutId IN {rollout_ids:Array(String)}
GROUP BY rollout_id, attempt, judged_span_id, name
