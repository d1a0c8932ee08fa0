CREATE DATABASE IF NOT EXISTS otel;

-- One row is one span, as OTLP delivered it; a span that was delivered twice is two rows, and the views show one.
-- Columns up to `Links` are those of the OpenTelemetry Collector's ClickHouse exporter, which can insert here as it is.
-- The MATERIALIZED ones are computed at insert from SpanAttributes, so that training reads narrow typed columns:
-- a Map is read whole, and parsing token ids from its text costs eight times as much.
CREATE TABLE IF NOT EXISTS otel.otel_traces
(
    Timestamp DateTime64(9) CODEC(Delta, ZSTD(1)),
    TraceId String CODEC(ZSTD(1)),
    SpanId String CODEC(ZSTD(1)),
    ParentSpanId String CODEC(ZSTD(1)),
    TraceState String CODEC(ZSTD(1)),
    SpanName LowCardinality(String) CODEC(ZSTD(1)),
    SpanKind LowCardinality(String) CODEC(ZSTD(1)),
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeName String CODEC(ZSTD(1)),
    ScopeVersion String CODEC(ZSTD(1)),
    SpanAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    Duration UInt64 CODEC(ZSTD(1)),
    StatusCode LowCardinality(String) CODEC(ZSTD(1)),
    StatusMessage String CODEC(ZSTD(1)),
    Events Nested
    (
        Timestamp DateTime64(9),
        Name LowCardinality(String),
        Attributes Map(LowCardinality(String), String)
    ) CODEC(ZSTD(1)),
    Links Nested
    (
        TraceId String,
        SpanId String,
        TraceState String,
        Attributes Map(LowCardinality(String), String)
    ) CODEC(ZSTD(1)),

    -- Which rollout the span belongs to. Only the launcher's root span has a RolloutStatus.
    RolloutId String MATERIALIZED SpanAttributes['tracegrad.rollout.id'] CODEC(ZSTD(1)),
    RolloutAttempt UInt32 MATERIALIZED toUInt32OrZero(SpanAttributes['tracegrad.rollout.attempt']) CODEC(ZSTD(1)),
    TaskId String MATERIALIZED SpanAttributes['tracegrad.task.id'] CODEC(ZSTD(1)),
    RolloutStatus LowCardinality(String) MATERIALIZED SpanAttributes['tracegrad.rollout.status'] CODEC(ZSTD(1)),
    RolloutSplit LowCardinality(String) MATERIALIZED SpanAttributes['tracegrad.rollout.split'] CODEC(ZSTD(1)),
    RolloutStdout String MATERIALIZED SpanAttributes['tracegrad.rollout.stdout'] CODEC(ZSTD(1)),
    RolloutStderr String MATERIALIZED SpanAttributes['tracegrad.rollout.stderr'] CODEC(ZSTD(1)),
    ExitCode Nullable(Int32) MATERIALIZED toInt32OrNull(SpanAttributes['process.exit.code']) CODEC(ZSTD(1)),
    ErrorType LowCardinality(String) MATERIALIZED SpanAttributes['error.type'] CODEC(ZSTD(1)),

    -- A sampled choice is a span that says whether it may be trained on.
    IsLlmCall Bool MATERIALIZED mapContains(SpanAttributes, 'tracegrad.trainable') CODEC(ZSTD(1)),
    Trainable Bool MATERIALIZED SpanAttributes['tracegrad.trainable'] = 'true' CODEC(ZSTD(1)),
    UntrainableReason LowCardinality(String) MATERIALIZED SpanAttributes['tracegrad.untrainable.reason'] CODEC(ZSTD(1)),
    PolicyName LowCardinality(String) MATERIALIZED SpanAttributes['tracegrad.policy.name'] CODEC(ZSTD(1)),
    -- NULL when no single version is known, as for failed calls: 0 is a version.
    PolicyVersion Nullable(UInt64) MATERIALIZED toUInt64OrNull(SpanAttributes['tracegrad.policy.version']) CODEC(ZSTD(1)),
    Model LowCardinality(String) MATERIALIZED if(
        SpanAttributes['gen_ai.response.model'] != '',
        SpanAttributes['gen_ai.response.model'],
        SpanAttributes['gen_ai.request.model']) CODEC(ZSTD(1)),
    PromptTokenIds Array(UInt32)
        MATERIALIZED JSONExtract(SpanAttributes['tracegrad.prompt.token_ids'], 'Array(UInt32)') CODEC(T64, ZSTD(1)),
    ResponseTokenIds Array(UInt32)
        MATERIALIZED JSONExtract(SpanAttributes['tracegrad.response.token_ids'], 'Array(UInt32)') CODEC(T64, ZSTD(1)),
    ResponseLogprobs Array(Float32)
        MATERIALIZED JSONExtract(SpanAttributes['tracegrad.response.logprobs'], 'Array(Float32)') CODEC(ZSTD(1)),
    FinishReason LowCardinality(String)
        MATERIALIZED JSONExtractString(SpanAttributes['gen_ai.response.finish_reasons'], 1) CODEC(ZSTD(1)),
    ChoiceIndex UInt32 MATERIALIZED toUInt32OrZero(SpanAttributes['tracegrad.choice.index']) CODEC(ZSTD(1)),
    RetryCount UInt32 MATERIALIZED toUInt32OrZero(SpanAttributes['tracegrad.retry.count']) CODEC(ZSTD(1)),
    ResponseId String MATERIALIZED SpanAttributes['gen_ai.response.id'] CODEC(ZSTD(1)),
    Sampling String MATERIALIZED SpanAttributes['tracegrad.sampling'] CODEC(ZSTD(1)),

    INDEX idx_trace_id TraceId TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX idx_rollout_id RolloutId TYPE bloom_filter(0.001) GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(Timestamp)
ORDER BY (ServiceName, SpanName, toDateTime(Timestamp))
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, ttl_only_drop_parts = 1;

-- One row is the time range of one trace within one insert: where to look for a trace whose id is all one has.
CREATE TABLE IF NOT EXISTS otel.otel_traces_trace_id_ts
(
    TraceId String CODEC(ZSTD(1)),
    Start SimpleAggregateFunction(min, DateTime) CODEC(Delta, ZSTD(1)),
    End SimpleAggregateFunction(max, DateTime) CODEC(Delta, ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toDate(Start)
ORDER BY TraceId
SETTINGS ttl_only_drop_parts = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS otel.otel_traces_trace_id_ts_mv TO otel.otel_traces_trace_id_ts AS
SELECT TraceId, min(Timestamp) AS Start, max(Timestamp) AS End
FROM otel.otel_traces
WHERE TraceId != ''
GROUP BY TraceId;
