-- What stands above a call, and which agent's span it and tools are under, where rewards ask for that: see `trainer/spans.py`.
-- `id` is the hash of a span's id everywhere here, and so are those of parents and tool calls; 0 is none.

-- One row is one attempt whose root span there is: of several the one that ended last, as in `rollout_outcomes`.
CREATE OR REPLACE VIEW otel.credit_roots AS
SELECT
    RolloutId AS rollout_id, RolloutAttempt AS attempt,
    cityHash64(argMax(SpanId, (EndedAt, SpanId))) AS id
FROM otel.otel_traces
WHERE RolloutStatus != '' AND RolloutId != ''
GROUP BY RolloutId, RolloutAttempt;

-- One row is one attempt with rewards on more than its root: which calls share these, only its tree tells.
CREATE OR REPLACE VIEW otel.rewarded_trees AS
SELECT DISTINCT given.rollout_id AS rollout_id, given.attempt AS attempt
FROM otel.rewards AS given
LEFT ANTI JOIN
(
    SELECT RolloutId AS rollout_id, RolloutAttempt AS attempt, SpanId AS span_id
    FROM otel.otel_traces
    WHERE RolloutStatus != '' AND RolloutId != ''
) AS roots
    ON roots.rollout_id = given.rollout_id AND roots.attempt = given.attempt AND roots.span_id = given.span_id
WHERE given.span_id != '';

-- One row is one span id in an attempt of `rewarded_trees`: of a span, of a parent, arrived or not, of what was rewarded.
-- `call_id`: set on calls. `is_anothers`: on those of other attempts that share its trace. `asked_for`: ids of the tool calls
-- in the response of an own call.
CREATE OR REPLACE VIEW otel.credit_nodes AS
WITH (text -> if(text IN ('', '0000000000000000'), toUInt64(0), cityHash64(text))) AS hashed
SELECT
    rollout_id, attempt, id,
    max(facts.is_span) AS is_in_tree, max(facts.is_root) AS is_root, max(facts.is_rewarded) AS is_rewarded,
    -- Of several deliveries that differ the one that ended last, as in `rollout_tree`.
    if(is_root, 0, argMaxIf(facts.parent, facts.ended_ns, facts.is_span)) AS parent,
    argMaxIf(facts.is_agent, facts.ended_ns, facts.is_span) AS is_agent,
    argMaxIf(facts.is_tool, facts.ended_ns, facts.is_span) AS is_tool,
    argMaxIf(facts.tool_call_id, facts.ended_ns, facts.is_span) AS tool_call_id,
    argMaxIf(facts.started_ns, facts.ended_ns, facts.is_span) AS started_ns,
    argMaxIf(facts.trace, facts.ended_ns, facts.is_span) AS trace, max(facts.call_id) AS call_id,
    max(facts.is_anothers) AS is_anothers, max(facts.asked_for) AS asked_for
FROM
(
    SELECT
        rollouts.rollout_id AS rollout_id, rollouts.attempt AS attempt,
        hashed(if(is_parent, spans.ParentSpanId, spans.SpanId)) AS id, NOT is_parent AS is_span, false AS is_root,
        false AS is_rewarded, hashed(spans.ParentSpanId) AS parent, spans.IsAgent AS is_agent, spans.IsTool AS is_tool,
        hashed(spans.ToolCallId) AS tool_call_id, toUnixTimestamp64Nano(spans.Timestamp) AS started_ns,
        toUnixTimestamp64Nano(spans.EndedAt) AS ended_ns, cityHash64(spans.TraceId) AS trace,
        spans.IsLlmCall AND is_span AS is_call, if(is_call, spans.SpanId, '') AS call_id,
        is_call AND (spans.RolloutId != rollouts.rollout_id OR spans.RolloutAttempt != rollouts.attempt) AS is_anothers,
        if(is_call AND NOT is_anothers, arrayMap(one -> cityHash64(one), spans.ToolCallIds), []) AS asked_for
    FROM otel.otel_traces AS spans
    INNER JOIN
    (
        SELECT DISTINCT rollout_id, attempt, trace_id
        FROM otel.rollout_spans AS named
        LEFT SEMI JOIN otel.rewarded_trees AS rewarded
            ON rewarded.rollout_id = named.rollout_id AND rewarded.attempt = named.attempt
    ) AS rollouts ON rollouts.trace_id = spans.TraceId
    ARRAY JOIN [false, true] AS is_parent
    WHERE id != 0
    UNION ALL
    SELECT rollout_id, attempt, id, false, true, false, 0, false, false, 0, 0, 0, 0, false, '', false, []
    FROM otel.credit_roots
    UNION ALL
    SELECT rollout_id, attempt, hashed(span_id), false, false, true, 0, false, false, 0, 0, 0, 0, false, '', false, []
    FROM otel.rewards
    WHERE span_id != ''
) AS facts
GROUP BY rollout_id, attempt, id;

