-- Tables of this file keep the newest of equal keys: writing a row again is harmless. Read them with FINAL.

-- One row is one published version of a policy's weights.
CREATE TABLE IF NOT EXISTS otel.policies
(
    name LowCardinality(String),
    version UInt64,
    sha256 String,
    path String,
    parent_version Nullable(UInt64),
    created_at DateTime64(6) DEFAULT now64(6),
    step_id String
)
ENGINE = ReplacingMergeTree
ORDER BY (name, version)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- One row is one optimiser step: what it started from, what it made, how, and how it went.
CREATE TABLE IF NOT EXISTS otel.train_steps
(
    step_id String,
    job LowCardinality(String),
    policy LowCardinality(String),
    from_version UInt64,
    to_version UInt64,
    algorithm LowCardinality(String),
    -- `config`: the whole train.toml, `metrics`: name -> number; both as JSON text.
    config String CODEC(ZSTD(1)),
    metrics String CODEC(ZSTD(1)),
    started_at DateTime64(6),
    ended_at DateTime64(6)
)
ENGINE = ReplacingMergeTree
ORDER BY step_id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- One row is one sampled choice that one step considered. `used` is false when it was dropped, and `drop_reason` says why.
CREATE TABLE IF NOT EXISTS otel.train_samples
(
    step_id String CODEC(ZSTD(1)),
    span_id String CODEC(ZSTD(1)),
    trace_id String CODEC(ZSTD(1)),
    rollout_id String CODEC(ZSTD(1)),
    agent LowCardinality(String),
    reward Nullable(Float64),
    advantage Nullable(Float64),
    n_tokens UInt32,
    used Bool,
    drop_reason LowCardinality(String),
    attempt UInt32,
    INDEX idx_rollout_id rollout_id TYPE bloom_filter(0.001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree
ORDER BY (step_id, rollout_id, attempt, trace_id, span_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
