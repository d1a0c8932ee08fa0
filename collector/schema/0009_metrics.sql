-- Metrics, in the tables of the OpenTelemetry Collector's ClickHouse exporter, which can insert here as it is. Times keep
-- their nanoseconds, which its newest version cuts to seconds; the sorting key is that version's.
-- A measurement that has neither sum nor minimum nor maximum has 0 there, as the exporter writes it.

-- One row is one data point of a gauge's series.
CREATE TABLE IF NOT EXISTS otel.otel_metrics_gauge
(
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ResourceSchemaUrl String CODEC(ZSTD(1)),
    ScopeName String CODEC(ZSTD(1)),
    ScopeVersion String CODEC(ZSTD(1)),
    ScopeAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeDroppedAttrCount UInt32 CODEC(ZSTD(1)),
    ScopeSchemaUrl String CODEC(ZSTD(1)),
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    MetricName LowCardinality(String) CODEC(ZSTD(1)),
    MetricDescription String CODEC(ZSTD(1)),
    MetricUnit String CODEC(ZSTD(1)),
    Attributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    StartTimeUnix DateTime64(9) CODEC(Delta, ZSTD(1)),
    TimeUnix DateTime64(9) CODEC(Delta, ZSTD(1)),
    Value Float64 CODEC(ZSTD(1)),
    Flags UInt32 CODEC(ZSTD(1)),
    Exemplars Nested
    (
        FilteredAttributes Map(LowCardinality(String), String),
        TimeUnix DateTime64(9),
        Value Float64,
        SpanId String,
        TraceId String
    ) CODEC(ZSTD(1)),
    -- As in otel_traces.
    IngestId UInt64 CODEC(Delta, ZSTD(1)),
    INDEX idx_time_minmax TimeUnix TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(TimeUnix)
ORDER BY (ServiceName, MetricName, toStartOfHour(TimeUnix), cityHash64(Attributes), TimeUnix)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, ttl_only_drop_parts = 1;

-- One row is one data point of a sum's (a counter's) series.
CREATE TABLE IF NOT EXISTS otel.otel_metrics_sum
(
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ResourceSchemaUrl String CODEC(ZSTD(1)),
    ScopeName String CODEC(ZSTD(1)),
    ScopeVersion String CODEC(ZSTD(1)),
    ScopeAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeDroppedAttrCount UInt32 CODEC(ZSTD(1)),
    ScopeSchemaUrl String CODEC(ZSTD(1)),
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    MetricName LowCardinality(String) CODEC(ZSTD(1)),
    MetricDescription String CODEC(ZSTD(1)),
    MetricUnit String CODEC(ZSTD(1)),
    Attributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    StartTimeUnix DateTime64(9) CODEC(Delta, ZSTD(1)),
    TimeUnix DateTime64(9) CODEC(Delta, ZSTD(1)),
    Value Float64 CODEC(ZSTD(1)),
    Flags UInt32 CODEC(ZSTD(1)),
    Exemplars Nested
    (
        FilteredAttributes Map(LowCardinality(String), String),
        TimeUnix DateTime64(9),
        Value Float64,
        SpanId String,
        TraceId String
    ) CODEC(ZSTD(1)),
    -- 1: delta, 2: cumulative.
    AggregationTemporality Int32 CODEC(ZSTD(1)),
    IsMonotonic Bool CODEC(ZSTD(1)),
    -- As in otel_traces.
    IngestId UInt64 CODEC(Delta, ZSTD(1)),
    INDEX idx_time_minmax TimeUnix TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(TimeUnix)
ORDER BY (ServiceName, MetricName, toStartOfHour(TimeUnix), cityHash64(Attributes), TimeUnix)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, ttl_only_drop_parts = 1;

-- One row is one data point of a histogram's series.
CREATE TABLE IF NOT EXISTS otel.otel_metrics_histogram
(
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ResourceSchemaUrl String CODEC(ZSTD(1)),
    ScopeName String CODEC(ZSTD(1)),
    ScopeVersion String CODEC(ZSTD(1)),
    ScopeAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeDroppedAttrCount UInt32 CODEC(ZSTD(1)),
    ScopeSchemaUrl String CODEC(ZSTD(1)),
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    MetricName LowCardinality(String) CODEC(ZSTD(1)),
    MetricDescription String CODEC(ZSTD(1)),
    MetricUnit String CODEC(ZSTD(1)),
    Attributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    StartTimeUnix DateTime64(9) CODEC(Delta, ZSTD(1)),
    TimeUnix DateTime64(9) CODEC(Delta, ZSTD(1)),
    Count UInt64 CODEC(Delta, ZSTD(1)),
    Sum Float64 CODEC(ZSTD(1)),
    BucketCounts Array(UInt64) CODEC(ZSTD(1)),
    ExplicitBounds Array(Float64) CODEC(ZSTD(1)),
    Exemplars Nested
    (
        FilteredAttributes Map(LowCardinality(String), String),
        TimeUnix DateTime64(9),
        Value Float64,
        SpanId String,
        TraceId String
    ) CODEC(ZSTD(1)),
    Flags UInt32 CODEC(ZSTD(1)),
    Min Float64 CODEC(ZSTD(1)),
    Max Float64 CODEC(ZSTD(1)),
    AggregationTemporality Int32 CODEC(ZSTD(1)),
    -- As in otel_traces.
    IngestId UInt64 CODEC(Delta, ZSTD(1)),
    INDEX idx_time_minmax TimeUnix TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(TimeUnix)
ORDER BY (ServiceName, MetricName, toStartOfHour(TimeUnix), cityHash64(Attributes), TimeUnix)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, ttl_only_drop_parts = 1;

-- One row is one data point of an exponential histogram's series.
CREATE TABLE IF NOT EXISTS otel.otel_metrics_exponential_histogram
(
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ResourceSchemaUrl String CODEC(ZSTD(1)),
    ScopeName String CODEC(ZSTD(1)),
    ScopeVersion String CODEC(ZSTD(1)),
    ScopeAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeDroppedAttrCount UInt32 CODEC(ZSTD(1)),
    ScopeSchemaUrl String CODEC(ZSTD(1)),
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    MetricName LowCardinality(String) CODEC(ZSTD(1)),
    MetricDescription String CODEC(ZSTD(1)),
    MetricUnit String CODEC(ZSTD(1)),
    Attributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    StartTimeUnix DateTime64(9) CODEC(Delta, ZSTD(1)),
    TimeUnix DateTime64(9) CODEC(Delta, ZSTD(1)),
    Count UInt64 CODEC(Delta, ZSTD(1)),
    Sum Float64 CODEC(ZSTD(1)),
    Scale Int32 CODEC(ZSTD(1)),
    ZeroCount UInt64 CODEC(ZSTD(1)),
    PositiveOffset Int32 CODEC(ZSTD(1)),
    PositiveBucketCounts Array(UInt64) CODEC(ZSTD(1)),
    NegativeOffset Int32 CODEC(ZSTD(1)),
    NegativeBucketCounts Array(UInt64) CODEC(ZSTD(1)),
    Exemplars Nested
    (
        FilteredAttributes Map(LowCardinality(String), String),
        TimeUnix DateTime64(9),
        Value Float64,
        SpanId String,
        TraceId String
    ) CODEC(ZSTD(1)),
    Flags UInt32 CODEC(ZSTD(1)),
    Min Float64 CODEC(ZSTD(1)),
    Max Float64 CODEC(ZSTD(1)),
    AggregationTemporality Int32 CODEC(ZSTD(1)),
    -- As in otel_traces.
    IngestId UInt64 CODEC(Delta, ZSTD(1)),
    INDEX idx_time_minmax TimeUnix TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(TimeUnix)
ORDER BY (ServiceName, MetricName, toStartOfHour(TimeUnix), cityHash64(Attributes), TimeUnix)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, ttl_only_drop_parts = 1;

-- One row is one data point of a summary's series.
CREATE TABLE IF NOT EXISTS otel.otel_metrics_summary
(
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ResourceSchemaUrl String CODEC(ZSTD(1)),
    ScopeName String CODEC(ZSTD(1)),
    ScopeVersion String CODEC(ZSTD(1)),
    ScopeAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeDroppedAttrCount UInt32 CODEC(ZSTD(1)),
    ScopeSchemaUrl String CODEC(ZSTD(1)),
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    MetricName LowCardinality(String) CODEC(ZSTD(1)),
    MetricDescription String CODEC(ZSTD(1)),
    MetricUnit String CODEC(ZSTD(1)),
    Attributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    StartTimeUnix DateTime64(9) CODEC(Delta, ZSTD(1)),
    TimeUnix DateTime64(9) CODEC(Delta, ZSTD(1)),
    Count UInt64 CODEC(Delta, ZSTD(1)),
    Sum Float64 CODEC(ZSTD(1)),
    ValueAtQuantiles Nested(Quantile Float64, Value Float64) CODEC(ZSTD(1)),
    Flags UInt32 CODEC(ZSTD(1)),
    -- As in otel_traces.
    IngestId UInt64 CODEC(Delta, ZSTD(1)),
    INDEX idx_time_minmax TimeUnix TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(TimeUnix)
ORDER BY (ServiceName, MetricName, toStartOfHour(TimeUnix), cityHash64(Attributes), TimeUnix)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, ttl_only_drop_parts = 1;

-- One row is one metric with all its data points, and what it has of its scope and resource. Nothing is stored: each of the
-- five views below takes those of its kind. Names are those of ../otlp.proto. Attribute values are texts: at any other the
-- views refuse the insert with 'otlp value is nested', and the collector writes it as text first (see ../nested.py).
CREATE TABLE IF NOT EXISTS otel.otlp_metrics
(
    resource Tuple(attributes Array(Tuple(key String, value Tuple(
        value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7), string_value String)))),
    resource_schema_url String,
    scope Tuple(
        name String, version String, dropped_attributes_count UInt32,
        attributes Array(Tuple(key String, value Tuple(
            value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7), string_value String)))),
    scope_schema_url String,
    metric Tuple(
        name String, description String, unit String,
        gauge Tuple(data_points Array(Tuple(
            start_time_unix_nano UInt64, time_unix_nano UInt64, as_double Float64, as_int Int64, flags UInt32,
            attributes Array(Tuple(key String, value Tuple(
                value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7), string_value String))),
            exemplars Array(Tuple(
                time_unix_nano UInt64, as_double Float64, as_int Int64, span_id String, trace_id String,
                filtered_attributes Array(Tuple(key String, value Tuple(
                    value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7), string_value String)))))))),
        sum Tuple(aggregation_temporality Int32, is_monotonic Bool, data_points Array(Tuple(
            start_time_unix_nano UInt64, time_unix_nano UInt64, as_double Float64, as_int Int64, flags UInt32,
            attributes Array(Tuple(key String, value Tuple(
                value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7), string_value String))),
            exemplars Array(Tuple(
                time_unix_nano UInt64, as_double Float64, as_int Int64, span_id String, trace_id String,
                filtered_attributes Array(Tuple(key String, value Tuple(
                    value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7), string_value String)))))))),
        histogram Tuple(aggregation_temporality Int32, data_points Array(Tuple(
            start_time_unix_nano UInt64, time_unix_nano UInt64, count UInt64, sum Float64, min Float64, max Float64, flags UInt32,
            bucket_counts Array(UInt64), explicit_bounds Array(Float64),
            attributes Array(Tuple(key String, value Tuple(
                value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7), string_value String))),
            exemplars Array(Tuple(
                time_unix_nano UInt64, as_double Float64, as_int Int64, span_id String, trace_id String,
                filtered_attributes Array(Tuple(key String, value Tuple(
                    value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7), string_value String)))))))),
        exponential_histogram Tuple(aggregation_temporality Int32, data_points Array(Tuple(
            start_time_unix_nano UInt64, time_unix_nano UInt64, count UInt64, sum Float64, min Float64, max Float64, flags UInt32,
            scale Int32, zero_count UInt64, positive Tuple(offset Int32, bucket_counts Array(UInt64)),
            negative Tuple(offset Int32, bucket_counts Array(UInt64)),
            attributes Array(Tuple(key String, value Tuple(
                value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7), string_value String))),
            exemplars Array(Tuple(
                time_unix_nano UInt64, as_double Float64, as_int Int64, span_id String, trace_id String,
                filtered_attributes Array(Tuple(key String, value Tuple(
                    value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7), string_value String)))))))),
        summary Tuple(data_points Array(Tuple(
            start_time_unix_nano UInt64, time_unix_nano UInt64, count UInt64, sum Float64, flags UInt32,
            quantile_values Array(Tuple(quantile Float64, value Float64)),
            attributes Array(Tuple(key String, value Tuple(
                value Enum8('' = 0, 's' = 1, 'b' = 2, 'i' = 3, 'd' = 4, 'a' = 5, 'k' = 6, 'y' = 7), string_value String))))))),
    ingest_id UInt64
)
ENGINE = Null;

