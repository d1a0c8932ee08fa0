-- One row is one or more OTLP log export requests, concatenated. Nothing is stored: the view below turns it into rows of otel_logs.
-- Names are those of ../otlp.proto. `value` tells which member of an AnyValue is set: string, bool, int, double, array,
-- kvlist, bytes. What an array holds is read one level deep; at anything deeper the view refuses the insert with
-- 'otlp value is nested', and the collector writes that value as text first (see ../nested.py).
CREATE TABLE IF NOT EXISTS otel.otlp_logs
(
    resource_logs Array(Tuple(
        resource Tuple(attributes Array(Tuple(key String, value Tuple(
            value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
            string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String,
            array_value Tuple(values Array(Tuple(
                value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
                string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String))))))),
        schema_url String,
        scope_logs Array(Tuple(
            scope Tuple(name String, version String, attributes Array(Tuple(key String, value Tuple(
                value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
                string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String,
                array_value Tuple(values Array(Tuple(
                    value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
                    string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String))))))),
            schema_url String,
            log_records Array(Tuple(
                time_unix_nano UInt64, observed_time_unix_nano UInt64, severity_number Int32, severity_text String,
                flags UInt32, trace_id String, span_id String, event_name String,
                body Tuple(
                    value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
                    string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String,
                    array_value Tuple(values Array(Tuple(
                        value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
                        string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String)))),
                attributes Array(Tuple(key String, value Tuple(
                    value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
                    string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String,
                    array_value Tuple(values Array(Tuple(
                        value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
                        string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String))))))))))))
)
ENGINE = Null;

-- Levels and narrow arrays as in otlp_traces_mv.
CREATE MATERIALIZED VIEW IF NOT EXISTS otel.otlp_logs_mv TO otel.otel_logs AS
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
    fromUnixTimestamp64Nano(toInt64(least(if(time_ns = 0, observed_ns, time_ns), 9223372036854775807))) AS Timestamp,
    lower(hex(trace_id)) AS TraceId,
    lower(hex(span_id)) AS SpanId,
    toUInt8(bitAnd(flags, 255)) AS TraceFlags,
    severity_text AS SeverityText,
    toUInt8(severity_number) AS SeverityNumber,
    ResourceAttributes['service.name'] AS ServiceName,
    text(body) AS Body,
    resource_schema_url AS ResourceSchemaUrl,
    ResourceAttributes,
    ScopeSchemaUrl,
    ScopeName,
    ScopeVersion,
    attributes(scope_attributes) AS ScopeAttributes,
    attributes(log_attributes) AS LogAttributes,
    event_name AS EventName
FROM
(
    SELECT
        ResourceAttributes, resource_schema_url, ScopeName, ScopeVersion, scope_attributes, ScopeSchemaUrl,
        time_ns, observed_ns, severity_number, severity_text, body, log_attributes, flags, trace_id, span_id,
        event_name
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
            attributes(resource_attributes) AS ResourceAttributes, resource_schema_url,
            scope_name, scope_version, scope_attributes, scope_schema_url,
            time_ns, observed_ns, severity_number, severity_text, body, log_attributes, flags, trace_id,
            span_id, event_name
        FROM
        (
            SELECT
                resource_logs.resource.attributes AS resource_attributes,
                resource_logs.schema_url AS resource_schema_url,
                resource_logs.scope_logs.scope.name AS scope_name,
                resource_logs.scope_logs.scope.version AS scope_version,
                resource_logs.scope_logs.scope.attributes AS scope_attributes,
                resource_logs.scope_logs.schema_url AS scope_schema_url,
                resource_logs.scope_logs.log_records.time_unix_nano AS time_ns,
                resource_logs.scope_logs.log_records.observed_time_unix_nano AS observed_ns,
                resource_logs.scope_logs.log_records.severity_number AS severity_number,
                resource_logs.scope_logs.log_records.severity_text AS severity_text,
                resource_logs.scope_logs.log_records.body AS body,
                resource_logs.scope_logs.log_records.attributes AS log_attributes,
                resource_logs.scope_logs.log_records.flags AS flags,
                resource_logs.scope_logs.log_records.trace_id AS trace_id,
                resource_logs.scope_logs.log_records.span_id AS span_id,
                resource_logs.scope_logs.log_records.event_name AS event_name
            FROM otel.otlp_logs
        )
        ARRAY JOIN
            resource_attributes, resource_schema_url, scope_name, scope_version, scope_attributes, scope_schema_url,
            time_ns, observed_ns, severity_number, severity_text, body, log_attributes, flags, trace_id,
            span_id, event_name
    )
    ARRAY JOIN
        scope_name AS ScopeName, scope_version AS ScopeVersion, scope_attributes, scope_schema_url AS ScopeSchemaUrl,
        time_ns, observed_ns, severity_number, severity_text, body, log_attributes, flags, trace_id, span_id,
        event_name
)
ARRAY JOIN
    time_ns, observed_ns, severity_number, severity_text, body, log_attributes, flags, trace_id, span_id,
    event_name;
