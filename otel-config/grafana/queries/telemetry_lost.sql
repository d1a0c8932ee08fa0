-- One row is one interval and reason why spans, requests or records were dropped, refused or set aside: how many. Counts
-- are those of the /metrics pages of the sidecar and `tracegrad collector`, which otel-config/collector.yaml reads into
-- these tables. They begin at 0 with each process.
SELECT $__timeInterval(at) AS time, series, sum(if(difference < 0, total, difference)) AS lost
FROM
(
    SELECT
        TimeUnix AS at,
        concat(
            replaceAll(replaceAll(MetricName, 'tracegrad_', ''), '_total', ''), ' ',
            arrayStringConcat(mapValues(mapSort(Attributes)), ' ')) AS series,
        Value AS total,
        Value - lagInFrame(Value, 1, Value) OVER (
            PARTITION BY ServiceName, toString(ResourceAttributes), MetricName, toString(Attributes) ORDER BY TimeUnix
            ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS difference
    FROM
    (
        SELECT ServiceName, ResourceAttributes, MetricName, Attributes, TimeUnix, Value
        FROM otel.otel_metrics_sum
        WHERE $__timeFilter(TimeUnix) AND (
            MetricName = 'tracegrad_sidecar_spans_total' AND startsWith(Attributes['state'], 'dropped')
            OR MetricName = 'tracegrad_collector_requests_total' AND Attributes['outcome'] != 'stored')
        UNION ALL
        SELECT ServiceName, ResourceAttributes, MetricName, Attributes, TimeUnix, Value
        FROM otel.otel_metrics_gauge
        WHERE $__timeFilter(TimeUnix) AND MetricName = 'tracegrad_collector_spool_losses'
            AND Attributes['kind'] IN ('torn', 'damaged_records', 'refused_records')
    )
)
GROUP BY time, series
HAVING lost > 0
ORDER BY time, series
