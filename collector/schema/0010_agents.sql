-- Which agent made a call: the nearest one above it in its trace, whatever instrumentation named it.

-- Who knows no more than a span's id finds it by this.
ALTER TABLE otel.otel_traces ADD INDEX IF NOT EXISTS idx_span_id SpanId TYPE bloom_filter(0.001) GRANULARITY 1;
ALTER TABLE otel.otel_traces MATERIALIZE INDEX idx_span_id;

-- Set on a span that is an agent's, or that says whose it is: the agent's own name or, failing that, the span's. Known are
-- GenAI conventions (LangChain, OpenAI Agents, AutoGen, Microsoft Agent Framework, AgentScope, Google ADK, pydantic-ai and
-- others, also the sidecar's x-tracegrad-agent), OpenInference (CrewAI, smolagents, Agno and others), Traceloop, MLflow,
-- Langfuse, Logfire, and what pydantic-ai and Google ADK said before they followed the conventions.
-- `told`: the map is large, and looking up a key reads it all; one pass leaves the few keys that matter.
ALTER TABLE otel.otel_traces ADD COLUMN IF NOT EXISTS AgentName LowCardinality(String);
ALTER TABLE otel.otel_traces MODIFY COLUMN AgentName LowCardinality(String) MATERIALIZED arrayMap(
    told -> multiIf(
        told['gen_ai.agent.name'] != '', told['gen_ai.agent.name'],
        told['openinference.span.kind'] = 'AGENT'
            OR told['gen_ai.operation.name'] IN ('invoke_agent', 'create_agent')
            OR told['traceloop.span.kind'] = 'agent'
            OR told['mlflow.spanType'] IN ('AGENT', '"AGENT"')
            OR told['langfuse.observation.type'] = 'agent'
            OR SpanName IN ('agent run', 'Agent run: {name!r}')
            OR startsWith(SpanName, 'agent_run ['),
        multiIf(
            told['agent.name'] != '', told['agent.name'],
            told['agent_name'] != '', told['agent_name'],
            told['graph.node.name'] != '', told['graph.node.name'],
            told['graph.node.id'] != '', told['graph.node.id'],
            told['traceloop.entity.name'] != '', told['traceloop.entity.name'],
            SpanName = 'Agent run: {name!r}' AND told['name'] != '', told['name'],
            told['gen_ai.agent.id'] != '', told['gen_ai.agent.id'],
            replaceRegexpOne(SpanName, '^(?:invoke_agent |create_agent |agent_run \\[([^\\]]+)\\].*)', '\\1')),
        ''),
    [mapFilter((key, value) -> key IN (
        'gen_ai.agent.name', 'gen_ai.operation.name', 'gen_ai.agent.id', 'openinference.span.kind', 'agent.name',
        'graph.node.name', 'graph.node.id', 'traceloop.span.kind', 'traceloop.entity.name', 'mlflow.spanType',
        'langfuse.observation.type', 'agent_name', 'name'), SpanAttributes)])[1] CODEC(ZSTD(1));


-- Set on a span that says in which node of a LangGraph graph it began, unless that is one that every prebuilt agent has: a
-- graph built by hand has no other agents than its nodes. Where there is an agent above, that one counts.
ALTER TABLE otel.otel_traces ADD COLUMN IF NOT EXISTS GraphNode LowCardinality(String) MATERIALIZED arrayMap(
    told -> if(empty(told), '', arrayMap(
        (agent, path) -> if(agent != '', agent, arrayLast(
            node -> node NOT IN (
                '', 'agent', 'model', 'model_request', 'call_model', 'llm', 'tools', 'pre_model_hook', 'post_model_hook',
                'generate_structured_response', '__start__', '__end__'),
            arrayMap(step -> splitByChar(':', step)[1], splitByChar('|', path)))),
        [arrayFirst(text -> text != '', [
            told['lc_agent_name'], told['traceloop.association.properties.lc_agent_name'],
            JSONExtractString(told['metadata'], 'lc_agent_name')])],
        [arrayFirst(text -> text != '', [
            told['langgraph_checkpoint_ns'], told['langgraph_node'],
            told['traceloop.association.properties.langgraph_checkpoint_ns'],
            told['traceloop.association.properties.langgraph_node'],
            JSONExtractString(told['metadata'], 'langgraph_checkpoint_ns'),
            JSONExtractString(told['metadata'], 'langgraph_node')])])[1]),
    [mapFilter((key, value) -> key IN (
        'lc_agent_name', 'langgraph_checkpoint_ns', 'langgraph_node', 'metadata',
        'traceloop.association.properties.lc_agent_name', 'traceloop.association.properties.langgraph_checkpoint_ns',
        'traceloop.association.properties.langgraph_node'), SpanAttributes)])[1] CODEC(ZSTD(1));

-- For the rows that are there already, in the background.
ALTER TABLE otel.otel_traces MATERIALIZE COLUMN AgentName, MATERIALIZE COLUMN GraphNode;

-- One row is one trace, whose spans are known by their places in arrays. `parents`: the place of each span's parent or, where
-- that is not there, its own. `missing`: a number that tells a parent that is not there from others; 0 for none. A span that
-- was delivered twice has two places.
-- `spans` is one array of all that is told of a span, because the order of two need not be the same: where a column is stored
-- sparsely, groupArray takes what it holds first.
-- To look something up, all that stands somewhere and all who ask are sorted together, and each who asks takes what stands
-- before it: a lambda that held an array would copy it for every span. `asked`: an id, whether it is asked for, and a place.
CREATE OR REPLACE VIEW otel.trace_spans AS
SELECT
    trace_id, spans, places,
    toUInt32(ceil(log2(length(places) + 1))) AS steps,
    arrayMap((parent, place) -> if(parent = 0, place, parent), known_parents, places) AS parents,
    arrayMap(
        (parent, span) -> if(parent = 0 AND span.2 != 0, toUInt32(1 + span.2 % 4294967291), toUInt32(0)),
        known_parents, spans) AS missing
FROM
(
    WITH
        arraySort(arrayConcat(
            arrayMap((span, place) -> bitShiftLeft(toUInt128(span.1), 64) + place, spans, places),
            arrayMap((span, place) -> bitShiftLeft(toUInt128(span.2), 64) + 4294967296 + place, spans, places))) AS asked,
        arrayFill(one -> toUInt64(one) < 4294967296, asked) AS standing
    SELECT
        trace_id, spans, arrayEnumerate(spans) AS places,
        arrayMap(answer -> toUInt32(bitAnd(answer, 4294967295)), arraySort(arrayFilter(answer -> answer != 0, arrayMap(
            (one, found) -> if(toUInt64(one) < 4294967296, 0, bitShiftLeft(bitAnd(toUInt64(one), 4294967295), 32) + if(
                bitShiftRight(one, 64) = bitShiftRight(found, 64) AND toUInt64(found) < 4294967296, toUInt64(found), 0)),
            asked, standing)))) AS known_parents
    FROM
    (
        SELECT
            TraceId AS trace_id,
            -- Hashes of its id and of its parent's, its id where it is a sampled choice, agent, node, start, end.
            groupArray((
                cityHash64(SpanId),
                if(ParentSpanId IN ('', '0000000000000000'), 0, cityHash64(ParentSpanId)),
                if(IsLlmCall, SpanId, ''),
                toString(AgentName),
                toString(GraphNode),
                toUnixTimestamp64Nano(Timestamp),
                toUnixTimestamp64Nano(Timestamp) + toInt64(Duration))) AS spans
        FROM otel.otel_traces
        GROUP BY TraceId
    )
);

-- One row is one trace. `agents`: its sampled choices that are under an agent, and whose they are. That is told by, in this
-- order: the nearest agent above, or the span itself; the nearest node above; and where the way up ends at a parent that is
-- not there, the innermost agent that was at work when the call began, unless that parent is above the agent too, or agents
-- were at work side by side.
-- Ways up are found by pointer doubling: each step goes on from where the last one led, for all spans at once, so there are
-- as many steps as the number of spans has binary digits, however deep the tree; in a circle they lead nowhere.
CREATE OR REPLACE VIEW otel.trace_agents AS
WITH
    -- What stands at the places `at`, of `numbers`. In 64 bits: a place, whether it is asked for, and a number or who asks.
    ((at, numbers) -> arraySort(arrayConcat(
        arrayMap((number, place) -> bitShiftLeft(toUInt64(place), 33) + number, numbers, arrayEnumerate(numbers)),
        arrayMap((asked, place) -> bitShiftLeft(toUInt64(asked), 33) + 4294967296 + place, at, arrayEnumerate(at))))) AS asked,
    (together -> arrayMap(answer -> toUInt32(bitAnd(answer, 4294967295)), arraySort(arrayFilter(answer -> answer != 0, arrayMap(
        (one, standing) -> if(bitTest(one, 32), bitShiftLeft(bitAnd(one, 4294967295), 32) + bitAnd(standing, 4294967295), 0),
        together, arrayFill(one -> NOT bitTest(one, 32), together)))))) AS answered,
    ((at, steps) -> arrayFold((reached, step) -> answered(asked(reached, reached)), range(steps), at)) AS end_of_way,
    -- The same of texts: `texts` has a place, and what stands there, of those that have a text.
    ((at, texts) -> arraySort(one -> bitShiftLeft(toUInt64(one.1), 32) + one.2, arrayConcat(
        arrayMap(one -> (one.1, toUInt32(0), one.2), arrayFilter(one -> one.2 != '', texts)),
        arrayMap((place, number) -> (place, number, ''), at, arrayEnumerate(at))))) AS asked_texts,
    (together -> arrayMap(answer -> answer.2, arraySort(answer -> answer.1, arrayFilter(answer -> answer.1 > 0, arrayMap(
        (one, standing) -> (one.2, if(standing.1 = one.1, standing.3, '')),
        together, arrayFill(one -> one.2 = 0, together)))))) AS answered_texts
SELECT
    trace_id,
    arrayConcat(
        arrayFilter(call -> call.2 != '', arrayZip(calls.1, calls.2)),
        arrayFilter(guess -> guess.2 != '', arrayMap(
            orphan -> (orphan.1, arrayMap(
                running -> if(length(arrayDistinct(running.5)) = length(running), running[-1].3, ''),
                [arrayFilter(
                    agent -> agent.1 <= orphan.3 AND orphan.3 <= agent.2 AND agent.4 != orphan.4,
                    -- Who sends traces of a size that makes this dear gets no guess.
                    if(length(orphans) * length(at_work) < 1000000, at_work, []))])[1]),
            orphans))
    ) AS agents
FROM
(
    SELECT
        trace_id, calls,
        arrayFilter(call -> call.2 = '' AND call.4 != 0, calls) AS orphans,
        -- Which agents were at work: from, to, name, the missing parent above, what is next above; in order of time.
        arraySort(arrayDistinct(arrayFilter(one -> one.3 != '' AND notEmpty(orphans), arrayZip(
            spans.6, spans.7, names, missing_above,
            arrayMap(
                (parent, place, over) -> if(parent = place, 0, over),
                parents, places, arrayResize(answered(asked(if(empty(orphans), [], parents), above)), length(places))))))) AS at_work
    FROM
    (
        SELECT
            trace_id, spans, names, parents, places, above, missing_above,
            -- Span, agent or node, start, the missing parent above.
            arrayZip(
                chosen.1,
                arrayMap(
                    (agent, node) -> if(agent != '', agent, node),
                    answered_texts(asked_texts(chosen.2, arrayZip(places, names))),
                    answered_texts(asked_texts(chosen.3, arrayZip(places, nodes)))),
                chosen.4,
                chosen.5) AS calls
        FROM
        (
            SELECT
                trace_id, spans, names, nodes, parents, places, above, missing_above,
                arrayFilter(
                    one -> one.1 != '',
                    arrayZip(spans.3, above, node_above, spans.6, missing_above)) AS chosen
            FROM
            (
                -- Where there are no nodes, and where no parent is missing, there is nothing to look for.
                WITH
                    if(arrayExists(node -> node != '', nodes), parents, []) AS parents_with_nodes,
                    if(arrayExists(number -> number != 0, missing), parents, []) AS parents_with_missing
                SELECT
                    trace_id, spans, spans.4 AS names, spans.5 AS nodes, places, parents,
                    end_of_way(
                        arrayMap((parent, name, place) -> if(name != '', place, parent), parents, names, places), steps) AS above,
                    arrayResize(end_of_way(arrayMap(
                        (parent, node, place) -> if(node != '', place, parent),
                        parents_with_nodes,
                        arrayResize(nodes, length(parents_with_nodes)),
                        arrayEnumerate(parents_with_nodes)), steps), length(places)) AS node_above,
                    arrayResize(
                        answered(asked(end_of_way(parents_with_missing, steps), missing)), length(places)) AS missing_above
                FROM otel.trace_spans
                WHERE arrayExists(span -> span.3 != '', spans) AND arrayExists(span -> span.4 != '' OR span.5 != '', spans)
            )
        )
    )
);

-- One row is one sampled choice, and what other spans tell of it: its agent, and the task of its rollout's root span; each is
-- empty where there is none. A filter on anything else finds the choices first, and by them their traces and rollouts.
-- `matched_id` is the span's id once more: a filter on span_id would otherwise be copied to the traces, too late to spare
-- any, and keep the one that could from getting there.
CREATE OR REPLACE VIEW otel.call_contexts AS
SELECT
    calls.rollout_id AS rollout_id, calls.attempt AS attempt, calls.trace_id AS trace_id, calls.span_id AS span_id,
    calls.started_at AS started_at, toLowCardinality(found.agent) AS agent, calls.task_id AS task_id
FROM
(
    SELECT trace_id, arrayJoin(agents) AS one, one.1 AS span_id, one.2 AS agent
    FROM otel.trace_agents
) AS found
RIGHT ANY JOIN
(
    SELECT
        calls.RolloutId AS rollout_id, calls.RolloutAttempt AS attempt, calls.TraceId AS trace_id, calls.SpanId AS span_id,
        concat(calls.SpanId, '') AS matched_id, calls.Timestamp AS started_at, roots.TaskId AS task_id
    FROM
    (
        SELECT RolloutId, RolloutAttempt, TaskId FROM otel.otel_traces WHERE RolloutStatus != '' AND RolloutId != ''
    ) AS roots
    RIGHT ANY JOIN
    (
        SELECT RolloutId, RolloutAttempt, TraceId, SpanId, Timestamp FROM otel.otel_traces WHERE IsLlmCall
    ) AS calls ON calls.RolloutId = roots.RolloutId AND calls.RolloutAttempt = roots.RolloutAttempt
) AS calls ON calls.trace_id = found.trace_id AND calls.matched_id = found.span_id;

-- `call_contexts` has taken its place.
DROP VIEW IF EXISTS otel.agent_spans;