-- One row is one attempt of `rewarded_trees`, whose `nodes` `credit_nodes` has, in order of their ids. `agents`: of each the
-- id of the nearest agent's span at or above it. `above`: of each those ids above it that rewards may be on, in no order,
-- without the root, which is above all. `ends`: the id at which the way up ends.
-- Ways up are found as in `trace_agents`; what is on them, by putting ways together that are twice as long at each step.
CREATE OR REPLACE VIEW otel.credit_trees AS
WITH
    ((at, numbers) -> arraySort(arrayConcat(
        arrayMap((number, place) -> bitShiftLeft(toUInt64(place), 33) + number, numbers, arrayEnumerate(numbers)),
        arrayMap((asked, place) -> bitShiftLeft(toUInt64(asked), 33) + 4294967296 + place, at, arrayEnumerate(at))))) AS asked,
    (together -> arrayMap(answer -> toUInt32(bitAnd(answer, 4294967295)), arraySort(arrayFilter(answer -> answer != 0, arrayMap(
        (one, standing) -> if(bitTest(one, 32), bitShiftLeft(bitAnd(one, 4294967295), 32) + bitAnd(standing, 4294967295), 0),
        together, arrayFill(one -> NOT bitTest(one, 32), together)))))) AS answered,
    ((at, steps) -> arrayFold((reached, step) -> answered(asked(reached, reached)), range(steps), at)) AS end_of_way,
    -- The same of lists of ids.
    ((at, lists) -> arraySort(one -> bitShiftLeft(toUInt64(one.1), 32) + one.2, arrayConcat(
        arrayMap((list, place) -> (place, toUInt32(0), list), lists, arrayEnumerate(lists)),
        arrayMap((asked, place) -> (asked, place, CAST([], 'Array(UInt64)')), at, arrayEnumerate(at))))) AS asked_lists,
    (together -> arrayMap(answer -> answer.2, arraySort(answer -> answer.1, arrayFilter(answer -> answer.1 > 0, arrayMap(
        (one, standing) -> (one.2, standing.3),
        together, arrayFill(one -> one.2 = 0, together)))))) AS answered_lists
SELECT
    rollout_id, attempt, nodes,
    arrayMap(
        found -> if(empty(found), arraySum(node -> if(node.is_root AND node.is_agent, node.id, 0), nodes), found[1]),
        answered_lists(asked_lists(
            end_of_way(
                arrayMap((parent, node, place) -> if(node.is_agent, place, parent), parents, nodes, places), steps),
            arrayMap(node -> if(node.is_agent, [node.id], []), nodes)))) AS agents,
    arrayMap(
        (found, node) -> arrayFilter(id -> id != node.id, arrayDistinct(found)),
        arrayFold(
            (reached, step) -> (
                arrayMap(
                    (found, further) -> arrayConcat(found, further),
                    reached.1, answered_lists(asked_lists(reached.2, reached.1))),
                answered(asked(reached.2, reached.2))),
            range(toUInt32(ceil(log2(arrayCount(id -> notEmpty(id), own) + 1)))),
            (answered_lists(asked_lists(next_own, own)), next_own)).1,
        nodes) AS above,
    -- Asked for only where attempts share a trace.
    if(
        arrayExists(node -> node.is_anothers, nodes),
        arrayMap(found -> found[1], answered_lists(asked_lists(
            end_of_way(parents, steps), arrayMap(node -> [node.id], nodes)))),
        arrayMap(node -> toUInt64(0), nodes)) AS ends
FROM
(
    SELECT
        rollout_id, attempt, nodes, places, parents, steps,
        arrayMap(
            node -> if(NOT node.is_root AND (node.is_rewarded OR node.call_id != ''), [node.id], []), nodes) AS own,
        -- The next above that has an `own` or, where there is none, the end of the way.
        answered(asked(parents, end_of_way(
            arrayMap((parent, id, place) -> if(notEmpty(id), place, parent), parents, own, places), steps))) AS next_own
    FROM
    (
        WITH
            arraySort(arrayConcat(
                arrayMap((node, place) -> (node.id, 0, place), nodes, places),
                arrayMap((node, place) -> (node.parent, 1, place), nodes, places))) AS together
        SELECT
            rollout_id, attempt, nodes, arrayEnumerate(nodes) AS places,
            arrayMap(answer -> answer.2, arraySort(answer -> answer.1, arrayFilter(answer -> answer.1 != 0, arrayMap(
                (one, standing) -> if(one.2 = 0, (toUInt32(0), toUInt32(0)), (
                    one.3, if(standing.1 = one.1 AND standing.2 = 0, standing.3, one.3))),
                together, arrayFill(one -> one.2 = 0, together))))) AS parents,
            toUInt32(ceil(log2(length(nodes) + 1))) AS steps
        FROM
        (
            SELECT
                rollout_id, attempt,
                arraySort(node -> node.id, groupArray(CAST(
                    (id, parent, is_root, is_rewarded, is_agent, is_tool, tool_call_id, started_ns, trace, call_id, is_anothers,
                        asked_for),
                    'Tuple(
                        id UInt64, parent UInt64, is_root Bool, is_rewarded Bool, is_agent Bool, is_tool Bool,
                        tool_call_id UInt64, started_ns Int64, trace UInt64, call_id String, is_anothers Bool,
                        asked_for Array(UInt64))'))) AS nodes
            FROM otel.credit_nodes
            GROUP BY rollout_id, attempt
            HAVING max(is_in_tree)
        )
    )
);
