-- `rollout_tree`: what training asks of an attempt's spans.

-- One row is one span of a trace in which an attempt of a rollout has spans. `agent`: whose work it is, on that agent's own
-- spans only. Spans that were delivered twice are one row. A filter on rollout_id reads those traces alone.
CREATE OR REPLACE VIEW otel.rollout_tree AS
SELECT
    rollouts.rollout_id AS rollout_id, rollouts.attempt AS attempt, traces.trace_id AS trace_id, traces.span_id AS span_id,
    traces.told.1 AS parent_span_id, traces.told.2 AS name, traces.told.3 AS service, traces.told.4 AS agent,
    traces.told.5 AS is_tool, traces.told.6 AS tool_name, traces.told.7 AS tool_call_id, traces.told.8 AS is_call,
    traces.told.9 AS started_at, traces.told.10 AS ended_at, traces.told.11 AS status_code,
    traces.told.12 AS error_type, traces.told.13 AS http_status, traces.told.14 AS error_message
FROM
(
    SELECT
        TraceId AS trace_id,
        SpanId AS span_id,
        -- Of several that differ, the one that ended last.
        argMax((
            ParentSpanId, SpanName, ServiceName, if(IsAgent, AgentName, ''), IsTool, ToolName, ToolCallId, IsLlmCall,
            Timestamp, EndedAt, StatusCode, ErrorType, HttpStatus, if(StatusCode = 'Error', StatusMessage, '')),
            EndedAt) AS told
    FROM otel.otel_traces
    GROUP BY TraceId, SpanId
) AS traces
INNER JOIN (SELECT DISTINCT rollout_id, attempt, trace_id FROM otel.rollout_spans) AS rollouts
    ON rollouts.trace_id = traces.trace_id;
