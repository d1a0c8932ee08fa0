-- What views of rollouts need: evaluations by rollout, and what was chosen for the store.

-- A filter on a rollout finds the evaluations that name it by this.
ALTER TABLE otel.otel_logs ADD INDEX IF NOT EXISTS idx_rollout_id RolloutId TYPE bloom_filter(0.001) GRANULARITY 1;
ALTER TABLE otel.otel_logs MATERIALIZE INDEX idx_rollout_id;

-- One row is one choice of whoever runs the store; the newest of a name counts. Names:
-- `lost_after_s`: a rollout that has neither a root span nor a reward is lost when nothing was heard of it for so long.
CREATE TABLE IF NOT EXISTS otel.view_settings
(
    name LowCardinality(String),
    value Float64,
    set_at DateTime64(6) DEFAULT now64(6)
)
ENGINE = ReplacingMergeTree(set_at)
ORDER BY name
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- One row. What holds where nothing else was chosen is here and nowhere else.
CREATE OR REPLACE VIEW otel.chosen_settings AS
SELECT ifNull(argMaxOrNullIf(value, set_at, name = 'lost_after_s'), 3600) AS lost_after_s
FROM otel.view_settings;
