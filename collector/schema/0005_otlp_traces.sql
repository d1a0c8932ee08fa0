-- One row is one or more OTLP trace export requests, concatenated. Nothing is stored: the view below turns it into rows of otel_traces.
-- Names are those of ../otlp.proto. `value` tells which member of an AnyValue is set: string, bool, int, double, array,
-- kvlist, bytes. What an array holds is read one level deep; at anything deeper the view refuses the insert with
-- 'otlp value is nested', and the collector writes that value as text first (see ../nested.py).
CREATE TABLE IF NOT EXISTS otel.otlp_traces
(
    resource_spans Array(Tuple(
        resource Tuple(attributes Array(Tuple(key String, value Tuple(
            value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
            string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String,
            array_value Tuple(values Array(Tuple(
                value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
                string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String))))))),
        scope_spans Array(Tuple(
            scope Tuple(name String, version String),
            spans Array(Tuple(
                trace_id String, span_id String, trace_state String, parent_span_id String, name String, kind Int32,
                start_time_unix_nano UInt64, end_time_unix_nano UInt64, status Tuple(code Int32, message String),
                attributes Array(Tuple(key String, value Tuple(
                    value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
                    string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String,
                    array_value Tuple(values Array(Tuple(
                        value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
                        string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String)))))),
                events Array(Tuple(time_unix_nano UInt64, name String, attributes Array(Tuple(key String, value Tuple(
                    value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
                    string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String,
                    array_value Tuple(values Array(Tuple(
                        value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
                        string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String)))))))),
                links Array(Tuple(trace_id String, span_id String, trace_state String, attributes Array(Tuple(key String, value Tuple(
                    value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
                    string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String,
                    array_value Tuple(values Array(Tuple(
                        value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
                        string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String))))))))))))))
)
ENGINE = Null;

-- The three levels of the request become rows one after the other, as narrow arrays: analysing this view is what a small
-- insert costs, and it costs more with every expression on a wide tuple. Hence also one `attributes` for span, events
-- and links together.
CREATE MATERIALIZED VIEW IF NOT EXISTS otel.otlp_traces_mv TO otel.otel_traces AS
WITH
    (v -> multiIf(
        v.value = 's', v.string_value,
        v.value = 'i', toString(v.int_value),
        v.value = 'd', toString(v.double_value),
        v.value = 'b', toString(v.bool_value),
        v.value = 'y', base64Encode(v.bytes_value),
        v.value = 'a', concat('[', arrayStringConcat(arrayMap(item -> multiIf(
            item.value = 's', toJSONString(item.string_value),
            item.value = 'i', toString(item.int_value),
            item.value = 'd', toString(item.double_value),
            item.value = 'b', toString(item.bool_value),
            item.value = 'y', toJSONString(base64Encode(item.bytes_value)),
            throwIf(item.value IN ('a', 'k'), 'otlp value is nested'), '',
            'null'), v.array_value.values), ','), ']'),
        throwIf(v.value = 'k', 'otlp value is nested'), '',
        '')) AS text,
    (pairs -> mapFromArrays(CAST(pairs.key, 'Array(LowCardinality(String))'), arrayMap(v -> text(v), pairs.value))) AS attributes,
    arrayMap(pairs -> attributes(pairs), arrayConcat([span_attributes], event_attributes, link_attributes)) AS maps
SELECT
    fromUnixTimestamp64Nano(toInt64(least(start_ns, 9223372036854775807))) AS Timestamp,
    lower(hex(trace_id)) AS TraceId,
    lower(hex(span_id)) AS SpanId,
    lower(hex(parent_span_id)) AS ParentSpanId,
    trace_state AS TraceState,
    span_name AS SpanName,
    transform(span_kind, [1, 2, 3, 4, 5], ['Internal', 'Server', 'Client', 'Producer', 'Consumer'], 'Unspecified') AS SpanKind,
    ResourceAttributes['service.name'] AS ServiceName,
    ResourceAttributes,
    ScopeName,
    ScopeVersion,
    maps[1] AS SpanAttributes,
    if(end_ns > start_ns, end_ns - start_ns, 0) AS Duration,
    transform(status_code, [1, 2], ['Ok', 'Error'], 'Unset') AS StatusCode,
    status_message AS StatusMessage,
    arrayMap(ns -> fromUnixTimestamp64Nano(toInt64(least(ns, 9223372036854775807))), event_ns) AS `Events.Timestamp`,
    event_name AS `Events.Name`,
    arraySlice(maps, 2, length(event_name)) AS `Events.Attributes`,
    arrayMap(id -> lower(hex(id)), link_trace_id) AS `Links.TraceId`,
    arrayMap(id -> lower(hex(id)), link_span_id) AS `Links.SpanId`,
    link_trace_state AS `Links.TraceState`,
    arraySlice(maps, 2 + length(event_name)) AS `Links.Attributes`