CREATE MATERIALIZED VIEW IF NOT EXISTS otel.otlp_metrics_gauge_mv TO otel.otel_metrics_gauge AS
WITH
    (pairs -> mapSort(mapFromArrays(
        CAST(pairs.key, 'Array(LowCardinality(String))'),
        arrayMap(
            v -> if(throwIf(v.value NOT IN ('', 's'), 'otlp value is nested') = 0, v.string_value, ''),
            pairs.value)))) AS attributes,
    (ns -> fromUnixTimestamp64Nano(toInt64(least(ns, 9223372036854775807)))) AS time
SELECT
    attributes(resource.attributes) AS ResourceAttributes,
    resource_schema_url AS ResourceSchemaUrl,
    scope.name AS ScopeName,
    scope.version AS ScopeVersion,
    attributes(scope.attributes) AS ScopeAttributes,
    scope.dropped_attributes_count AS ScopeDroppedAttrCount,
    scope_schema_url AS ScopeSchemaUrl,
    ResourceAttributes['service.name'] AS ServiceName,
    metric.name AS MetricName,
    metric.description AS MetricDescription,
    metric.unit AS MetricUnit,
    attributes(point.attributes) AS Attributes,
    time(point.start_time_unix_nano) AS StartTimeUnix,
    time(point.time_unix_nano) AS TimeUnix,
    if(point.as_int != 0, toFloat64(point.as_int), point.as_double) AS Value,
    point.flags AS Flags,
    arrayMap(e -> attributes(e.filtered_attributes), point.exemplars) AS `Exemplars.FilteredAttributes`,
    arrayMap(e -> time(e.time_unix_nano), point.exemplars) AS `Exemplars.TimeUnix`,
    arrayMap(e -> if(e.as_int != 0, toFloat64(e.as_int), e.as_double), point.exemplars) AS `Exemplars.Value`,
    arrayMap(e -> lower(leftPad(hex(e.span_id), 16, '0')), point.exemplars) AS `Exemplars.SpanId`,
    arrayMap(e -> lower(leftPad(hex(e.trace_id), 32, '0')), point.exemplars) AS `Exemplars.TraceId`,
    ingest_id AS IngestId
