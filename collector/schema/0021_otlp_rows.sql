-- How OTLP becomes rows. The collector cuts requests into their records (see ../rows.py) and sends these, each behind its
-- length, in format Protobuf: the engine itself decodes them. Names are those of ../otlp.proto. `value` tells which member
-- of an AnyValue is set: string, bool, int, double, array, kvlist, bytes. Its text is to the byte what the OpenTelemetry
-- Collector's ClickHouse exporter stores (see ../value_text.py). What an array holds is read one level deep; at anything
-- deeper, and at the few strings and numbers whose JSON the engine writes in another way, the view refuses the insert with
-- 'otlp value is nested', and the collector writes that value as text first (see ../nested.py).
DROP VIEW IF EXISTS otel.otlp_traces_mv;
DROP VIEW IF EXISTS otel.otlp_logs_mv;
DROP TABLE IF EXISTS otel.otlp_traces;
DROP TABLE IF EXISTS otel.otlp_logs;

-- Which row of which batch it is, so that a batch of which only a part may be in can be taken out and put in again.
-- 0: another program wrote the row.
ALTER TABLE otel.otel_traces ADD COLUMN IF NOT EXISTS IngestId UInt64 CODEC(Delta, ZSTD(1));
ALTER TABLE otel.otel_logs ADD COLUMN IF NOT EXISTS IngestId UInt64 CODEC(Delta, ZSTD(1));

-- Rows of one batch lie close together: looking for them reads next to nothing.
ALTER TABLE otel.otel_traces ADD INDEX IF NOT EXISTS idx_ingest_id IngestId TYPE minmax GRANULARITY 1;
ALTER TABLE otel.otel_logs ADD INDEX IF NOT EXISTS idx_ingest_id IngestId TYPE minmax GRANULARITY 1;

-- The sidecar's token ids and log-probabilities are two thirds of its spans. They are kept as numbers only: the view leaves
-- their texts out of SpanAttributes, where they would be compressed, merged and read again and again. Spans of others, and
-- those that another program inserts, keep the texts and have the numbers as well.
-- JSONExtract makes something of anything: 2.5 an id 2, -7 and null an id 0, null a log-probability 0, which is certainty. So
-- ids are what is a list of whole numbers of at most 9 digits, log-probabilities a list of numbers; all else is an empty list.
ALTER TABLE otel.otel_traces
    MODIFY COLUMN PromptTokenIds Array(UInt32)
        DEFAULT if(
            match(SpanAttributes['tracegrad.prompt.token_ids'], '^\\s*\\[\\s*([0-9]{1,9}(\\s*,\\s*[0-9]{1,9})*)?\\s*\\]\\s*$'),
            JSONExtract(SpanAttributes['tracegrad.prompt.token_ids'], 'Array(UInt32)'), []) CODEC(T64, ZSTD(1)),
    MODIFY COLUMN ResponseTokenIds Array(UInt32)
        DEFAULT if(
            match(SpanAttributes['tracegrad.response.token_ids'], '^\\s*\\[\\s*([0-9]{1,9}(\\s*,\\s*[0-9]{1,9})*)?\\s*\\]\\s*$'),
            JSONExtract(SpanAttributes['tracegrad.response.token_ids'], 'Array(UInt32)'), []) CODEC(T64, ZSTD(1)),
    MODIFY COLUMN ResponseLogprobs Array(Float32)
        DEFAULT if(
            match(SpanAttributes['tracegrad.response.logprobs'], '^\\s*\\[[-+0-9.eE,\\s]*\\]\\s*$'),
            JSONExtract(SpanAttributes['tracegrad.response.logprobs'], 'Array(Float32)'), []) CODEC(ZSTD(1));

-- When the span ended. Not every pair of start and duration that others insert, or that is there from before, has an end that
-- DateTime64(9) can hold: such a span ends when that does, in the year 2262.
ALTER TABLE otel.otel_traces
    ADD COLUMN IF NOT EXISTS EndedAt DateTime64(9) ALIAS addNanoseconds(
        Timestamp, least(Duration, toUInt64(9223372036854775807 - greatest(toUnixTimestamp64Nano(Timestamp), 0))));

-- What one insert brings stays in one file until it is merged: a file for each column would have to be synced each.
ALTER TABLE otel.otel_traces MODIFY SETTING min_bytes_for_wide_part = 268435456, min_rows_for_wide_part = 1048576;
ALTER TABLE otel.otel_logs MODIFY SETTING min_bytes_for_wide_part = 268435456, min_rows_for_wide_part = 1048576;

-- One row is one span, with what it has of its scope and resource. Nothing is stored: the view below makes it a row of otel_traces.
CREATE TABLE IF NOT EXISTS otel.otlp_traces
(
    resource Tuple(attributes Array(Tuple(key String, value Tuple(
        value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
        string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String,
        array_value Tuple(values Array(Tuple(
            value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
            string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String))))))),
    scope Tuple(name String, version String),
    span Tuple(
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
                    string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String))))))))),
    ingest_id UInt64
)
ENGINE = Null;

