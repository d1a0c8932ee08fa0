-- One row per model call of made-up rollouts, ten of each, as the sidecar records them: the first holds its whole prompt,
-- each later one what is new in it, unless `whole` asks for whole prompts (of an agent that rewrites its history, say).
-- A prompt is the one before, the response to it, and what a tool answered: 755 tokens grow to 3,005, and with 120 of each
-- response a call has 2,000 on average. Eight rollouts are of one task and share their first prompt; 64 run at a time.
WITH
    755 AS n_first, 120 AS n_response, 130 AS n_tool, 151936 AS n_vocabulary,
    (SELECT arrayStringConcat(groupArray(words[1 + toUInt16(1024 * pow(intHash32(number) / 4294967296, 2))]), ' ')
        FROM (SELECT (SELECT groupArray(substring(lower(hex(sipHash64(number))), 1, 2 + number % 8)) FROM numbers(1024)) AS words, number
            FROM numbers(16384))) AS pool,
    ((seed, at) -> intHash32(bitXor(intHash32(toUInt32(seed)), toUInt32(at * 2654435761))) / 4294967296) AS chance,
    -- Words that come often, from another place each time.
    ((seed, length) -> substring(pool, 1 + intHash32(seed) % 65536, length)) AS text,
    (place -> '{"type":"tool_call","id":"' || lower(hex(sipHash64(rollout, toUInt8(place), 'tool'))) || '","name":"read_table","arguments":{"file":"'
        || substring(pool, 1 + place, 8) || '"}}') AS asked_for,
    (place -> '{"role":"assistant","parts":[{"type":"text","content":"' || text(rollout * 32 + place, 390) || '"},' || asked_for(place)
        || ']') AS said,
    (place -> '{"role":"tool","parts":[{"type":"tool_call_response","id":"' || lower(hex(sipHash64(rollout, toUInt8(place), 'tool')))
        || '","response":"' || text(rollout * 32 + 16 + place, 520) || '"}]}') AS answered,
    rollout DIV 8 AS task,
    lower(hex(sipHash128(rollout, 'rollout'))) AS rollout_name,
    (place -> lower(hex(sipHash64(rollout, toUInt8(place), 'call')))) AS call_id,
    n_first + turn * (n_response + n_tool) AS n_prompt,
    -- Frequent tokens have low ids.
    arrayMap(
        each -> toUInt32(n_vocabulary * each * each * each),
        arrayMap(at -> chance(if(at < n_first, task, 1000000000 + rollout), at), range(toUInt64(n_prompt + n_response)))) AS tokens,
    arraySlice(tokens, 1, n_prompt) AS prompt,
    {whole:UInt8} = 0 AND turn > 0 AS extends,
    if(extends, n_prompt - n_tool, 0) AS n_shared,
    map(
        'tracegrad.rollout.id', rollout_name,
        'tracegrad.rollout.attempt', '0',
        'tracegrad.task.id', 'task-' || toString(task),
        'gen_ai.operation.name', 'chat',
        'gen_ai.provider.name', 'vllm',
        'gen_ai.request.model', 'bench-model',
        'gen_ai.request.temperature', '1',
        'gen_ai.request.max_tokens', '512',
        'tracegrad.sampling', '{"temperature":1.0,"top_p":1.0,"top_k":-1,"min_p":0.0,"max_tokens":512}',
        'gen_ai.input.messages', '[' || if(
            extends,
            said(turn - 1) || '},' || answered(turn - 1),
            '{"role":"system","parts":[{"type":"text","content":"' || text(0, 1950) || '"}]},'
                || '{"role":"user","parts":[{"type":"text","content":"' || text(task, 1300) || '"}]}'
                || arrayStringConcat(arrayMap(place -> ',' || said(place) || '},' || answered(place), range(turn)))) || ']',
        'gen_ai.output.messages', '[' || said(turn) || ',"finish_reason":"tool_calls"}]',
        'gen_ai.response.id', 'chatcmpl-' || call_id(turn),
        'gen_ai.response.model', 'bench-model',
        'gen_ai.response.finish_reasons', '["tool_calls"]',
        'gen_ai.usage.input_tokens', toString(n_prompt),
        'gen_ai.usage.output_tokens', toString(n_response),
        'http.response.status_code', '200',
        'tracegrad.policy.name', {policy:String},
        'tracegrad.policy.version', '0',
        'tracegrad.choice.index', '0',
        -- Their numbers have columns of their own, and the collector keeps no texts of them.
        'tracegrad.prompt.token_ids', '',
        'tracegrad.response.token_ids', '',
        'tracegrad.response.logprobs', '',
        'tracegrad.trainable', 'true') AS told
SELECT
    fromUnixTimestamp64Nano({begun_ns:Int64} + (rollout DIV 64) * 30000000000 + sipHash64(rollout) % 1000000000 + turn * 2800000000)
        AS Timestamp,
    lower(hex(sipHash128(rollout, 'trace'))) AS TraceId,
    call_id(turn) AS SpanId,
    lower(hex(sipHash64(rollout, 'agent'))) AS ParentSpanId,
    'chat bench-model' AS SpanName,
    'Server' AS SpanKind,
    'tracegrad.sidecar' AS ServiceName,
    map('service.name', 'tracegrad.sidecar') AS ResourceAttributes,
    if(extends, mapConcat(told, map(
        'tracegrad.extends.span_id', call_id(turn - 1),
        'tracegrad.extends.root', call_id(0),
        'tracegrad.extends.depth', toString(turn),
        'tracegrad.extends.tokens', toString(n_shared),
        'tracegrad.extends.messages', toString(2 * turn),
        'tracegrad.prompt.length', toString(n_prompt),
        'tracegrad.prompt.crc32', toString(CRC32(toString(prompt))))), told) AS SpanAttributes,
    arraySlice(prompt, n_shared + 1) AS PromptTokenIds,
    arraySlice(tokens, n_prompt + 1) AS ResponseTokenIds,
    arrayMap(at -> toFloat32(0.4 * log(chance(rollout * 16 + turn, at + 0.5) + 1e-9)), range(n_response)) AS ResponseLogprobs,
    1500000000 AS Duration,
    'Unset' AS StatusCode
FROM (SELECT number DIV 10 AS rollout, number % 10 AS turn FROM numbers({first:UInt64} * 10, {rollouts:UInt64} * 10))
SETTINGS max_block_size = 256