FROM otel.otlp_metrics
ARRAY JOIN metric.gauge.data_points AS point;

CREATE MATERIALIZED VIEW IF NOT EXISTS otel.otlp_metrics_sum_mv TO otel.otel_metrics_sum AS
WITH
    (pairs -> mapSort(mapFromArrays(
        CAST(pairs.key, 'Array(LowCardinality(String))'),
        arrayMap(
            v -> if(throwIf(v.value NOT IN ('', 's'), 'otlp value is nested') = 0, v.string_value, ''),
            pairs.value)))) AS attributes,
    (ns -> fromUnixTimestamp64Nano(toInt64(least(ns, 9223372036854775807)))) AS time
SELECT
    attributes(resource.attributes) AS ResourceAttributes,
    resource_schema_url AS ResourceSchemaUrl,
    scope.name AS ScopeName,
    scope.version AS ScopeVersion,
    attributes(scope.attributes) AS ScopeAttributes,
    scope.dropped_attributes_count AS ScopeDroppedAttrCount,
    scope_schema_url AS ScopeSchemaUrl,
    ResourceAttributes['service.name'] AS ServiceName,
    metric.name AS MetricName,
    metric.description AS MetricDescription,
    metric.unit AS MetricUnit,
    attributes(point.attributes) AS Attributes,
    time(point.start_time_unix_nano) AS StartTimeUnix,
    time(point.time_unix_nano) AS TimeUnix,
    if(point.as_int != 0, toFloat64(point.as_int), point.as_double) AS Value,
    point.flags AS Flags,
    metric.sum.aggregation_temporality AS AggregationTemporality,
    metric.sum.is_monotonic AS IsMonotonic,
    arrayMap(e -> attributes(e.filtered_attributes), point.exemplars) AS `Exemplars.FilteredAttributes`,
    arrayMap(e -> time(e.time_unix_nano), point.exemplars) AS `Exemplars.TimeUnix`,
    arrayMap(e -> if(e.as_int != 0, toFloat64(e.as_int), e.as_double), point.exemplars) AS `Exemplars.Value`,
    arrayMap(e -> lower(leftPad(hex(e.span_id), 16, '0')), point.exemplars) AS `Exemplars.SpanId`,
    arrayMap(e -> lower(leftPad(hex(e.trace_id), 32, '0')), point.exemplars) AS `Exemplars.TraceId`,
    ingest_id AS IngestId