-- Analysing a view is what a small insert costs, and it costs more each time `attributes` is used: hence one for resource,
-- events and links together. The span's own, which are large, are not copied to join them.
-- A time beyond the last one that DateTime64(9) can hold, 2262-04-11 23:47:16.854775807, is that one.
CREATE MATERIALIZED VIEW IF NOT EXISTS otel.otlp_traces_mv TO otel.otel_traces AS
WITH
    ((kind, s, b, i, d, y, items) -> multiIf(
        kind = 's', s,
        kind = 'i', toString(i),
        kind = 'd', if(abs(d) < 1e21, toString(d), if(isFinite(d), replaceOne(toString(d), 'e', 'e+'),
            concat('json: unsupported value: ', transform(toString(d), ['nan', 'inf'], ['NaN', '+Inf'], '-Inf')))),
        kind = 'b', toString(b),
        kind = 'y', base64Encode(y),
        kind = 'a', concat('[', arrayStringConcat(arrayMap(item -> multiIf(
            item.value = 's' AND isValidUTF8(item.string_value) AND position(toJSONString(item.string_value), '\\u00') = 0,
                toJSONString(item.string_value),
            item.value = 'i', toString(item.int_value),
            item.value = 'd' AND abs(item.double_value) < 1e21, toString(item.double_value),
            item.value = 'b', toString(item.bool_value),
            item.value = 'y' AND notEmpty(item.bytes_value), concat('"', base64Encode(item.bytes_value), '"'),
            throwIf(item.value NOT IN ('', 'y'), 'otlp value is nested'), '',
            'null'), items), ','), ']'),
        throwIf(kind = 'k', 'otlp value is nested'), '',
        '')) AS text,
    (pairs -> mapFromArrays(
        CAST(pairs.key, 'Array(LowCardinality(String))'),
        arrayMap(
            (kind, s, b, i, d, y, items) -> text(kind, s, b, i, d, y, items),
            pairs.value.value, pairs.value.string_value, pairs.value.bool_value, pairs.value.int_value,
            pairs.value.double_value, pairs.value.bytes_value, pairs.value.array_value.values))) AS attributes,
    (id -> if(id IN (unhex('0000000000000000'), unhex('00000000000000000000000000000000')), '', lower(hex(id)))) AS id_text,
    least(span.start_time_unix_nano, 9223372036854775807) AS started,
    least(span.end_time_unix_nano, 9223372036854775807) AS ended,
    (ns -> fromUnixTimestamp64Nano(toInt64(least(ns, 9223372036854775807)))) AS time,
    arrayMap(pairs -> attributes(pairs), arrayConcat([resource.attributes], span.events.attributes, span.links.attributes)) AS maps,
    (key -> span.attributes.value.string_value[indexOf(span.attributes.key, key)]) AS string
SELECT
    time(started) AS Timestamp,
    id_text(span.trace_id) AS TraceId,
    id_text(span.span_id) AS SpanId,
    id_text(span.parent_span_id) AS ParentSpanId,
    span.trace_state AS TraceState,
    span.name AS SpanName,
    transform(
        span.kind, [0, 1, 2, 3, 4, 5], ['Unspecified', 'Internal', 'Server', 'Client', 'Producer', 'Consumer'], '') AS SpanKind,
    ResourceAttributes['service.name'] AS ServiceName,
    maps[1] AS ResourceAttributes,
    scope.name AS ScopeName,
    scope.version AS ScopeVersion,
    mapFromArrays(
        CAST(span.attributes.key, 'Array(LowCardinality(String))'),
        arrayMap(
            (key, kind, s, b, i, d, y, items) -> text(
                kind,
                if(key IN ('tracegrad.prompt.token_ids', 'tracegrad.response.token_ids', 'tracegrad.response.logprobs')
                    AND scope.name = 'tracegrad.sidecar', '', s),
                b, i, d, y, items),
            span.attributes.key, span.attributes.value.value, span.attributes.value.string_value,
            span.attributes.value.bool_value, span.attributes.value.int_value, span.attributes.value.double_value,
            span.attributes.value.bytes_value, span.attributes.value.array_value.values)) AS SpanAttributes,
    if(
        match(string('tracegrad.prompt.token_ids'), '^\\s*\\[\\s*([0-9]{1,9}(\\s*,\\s*[0-9]{1,9})*)?\\s*\\]\\s*$'),
        JSONExtract(string('tracegrad.prompt.token_ids'), 'Array(UInt32)'), []) AS PromptTokenIds,
    if(
        match(string('tracegrad.response.token_ids'), '^\\s*\\[\\s*([0-9]{1,9}(\\s*,\\s*[0-9]{1,9})*)?\\s*\\]\\s*$'),
        JSONExtract(string('tracegrad.response.token_ids'), 'Array(UInt32)'), []) AS ResponseTokenIds,
    if(
        match(string('tracegrad.response.logprobs'), '^\\s*\\[[-+0-9.eE,\\s]*\\]\\s*$'),
        JSONExtract(string('tracegrad.response.logprobs'), 'Array(Float32)'), []) AS ResponseLogprobs,
    if(ended > started, ended - started, 0) AS Duration,
    transform(span.status.code, [0, 1, 2], ['Unset', 'Ok', 'Error'], '') AS StatusCode,
    span.status.message AS StatusMessage,
    arrayMap(ns -> time(ns), span.events.time_unix_nano) AS `Events.Timestamp`,
    span.events.name AS `Events.Name`,
    arraySlice(maps, 2, length(span.events.name)) AS `Events.Attributes`,
    arrayMap(id -> id_text(id), span.links.trace_id) AS `Links.TraceId`,
    arrayMap(id -> id_text(id), span.links.span_id) AS `Links.SpanId`,
    span.links.trace_state AS `Links.TraceState`,
    arraySlice(maps, 2 + length(span.events.name)) AS `Links.Attributes`,
    ingest_id AS IngestId