FROM
(
    SELECT
        ResourceAttributes, ScopeName, ScopeVersion,
        trace_id, span_id, trace_state, parent_span_id, span_name, span_kind, start_ns, end_ns,
        span_attributes, status_code, status_message, event_ns, event_name, event_attributes, link_trace_id,
        link_span_id, link_trace_state, link_attributes
    FROM
    (
        WITH
            (v -> multiIf(
                v.value = 's', v.string_value,
                v.value = 'i', toString(v.int_value),
                v.value = 'd', toString(v.double_value),
                v.value = 'b', toString(v.bool_value),
                v.value = 'y', base64Encode(v.bytes_value),
                v.value = 'a', concat('[', arrayStringConcat(arrayMap(item -> multiIf(
                    item.value = 's', toJSONString(item.string_value),
                    item.value = 'i', toString(item.int_value),
                    item.value = 'd', toString(item.double_value),
                    item.value = 'b', toString(item.bool_value),
                    item.value = 'y', toJSONString(base64Encode(item.bytes_value)),
                    throwIf(item.value IN ('a', 'k'), 'otlp value is nested'), '',
                    'null'), v.array_value.values), ','), ']'),
                throwIf(v.value = 'k', 'otlp value is nested'), '',
                '')) AS text,
            (pairs -> mapFromArrays(CAST(pairs.key, 'Array(LowCardinality(String))'), arrayMap(v -> text(v), pairs.value))) AS attributes
        SELECT
            attributes(resource_attributes) AS ResourceAttributes, scope_name, scope_version,
            trace_id, span_id, trace_state, parent_span_id, span_name, span_kind, start_ns, end_ns,
            span_attributes, status_code, status_message, event_ns, event_name, event_attributes,
            link_trace_id, link_span_id, link_trace_state, link_attributes
        FROM
        (
            SELECT
                resource_spans.resource.attributes AS resource_attributes,
                resource_spans.scope_spans.scope.name AS scope_name,
                resource_spans.scope_spans.scope.version AS scope_version,
                resource_spans.scope_spans.spans.trace_id AS trace_id,
                resource_spans.scope_spans.spans.span_id AS span_id,
                resource_spans.scope_spans.spans.trace_state AS trace_state,
                resource_spans.scope_spans.spans.parent_span_id AS parent_span_id,
                resource_spans.scope_spans.spans.name AS span_name,
                resource_spans.scope_spans.spans.kind AS span_kind,
                resource_spans.scope_spans.spans.start_time_unix_nano AS start_ns,
                resource_spans.scope_spans.spans.end_time_unix_nano AS end_ns,
                resource_spans.scope_spans.spans.attributes AS span_attributes,
                resource_spans.scope_spans.spans.status.code AS status_code,
                resource_spans.scope_spans.spans.status.message AS status_message,
                resource_spans.scope_spans.spans.events.time_unix_nano AS event_ns,
                resource_spans.scope_spans.spans.events.name AS event_name,
                resource_spans.scope_spans.spans.events.attributes AS event_attributes,
                resource_spans.scope_spans.spans.links.trace_id AS link_trace_id,
                resource_spans.scope_spans.spans.links.span_id AS link_span_id,
                resource_spans.scope_spans.spans.links.trace_state AS link_trace_state,
                resource_spans.scope_spans.spans.links.attributes AS link_attributes
            FROM otel.otlp_traces
        )
        ARRAY JOIN
            resource_attributes, scope_name, scope_version,
            trace_id, span_id, trace_state, parent_span_id, span_name, span_kind, start_ns, end_ns,
            span_attributes, status_code, status_message, event_ns, event_name, event_attributes,
            link_trace_id, link_span_id, link_trace_state, link_attributes
    )
    ARRAY JOIN
        scope_name AS ScopeName, scope_version AS ScopeVersion,
        trace_id, span_id, trace_state, parent_span_id, span_name, span_kind, start_ns, end_ns,
        span_attributes, status_code, status_message, event_ns, event_name, event_attributes, link_trace_id,
        link_span_id, link_trace_state, link_attributes
)
ARRAY JOIN
    trace_id, span_id, trace_state, parent_span_id, span_name, span_kind, start_ns, end_ns, span_attributes,
    status_code, status_message, event_ns, event_name, event_attributes, link_trace_id, link_span_id,
    link_trace_state, link_attributes;
