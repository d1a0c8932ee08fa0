-- One row is one list of tool definitions (JSON text) that calls of the given rollouts have.
WITH SpanAttributes['gen_ai.tool.definitions'] AS offered
SELECT sipHash64(offered) AS definitions, any(offered) AS text
FROM otel_traces
WHERE RolloutId IN {rollout_ids:Array(String)} AND offered != ''
GROUP BY definitions