FROM otel.otlp_metrics
ARRAY JOIN metric.sum.data_points AS point;

CREATE MATERIALIZED VIEW IF NOT EXISTS otel.otlp_metrics_histogram_mv TO otel.otel_metrics_histogram AS
WITH
    (pairs -> mapSort(mapFromArrays(
        CAST(pairs.key, 'Array(LowCardinality(String))'),
        arrayMap(
            v -> if(throwIf(v.value NOT IN ('', 's'), 'otlp value is nested') = 0, v.string_value, ''),
            pairs.value)))) AS attributes,
    (ns -> fromUnixTimestamp64Nano(toInt64(least(ns, 9223372036854775807)))) AS time
SELECT
    attributes(resource.attributes) AS ResourceAttributes,
    resource_schema_url AS ResourceSchemaUrl,
    scope.name AS ScopeName,
    scope.version AS ScopeVersion,
    attributes(scope.attributes) AS ScopeAttributes,
    scope.dropped_attributes_count AS ScopeDroppedAttrCount,
    scope_schema_url AS ScopeSchemaUrl,
    ResourceAttributes['service.name'] AS ServiceName,
    metric.name AS MetricName,
    metric.description AS MetricDescription,
    metric.unit AS MetricUnit,
    attributes(point.attributes) AS Attributes,
    time(point.start_time_unix_nano) AS StartTimeUnix,
    time(point.time_unix_nano) AS TimeUnix,
    point.count AS Count,
    point.sum AS Sum,
    point.bucket_counts AS BucketCounts,
    point.explicit_bounds AS ExplicitBounds,
    point.flags AS Flags,
    point.min AS Min,
    point.max AS Max,
    metric.histogram.aggregation_temporality AS AggregationTemporality,
    arrayMap(e -> attributes(e.filtered_attributes), point.exemplars) AS `Exemplars.FilteredAttributes`,
    arrayMap(e -> time(e.time_unix_nano), point.exemplars) AS `Exemplars.TimeUnix`,
    arrayMap(e -> if(e.as_int != 0, toFloat64(e.as_int), e.as_double), point.exemplars) AS `Exemplars.Value`,
    arrayMap(e -> lower(leftPad(hex(e.span_id), 16, '0')), point.exemplars) AS `Exemplars.SpanId`,
    arrayMap(e -> lower(leftPad(hex(e.trace_id), 32, '0')), point.exemplars) AS `Exemplars.TraceId`,
    ingest_id AS IngestId