FROM otel.otlp_traces;

-- One row is one log record, with what it has of its scope and resource. Nothing is stored: the view below makes it a row of otel_logs.
CREATE TABLE IF NOT EXISTS otel.otlp_logs
(
    resource Tuple(attributes Array(Tuple(key String, value Tuple(
        value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
        string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String,
        array_value Tuple(values Array(Tuple(
            value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
            string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String))))))),
    resource_schema_url String,
    scope Tuple(name String, version String, attributes Array(Tuple(key String, value Tuple(
        value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
        string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String,
        array_value Tuple(values Array(Tuple(
            value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7),
            string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String))))))),
    scope_schema_url String,
    record Tuple(
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
                string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String))))))),
    ingest_id UInt64
)
ENGINE = Null;

CREATE MATERIALIZED VIEW IF NOT EXISTS otel.otlp_logs_mv TO otel.otel_logs AS
WITH
    ((kind, s, b, i, d, y, items) -> multiIf(
        kind = 's', s,
        kind = 'i', toString(i),
        kind = 'd', if(abs(d) < 1e21, toString(d), if(isFinite(d), replaceOne(toString(d), 'e', 'e+'),
            concat('json: unsupported value: ', transform(toString(d), ['nan', 'inf'], ['NaN', '+Inf'], '-Inf')))),
        kind = 'b', toString(b),
        kind = 'y', base64Encode(y),
        kind = 'a', concat('[', arrayStringConcat(arrayMap(item -> multiIf(
            item.value = 's' AND isValidUTF8(item.string_value) AND position(toJSONString(item.string_value), '\\u00') = 0,
                toJSONString(item.string_value),
            item.value = 'i', toString(item.int_value),
            item.value = 'd' AND abs(item.double_value) < 1e21, toString(item.double_value),
            item.value = 'b', toString(item.bool_value),
            item.value = 'y' AND notEmpty(item.bytes_value), concat('"', base64Encode(item.bytes_value), '"'),
            throwIf(item.value NOT IN ('', 'y'), 'otlp value is nested'), '',
            'null'), items), ','), ']'),
        throwIf(kind = 'k', 'otlp value is nested'), '',
        '')) AS text,
    (pairs -> mapFromArrays(
        CAST(pairs.key, 'Array(LowCardinality(String))'),
        arrayMap(
            (kind, s, b, i, d, y, items) -> text(kind, s, b, i, d, y, items),
            pairs.value.value, pairs.value.string_value, pairs.value.bool_value, pairs.value.int_value,
            pairs.value.double_value, pairs.value.bytes_value, pairs.value.array_value.values))) AS attributes,
    (id -> if(id IN (unhex('0000000000000000'), unhex('00000000000000000000000000000000')), '', lower(hex(id)))) AS id_text,
    (ns -> fromUnixTimestamp64Nano(toInt64(least(ns, 9223372036854775807)))) AS time,
    arrayMap(pairs -> attributes(pairs), [resource.attributes, scope.attributes, record.attributes]) AS maps
SELECT
    time(if(record.time_unix_nano = 0, record.observed_time_unix_nano, record.time_unix_nano)) AS Timestamp,
    id_text(record.trace_id) AS TraceId,
    id_text(record.span_id) AS SpanId,
    toUInt8(bitAnd(record.flags, 255)) AS TraceFlags,
    record.severity_text AS SeverityText,
    toUInt8(record.severity_number) AS SeverityNumber,
    ResourceAttributes['service.name'] AS ServiceName,
    text(
        record.body.value, record.body.string_value, record.body.bool_value, record.body.int_value,
        record.body.double_value, record.body.bytes_value, record.body.array_value.values) AS Body,
    resource_schema_url AS ResourceSchemaUrl,
    maps[1] AS ResourceAttributes,
    scope_schema_url AS ScopeSchemaUrl,
    scope.name AS ScopeName,
    scope.version AS ScopeVersion,
    maps[2] AS ScopeAttributes,
    maps[3] AS LogAttributes,
    record.event_name AS EventName,
    ingest_id AS IngestId
FROM otel.otlp_logs;
