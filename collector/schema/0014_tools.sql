-- Which spans are tools', and what calls asked of tools.

-- Known are GenAI conventions (LangChain, OpenAI Agents, AutoGen, Microsoft Agent Framework, AgentScope, Google ADK and others),
-- OpenInference (CrewAI, smolagents and others), Traceloop, MLflow, Langfuse, Vercel's AI SDK, Logfire, and what pydantic-ai and
-- Google ADK said before they followed the conventions.
-- The sidecar's spans are most of the store and none of them is a tool's: what is said of tools is looked for on others only,
-- and what calls asked for only where there is such a word.
ALTER TABLE otel.otel_traces
    ADD COLUMN IF NOT EXISTS IsTool Bool MATERIALIZED NOT IsLlmCall AND (
        SpanAttributes['gen_ai.operation.name'] = 'execute_tool'
        OR SpanAttributes['openinference.span.kind'] = 'TOOL'
        OR SpanAttributes['traceloop.span.kind'] = 'tool'
        OR SpanAttributes['mlflow.spanType'] IN ('TOOL', '"TOOL"')
        OR SpanAttributes['langfuse.observation.type'] = 'tool'
        OR SpanAttributes['operation.name'] = 'ai.toolCall'
        OR startsWith(SpanName, 'execute_tool ')
        OR SpanName IN ('running tool', 'ai.toolCall', 'Function: {name}')) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS ToolName LowCardinality(String) MATERIALIZED if(NOT IsTool, '', multiIf(
        SpanAttributes['gen_ai.tool.name'] != '', SpanAttributes['gen_ai.tool.name'],
        SpanAttributes['tool.name'] != '', SpanAttributes['tool.name'],
        SpanAttributes['traceloop.entity.name'] != '', SpanAttributes['traceloop.entity.name'],
        SpanAttributes['ai.toolCall.name'] != '', SpanAttributes['ai.toolCall.name'],
        SpanName = 'Function: {name}' AND SpanAttributes['name'] != '', SpanAttributes['name'],
        replaceRegexpOne(SpanName, '^execute_tool ', ''))) CODEC(ZSTD(1)),
    -- Of the request that it answers. Who does not say it may show the answer, which has it.
    ADD COLUMN IF NOT EXISTS ToolCallId String MATERIALIZED if(NOT IsTool, '', multiIf(
        SpanAttributes['gen_ai.tool.call.id'] != '', SpanAttributes['gen_ai.tool.call.id'],
        SpanAttributes['tool_call.id'] != '', SpanAttributes['tool_call.id'],
        SpanAttributes['tool.id'] != '', SpanAttributes['tool.id'],
        SpanAttributes['message.tool_call_id'] != '', SpanAttributes['message.tool_call_id'],
        SpanAttributes['ai.toolCall.id'] != '', SpanAttributes['ai.toolCall.id'],
        arrayFirst(id -> id != '', arrayMap(text -> extract(text, '"tool_call_id": ?"([^"\\\\]+)"'), [
            SpanAttributes['output.value'], SpanAttributes['traceloop.entity.output'],
            SpanAttributes['mlflow.spanOutputs'], SpanAttributes['langfuse.observation.output']])))) CODEC(ZSTD(1)),
    -- Whether it is the work of the agent that it names: a step that says whose it is has an AgentName too.
    ADD COLUMN IF NOT EXISTS IsAgent Bool MATERIALIZED AgentName != '' AND NOT IsTool AND NOT IsLlmCall
        AND SpanAttributes['gen_ai.operation.name'] NOT IN ('chat', 'text_completion', 'generate_content', 'embeddings')
        AND SpanAttributes['openinference.span.kind'] NOT IN ('LLM', 'EMBEDDING') CODEC(ZSTD(1)),
    -- Of the response; 0 where none is told.
    ADD COLUMN IF NOT EXISTS HttpStatus UInt16 MATERIALIZED toUInt16OrZero(if(
        SpanAttributes['http.response.status_code'] != '',
        SpanAttributes['http.response.status_code'],
        SpanAttributes['http.status_code'])) CODEC(ZSTD(1)),
    -- Ids of the tool calls in the response of a sampled choice.
    ADD COLUMN IF NOT EXISTS ToolCallIds Array(String) MATERIALIZED if(
        NOT IsLlmCall OR position(SpanAttributes['gen_ai.output.messages'], '"tool_call"') = 0, [],
        arrayMap(part -> part.2, arrayFilter(part -> part.1 = 'tool_call' AND part.2 != '', arrayFlatten(JSONExtract(
            SpanAttributes['gen_ai.output.messages'],
            'Array(Tuple(parts Array(Tuple(type String, id String))))').parts)))) CODEC(ZSTD(1)),
    -- What is wrong with it: `malformed_tool_call`, one with arguments that are no JSON object, or that the engine could not read
    -- and left as text; `refusal`.
    ADD COLUMN IF NOT EXISTS AnswerFaults Array(LowCardinality(String)) MATERIALIZED if(NOT IsLlmCall, [], arrayConcat(
        if(position(SpanAttributes['gen_ai.output.messages'], 'tool_call') = 0, [], if(
            arrayExists(
                part -> part.1 = 'tool_call' AND JSONType(if(
                    JSONType(part.2) = 'String', JSONExtractString(part.2), part.2)) != 'Object'
                    OR part.1 = 'text' AND match(part.3, '</?tool_call>'),
                arrayFlatten(JSONExtract(
                    SpanAttributes['gen_ai.output.messages'],
                    'Array(Tuple(parts Array(Tuple(type String, arguments String, content String))))').parts)),
            ['malformed_tool_call'], [])),
        if(
            FinishReason = 'content_filter' OR position(SpanAttributes['gen_ai.output.messages'], '"refusal"') > 0 AND arrayExists(
                part -> part.1 = 'refusal',
                arrayFlatten(JSONExtract(
                    SpanAttributes['gen_ai.output.messages'], 'Array(Tuple(parts Array(Tuple(type String))))').parts)),
            ['refusal'], []))) CODEC(ZSTD(1));

-- For the rows that are there already, in the background.
ALTER TABLE otel.otel_traces
    MATERIALIZE COLUMN IsTool, MATERIALIZE COLUMN ToolName, MATERIALIZE COLUMN ToolCallId, MATERIALIZE COLUMN IsAgent,
    MATERIALIZE COLUMN HttpStatus, MATERIALIZE COLUMN ToolCallIds, MATERIALIZE COLUMN AnswerFaults;
