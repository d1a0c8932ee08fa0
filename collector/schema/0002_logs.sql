-- One row is one log record or event. Columns up to `EventName` are those of the OpenTelemetry Collector's ClickHouse
-- exporter. The MATERIALIZED ones are what the view `rewards` reads from evaluation events.
CREATE TABLE IF NOT EXISTS otel.otel_logs
(
    Timestamp DateTime64(9) CODEC(Delta, ZSTD(1)),
    TimestampTime DateTime DEFAULT toDateTime(Timestamp) CODEC(Delta, ZSTD(1)),
    TraceId String CODEC(ZSTD(1)),
    SpanId String CODEC(ZSTD(1)),
    TraceFlags UInt8 CODEC(ZSTD(1)),
    SeverityText LowCardinality(String) CODEC(ZSTD(1)),
    SeverityNumber UInt8 CODEC(ZSTD(1)),
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    Body String CODEC(ZSTD(1)),
    ResourceSchemaUrl LowCardinality(String) CODEC(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeSchemaUrl LowCardinality(String) CODEC(ZSTD(1)),
    ScopeName String CODEC(ZSTD(1)),
    ScopeVersion LowCardinality(String) CODEC(ZSTD(1)),
    ScopeAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    LogAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    EventName String CODEC(ZSTD(1)),

    RolloutId String MATERIALIZED LogAttributes['tracegrad.rollout.id'] CODEC(ZSTD(1)),
    RolloutAttempt UInt32 MATERIALIZED toUInt32OrZero(LogAttributes['tracegrad.rollout.attempt']) CODEC(ZSTD(1)),
    EvaluationName LowCardinality(String) MATERIALIZED LogAttributes['gen_ai.evaluation.name'] CODEC(ZSTD(1)),
    -- NULL when the evaluation has no score, or one that is not a finite number: it must not poison a sum.
    EvaluationScore Nullable(Float64) MATERIALIZED
        if(isFinite(toFloat64OrZero(LogAttributes['gen_ai.evaluation.score.value'])),
           toFloat64OrNull(LogAttributes['gen_ai.evaluation.score.value']), NULL) CODEC(ZSTD(1)),
    EvaluationLabel LowCardinality(String) MATERIALIZED LogAttributes['gen_ai.evaluation.score.label'] CODEC(ZSTD(1)),
    EvaluationExplanation String MATERIALIZED LogAttributes['gen_ai.evaluation.explanation'] CODEC(ZSTD(1)),

    INDEX idx_trace_id TraceId TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX idx_event_name EventName TYPE set(100) GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(TimestampTime)
PRIMARY KEY (ServiceName, TimestampTime)
ORDER BY (ServiceName, TimestampTime, Timestamp)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, ttl_only_drop_parts = 1;
