-- One row per span around the calls of rollout_calls.sql: the launcher's, the agent's, and those of its nine tool calls.
WITH
    place = 0 AS is_root, place = 1 AS is_agent, place - 2 AS turn,
    {begun_ns:Int64} + (rollout DIV 64) * 30000000000 + sipHash64(rollout) % 1000000000 AS begun_ns,
    lower(hex(sipHash128(rollout, 'rollout'))) AS rollout_name,
    lower(hex(sipHash64(rollout, 'root'))) AS root_id,
    lower(hex(sipHash64(rollout, 'agent'))) AS agent_id,
    map(
        'tracegrad.rollout.id', rollout_name, 'tracegrad.rollout.attempt', '0',
        'tracegrad.task.id', 'task-' || toString(rollout DIV 8)) AS identity
SELECT
    fromUnixTimestamp64Nano(begun_ns - 1000000 * (2 - least(place, 2)) + if(turn < 0, 0, turn * 2800000000 + 1600000000)) AS Timestamp,
    lower(hex(sipHash128(rollout, 'trace'))) AS TraceId,
    multiIf(is_root, root_id, is_agent, agent_id, lower(hex(sipHash64(rollout, turn, 'tool span')))) AS SpanId,
    multiIf(is_root, '', is_agent, root_id, agent_id) AS ParentSpanId,
    multiIf(is_root, 'rollout', is_agent, 'invoke_agent analyst', 'execute_tool read_table') AS SpanName,
    'Internal' AS SpanKind,
    if(is_root, 'tracegrad.rollout', 'analyst') AS ServiceName,
    map('service.name', if(is_root, 'tracegrad.rollout', 'analyst')) AS ResourceAttributes,
    multiIf(
        is_root, mapConcat(identity, map(
            'tracegrad.rollout.status', 'succeeded', 'tracegrad.rollout.split', 'train', 'process.exit.code', '0')),
        is_agent, mapConcat(identity, map('gen_ai.operation.name', 'invoke_agent', 'gen_ai.agent.name', 'analyst')),
        mapConcat(identity, map(
            'gen_ai.operation.name', 'execute_tool', 'gen_ai.tool.name', 'read_table',
            'gen_ai.tool.call.id', lower(hex(sipHash64(rollout, toUInt8(turn), 'tool'))),
            'gen_ai.tool.call.result', toString(range(toUInt64(100)))))) AS SpanAttributes,
    multiIf(is_root, 28000000000, is_agent, 27900000000, 1000000000) AS Duration,
    'Unset' AS StatusCode
FROM (SELECT number DIV 11 AS rollout, number % 11 AS place FROM numbers({first:UInt64} * 11, {rollouts:UInt64} * 11))
