-- One row per reward of a rollout of rollout_calls.sql, on its root span.
SELECT
    fromUnixTimestamp64Nano({begun_ns:Int64} + (number DIV 64) * 30000000000 + 40000000000) AS Timestamp,
    lower(hex(sipHash128(number, 'trace'))) AS TraceId,
    lower(hex(sipHash64(number, 'root'))) AS SpanId,
    'tracegrad.reward' AS ServiceName,
    'gen_ai.evaluation.result' AS EventName,
    map(
        'gen_ai.evaluation.name', 'exact', 'gen_ai.evaluation.score.value', toString(sipHash64(number, 'right') % 2),
        'tracegrad.rollout.id', lower(hex(sipHash128(number, 'rollout'))), 'tracegrad.rollout.attempt', '0') AS LogAttributes
FROM numbers({first:UInt64}, {rollouts:UInt64})
