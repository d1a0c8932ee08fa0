-- One row is one tool's span in a trace of the given rollouts, and the arguments that it was run with, by whichever
-- instrumentation. Those that have none are left out.
WITH
    mapFilter((key, value) -> value != '' AND key IN (
        'gen_ai.tool.call.arguments', 'input.value', 'traceloop.entity.input', 'mlflow.spanInputs',
        'langfuse.observation.input', 'tool_arguments', 'gcp.vertex.agent.tool_call_args', 'ai.toolCall.args'),
        SpanAttributes) AS told,
    arrayFirst(value -> value != '', [
        told['gen_ai.tool.call.arguments'], told['tool_arguments'], told['gcp.vertex.agent.tool_call_args'],
        told['ai.toolCall.args'], told['input.value'], told['traceloop.entity.input'], told['mlflow.spanInputs'],
        told['langfuse.observation.input']]) AS arguments
SELECT TraceId AS trace_id, SpanId AS span_id, arguments
FROM otel_traces
WHERE IsTool AND notEmpty(told)
    AND TraceId IN (SELECT TraceId FROM otel_traces WHERE RolloutId IN {rollout_ids:Array(String)})
