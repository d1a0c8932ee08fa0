-- One row is one span of a sidecar: a sampled choice (`is_choice`), or the call that brought several. One that was delivered
-- twice is there twice. `output_messages` only where they hold a tool call, or the markup of one; `definitions`: which tool
-- definitions it has, 0 for none; `same_tools`: it has those of the call that it extends.
WITH SpanAttributes['gen_ai.output.messages'] AS said, SpanAttributes['gen_ai.tool.definitions'] AS offered
SELECT
    RolloutId AS rollout_id,
    RolloutAttempt AS attempt,
    SpanId AS span_id,
    ParentSpanId AS parent_span_id,
    IsLlmCall AS is_choice,
    PolicyName AS policy,
    Model AS model,
    FinishReason AS finish_reason,
    StatusMessage AS message,
    toUInt64OrNull(SpanAttributes['gen_ai.usage.input_tokens']) AS input_tokens,
    toUInt64OrNull(SpanAttributes['gen_ai.usage.output_tokens']) AS output_tokens,
    if(PromptLength > 0, toUInt64(PromptLength), length(PromptTokenIds)) AS n_prompt,
    length(ResponseTokenIds) AS n_response,
    if(position(said, '"tool_call"') > 0 OR position(said, 'tool_call>') > 0, said, '') AS output_messages,
    if(offered = '', 0, sipHash64(offered)) AS definitions,
    SpanAttributes['tracegrad.extends.tools'] = 'true' AS same_tools,
    ExtendsSpanId AS extends_span_id
FROM otel_traces
WHERE RolloutId IN {rollout_ids:Array(String)} AND RolloutStatus = ''
    AND (IsLlmCall OR (SpanKind = 'Server' AND SpanAttributes['gen_ai.request.model'] != ''))
