-- One row: how many spans of a rollout are there that nobody imported.
SELECT count()
FROM otel_traces
WHERE RolloutId = {rollout_id:String} AND SpanAttributes['tracegrad.import.source'] = ''