FROM otel.otlp_metrics
ARRAY JOIN metric.histogram.data_points AS point;

CREATE MATERIALIZED VIEW IF NOT EXISTS otel.otlp_metrics_exponential_histogram_mv TO otel.otel_metrics_exponential_histogram AS
WITH
    (pairs -> mapSort(mapFromArrays(
        CAST(pairs.key, 'Array(LowCardinality(String))'),
        arrayMap(
            v -> if(throwIf(v.value NOT IN ('', 's'), 'otlp value is nested') = 0, v.string_value, ''),
            pairs.value)))) AS attributes,
    (ns -> fromUnixTimestamp64Nano(toInt64(least(ns, 9223372036854775807)))) AS time
SELECT
    attributes(resource.attributes) AS ResourceAttributes,
    resource_schema_url AS ResourceSchemaUrl,
    scope.name AS ScopeName,
    scope.version AS ScopeVersion,
    attributes(scope.attributes) AS ScopeAttributes,
    scope.dropped_attributes_count AS ScopeDroppedAttrCount,
    scope_schema_url AS ScopeSchemaUrl,
    ResourceAttributes['service.name'] AS ServiceName,
    metric.name AS MetricName,
    metric.description AS MetricDescription,
    metric.unit AS MetricUnit,
    attributes(point.attributes) AS Attributes,
    time(point.start_time_unix_nano) AS StartTimeUnix,
    time(point.time_unix_nano) AS TimeUnix,
    point.count AS Count,
    point.sum AS Sum,
    point.scale AS Scale,
    point.zero_count AS ZeroCount,
    point.positive.offset AS PositiveOffset,
    point.positive.bucket_counts AS PositiveBucketCounts,
    point.negative.offset AS NegativeOffset,
    point.negative.bucket_counts AS NegativeBucketCounts,
    point.flags AS Flags,
    point.min AS Min,
    point.max AS Max,
    metric.exponential_histogram.aggregation_temporality AS AggregationTemporality,
    arrayMap(e -> attributes(e.filtered_attributes), point.exemplars) AS `Exemplars.FilteredAttributes`,
    arrayMap(e -> time(e.time_unix_nano), point.exemplars) AS `Exemplars.TimeUnix`,
    arrayMap(e -> if(e.as_int != 0, toFloat64(e.as_int), e.as_double), point.exemplars) AS `Exemplars.Value`,
    arrayMap(e -> lower(leftPad(hex(e.span_id), 16, '0')), point.exemplars) AS `Exemplars.SpanId`,
    arrayMap(e -> lower(leftPad(hex(e.trace_id), 32, '0')), point.exemplars) AS `Exemplars.TraceId`,
    ingest_id AS IngestId
