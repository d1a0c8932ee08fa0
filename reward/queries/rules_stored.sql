-- One row: how many rewards by rules the store has that are from a time (ns since 1970) on.
SELECT uniqExact((RolloutId, RolloutAttempt, SpanId, EvaluationName, Timestamp))
FROM otel_logs
WHERE ServiceName = {source:String} AND EventName = 'gen_ai.evaluation.result'
    AND Timestamp >= fromUnixTimestamp64Nano({since_ns:Int64})
