-- One row is one interval and counter of what was dropped, refused or lost on the way: by how much it grew. Counters are those
-- of the /metrics pages of the sidecar and `tracegrad collector`, which otel-config/collector.yaml reads into this table.
SELECT $__timeInterval(at) AS time, series, sum(if(difference < 0, total, difference)) AS lost
FROM
(
    SELECT
        TimeUnix AS at,
        concat(
            replaceAll(replaceAll(MetricName, 'tracegrad_', ''), '_total', ''), ' ',
            arrayStringConcat(mapValues(Attributes), ' ')) AS series,
        Value AS total,
        Value - lagInFrame(Value, 1, Value) OVER (
            PARTITION BY ServiceName, toString(ResourceAttributes), MetricName, toString(Attributes) ORDER BY TimeUnix
            ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS difference
    FROM otel.otel_metrics_sum
    WHERE $__timeFilter(TimeUnix) AND (
        MetricName = 'tracegrad_sidecar_spans_total' AND startsWith(Attributes['state'], 'dropped')
        OR MetricName = 'tracegrad_collector_requests_total' AND Attributes['outcome'] != 'stored'
        OR MetricName IN ('tracegrad_collector_lost_requests_total', 'tracegrad_collector_spool_damaged_total'))
)
GROUP BY time, series
HAVING lost > 0
ORDER BY time, series