FROM otel.otlp_metrics
ARRAY JOIN metric.exponential_histogram.data_points AS point;

CREATE MATERIALIZED VIEW IF NOT EXISTS otel.otlp_metrics_summary_mv TO otel.otel_metrics_summary AS
WITH
    (pairs -> mapSort(mapFromArrays(
        CAST(pairs.key, 'Array(LowCardinality(String))'),
        arrayMap(
            v -> if(throwIf(v.value NOT IN ('', 's'), 'otlp value is nested') = 0, v.string_value, ''),
            pairs.value)))) AS attributes,
    (ns -> fromUnixTimestamp64Nano(toInt64(least(ns, 9223372036854775807)))) AS time
SELECT
    attributes(resource.attributes) AS ResourceAttributes,
    resource_schema_url AS ResourceSchemaUrl,
    scope.name AS ScopeName,
    scope.version AS ScopeVersion,
    attributes(scope.attributes) AS ScopeAttributes,
    scope.dropped_attributes_count AS ScopeDroppedAttrCount,
    scope_schema_url AS ScopeSchemaUrl,
    ResourceAttributes['service.name'] AS ServiceName,
    metric.name AS MetricName,
    metric.description AS MetricDescription,
    metric.unit AS MetricUnit,
    attributes(point.attributes) AS Attributes,
    time(point.start_time_unix_nano) AS StartTimeUnix,
    time(point.time_unix_nano) AS TimeUnix,
    point.count AS Count,
    point.sum AS Sum,
    point.quantile_values.quantile AS `ValueAtQuantiles.Quantile`,
    point.quantile_values.value AS `ValueAtQuantiles.Value`,
    point.flags AS Flags,
    ingest_id AS IngestId
FROM otel.otlp_metrics
ARRAY JOIN metric.summary.data_points AS point;
