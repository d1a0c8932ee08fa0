-- `credits`: what each transition is worth by every scheme, as `trainer/credit.py` has it. docs/credit.md explains them.

-- One row is one span id that an attempt knows of: of its spans, of parents that never arrived, of what was rewarded. `id`,
-- `parent` and `tool_call_id` are hashes, 0 for none. `is_over`: some span says that this one is its parent. `score`: the
-- rewards given to it. `policy`, `agent` and `trace_id` are of calls that their agent received, `asked_for` of any call.
CREATE OR REPLACE VIEW otel.credit_nodes AS
WITH (text -> if(text IN ('', '0000000000000000'), toUInt64(0), cityHash64(text))) AS hashed
SELECT
    rollout_id, attempt, id,
    max(facts.is_root) AS is_root, max(facts.is_over) AS is_over, max(facts.is_rewarded) AS is_rewarded,
    argMaxIf((facts.parent, facts.is_agent, facts.is_tool, facts.tool_call_id, facts.started_ns), facts.ended_ns, facts.is_span) AS span,
    sumKahan(facts.score) AS score,
    max(facts.span_id) AS span_id, max(facts.policy) AS policy, max(facts.agent) AS agent, max(facts.trace_id) AS trace_id,
    max(facts.call_ns) AS call_ns, max(facts.asked_for) AS asked_for
FROM
(
    SELECT
        rollouts.rollout_id AS rollout_id, rollouts.attempt AS attempt, arrayJoin([false, true]) AS is_over,
        hashed(if(is_over, spans.ParentSpanId, spans.SpanId)) AS id, NOT is_over AS is_span, false AS is_root,
        hashed(spans.ParentSpanId) AS parent, spans.IsAgent AS is_agent, spans.IsTool AS is_tool,
        hashed(spans.ToolCallId) AS tool_call_id, toUnixTimestamp64Nano(spans.Timestamp) AS started_ns,
        started_ns + toInt64(spans.Duration) AS ended_ns, false AS is_rewarded, 0. AS score, '' AS span_id, '' AS policy,
        '' AS agent, '' AS trace_id, toInt64(0) AS call_ns, CAST([], 'Array(UInt64)') AS asked_for
    FROM otel.otel_traces AS spans
    INNER JOIN (SELECT DISTINCT rollout_id, attempt, trace_id FROM otel.rollout_spans) AS rollouts
        ON rollouts.trace_id = spans.TraceId
    WHERE id != 0
    UNION ALL
    -- Of several roots the one that ended last, as in `rollout_outcomes`.
    SELECT
        RolloutId, RolloutAttempt, false, hashed(argMax(SpanId, (addNanoseconds(Timestamp, Duration), SpanId))), false, true,
        0, false, false, 0, 0, 0, false, 0., '', '', '', '', 0, []
    FROM otel.otel_traces
    WHERE RolloutStatus != '' AND RolloutId != ''
    GROUP BY RolloutId, RolloutAttempt
    UNION ALL
    SELECT
        rollout_id, attempt, false, hashed(span_id), false, false,
        0, false, false, 0, 0, 0, true, score, '', '', '', '', 0, []
    FROM otel.rewards
    UNION ALL
    SELECT
        rollout_id, attempt, false, hashed(span_id), false, false,
        0, false, false, 0, 0, 0, false, 0., span_id, policy, agent, trace_id, toUnixTimestamp64Nano(started_at), []
    FROM otel.received_calls
    UNION ALL
    SELECT
        rollout_id, attempt, false, hashed(span_id), false, false,
        0, false, false, 0, 0, 0, false, 0., span_id, '', '', '', toUnixTimestamp64Nano(started_at),
        arrayMap(one -> cityHash64(one), tool_call_ids)
    FROM otel.recorded_calls
    WHERE notEmpty(tool_call_ids)
) AS facts
GROUP BY rollout_id, attempt, id;

-- One row is one attempt that has transitions. `nodes`: what `credit_nodes` has of it, by id. `agents`: of each node the id
-- of the nearest agent's span at or above it, 0 for none. `above`: of each the ids above it that rewards may be on, in no
-- order, without the root, which is above all. Both are looked for only where there is a reward that depends on them: on a
-- tool, or on something else between root and calls.
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
        arrayResize(answered_lists(asked_lists(
            end_of_way(
                arrayMap((parent, node, place) -> if(node.is_agent, place, parent), parents, tree, places), steps),
            arrayMap(node -> if(node.is_agent, [node.id], []), tree))), length(nodes))) AS agents,
    arrayMap(
        (found, node) -> arrayFilter(id -> id != node.id, arrayDistinct(found)),
        arrayResize(arrayFold(
            (reached, step) -> (
                arrayMap(
                    (found, further) -> arrayConcat(found, further),
                    reached.1, answered_lists(asked_lists(reached.2, reached.1))),
                answered(asked(reached.2, reached.2))),
            range(toUInt32(ceil(log2(n_marked + 1)))),
            (answered_lists(asked_lists(next_marked, own)), next_marked)).1, length(nodes)),
        nodes) AS above
FROM
(
    SELECT
        rollout_id, attempt, nodes, tree, places, parents, steps,
        arrayMap(
            node -> if(
                node.is_over AND NOT node.is_root AND (node.is_rewarded OR node.span_id != ''), [node.id], []),
            tree) AS own,
        arrayCount(id -> notEmpty(id), own) AS n_marked,
        -- Where nothing on the way is marked, there is nothing to look for.
        if(n_marked = 0, parents, answered(asked(parents, end_of_way(
            arrayMap((parent, id, place) -> if(notEmpty(id), place, parent), parents, own, places), steps)))) AS next_marked
    FROM
    (
        WITH
            arraySort(arrayConcat(
                arrayMap((node, place) -> (node.id, 0, place), tree, places),
                arrayMap((node, place) -> (node.parent, 1, place), tree, places))) AS together
        SELECT
            rollout_id, attempt, nodes, tree, arrayEnumerate(tree) AS places,
            arrayMap(answer -> answer.2, arraySort(answer -> answer.1, arrayFilter(answer -> answer.1 != 0, arrayMap(
                (one, standing) -> if(one.2 = 0, (toUInt32(0), toUInt32(0)), (
                    one.3, if(standing.1 = one.1 AND standing.2 = 0, standing.3, one.3))),
                together, arrayFill(one -> one.2 = 0, together))))) AS parents,
            toUInt32(ceil(log2(length(tree) + 1))) AS steps
        FROM
        (
            SELECT
                rollout_id, attempt,
                arraySort(node -> node.id, groupArray(CAST(
                    (id, if(is_root, 0, span.1), is_root, is_over, is_rewarded, span.2, span.3, span.4, span.5, score, span_id,
                        policy, agent, trace_id, call_ns, asked_for),
                    'Tuple(
                        id UInt64, parent UInt64, is_root Bool, is_over Bool, is_rewarded Bool, is_agent Bool, is_tool Bool,
                        tool_call_id UInt64, started_ns Int64, score Float64, span_id String,
                        policy String, agent String, trace_id String, call_ns Int64, asked_for Array(UInt64))'))) AS nodes,
                if(arrayExists(
                    node -> node.is_rewarded AND NOT node.is_root AND (node.is_tool OR node.is_over), nodes), nodes, []) AS tree
            FROM otel.credit_nodes
            GROUP BY rollout_id, attempt
            HAVING max(policy) != ''
        )
    )
);

-- One row is one attempt and one policy of its transitions. `calls`: these, each with the ids of `above`. `rewards`: id and score
-- of all that was rewarded; 0 stands for the attempt as a whole, and what was given to a tool is on the call that asked
-- for it. That is told by the tool call's id: of several calls that hold it by the agent, then by the order. Where no
-- call does, it is the last of this policy that the tool's agent made before.
CREATE OR REPLACE VIEW otel.credit_rewards AS
WITH
    'Array(Tuple(key UInt64, agent UInt64, at_ns Int64, is_tool Bool, span_id String, id UInt64))' AS events,
    -- Of each tool, by its id, the call with equal keys that began last before it, or first after it; 0 for none.
    ((one, other) -> (
        if(one.is_tool, one.id, 0),
        if(NOT other.is_tool AND other.key = one.key AND other.agent = one.agent, other.id, 0))) AS matched,
    (found -> arrayMap(answer -> answer.2, arraySort(arrayFilter(answer -> answer.1 != 0, found)))) AS of_tools,
    (told -> of_tools(arrayMap((one, other) -> matched(one, other), told, arrayFill(one -> NOT one.is_tool, told)))) AS last_before,
    (told -> of_tools(arrayMap(
        (one, other) -> matched(one, other), told, arrayReverseFill(one -> NOT one.is_tool, told)))) AS first_after
SELECT
    rollout_id, attempt, policy, calls,
    arrayConcat(others, arrayMap(
        (tool, a, b, c, d, e) -> (arrayFirst(id -> id != 0, [a, b, c, d, e, tool.1.id]), tool.1.score),
        tools, last_before(of_agent), first_after(of_agent), last_before(of_anybody), first_after(of_anybody),
        last_before(of_policy))) AS rewards
FROM
(
    SELECT
        rollout_id, attempt, policy, tools,
        arrayFilter(call -> call.1.policy = policy, arrayZip(nodes, agents, above)) AS calls,
        arrayMap(
            node -> (if(node.is_root, 0, node.id), node.score),
            arrayFilter(node -> node.is_rewarded AND NOT node.is_tool, nodes)) AS others,
        arraySort(CAST(arrayConcat(holders, arrayMap(
            tool -> (tool.1.tool_call_id, tool.2, tool.1.started_ns, true, '', tool.1.id), tools)), events)) AS of_agent,
        arraySort(CAST(arrayMap(one -> (one.1, 0, one.3, one.4, one.5, one.6), of_agent), events)) AS of_anybody,
        arraySort(CAST(arrayConcat(
            arrayMap(call -> (0, call.2, call.1.call_ns, false, call.1.span_id, call.1.id), if(empty(tools), [], calls)),
            arrayMap(tool -> (0, tool.2, tool.1.started_ns, true, '', tool.1.id), tools)), events)) AS of_policy
    FROM
    (
        SELECT
            rollout_id, attempt, nodes, agents, above,
            arrayJoin(arrayDistinct(arrayFilter(name -> name != '', nodes.policy))) AS policy,
            arrayFilter(tool -> tool.1.is_tool AND tool.1.is_rewarded, arrayZip(nodes, agents)) AS tools,
            arrayFlatten(arrayMap(
                call -> arrayMap(
                    asked_for -> (asked_for, call.2, call.1.call_ns, false, call.1.span_id, call.1.id), call.1.asked_for),
                if(empty(tools), [], arrayZip(nodes, agents)))) AS holders
        FROM otel.credit_trees
    )
);

-- One row is one transition, and its credit by each scheme, discounted by `gamma` (0 to 1) per call: `credits(gamma = 0.9)`.
CREATE OR REPLACE VIEW otel.credits AS
SELECT
    rollout_id, attempt, told.1.6 AS agent, told.1.5 AS trace_id, told.1.2 AS span_id, policy,
    fromUnixTimestamp64Nano(told.1.1) AS started_at, identical, told.2 AS discounted, told.1.3 AS step, told.1.4 AS hierarchical
FROM
(
    WITH
        arrayPushBack(
            arrayPopBack(calls.3),
            arrayReduce('sumKahan', arrayPushBack(arrayMap(reward -> -reward, arrayPopBack(calls.3)), identical))) AS own
    SELECT
        rollout_id, attempt, policy, ret AS identical,
        arraySort(groupArray((call_ns, span_id, step, hierarchical, trace_id, agent))) AS calls,
        -- Each reward is added to the sums before it: those of the next call, of the next two, of the next four, ...
        arrayJoin(arrayZip(calls, arrayFold(
            (sums, n) -> arrayMap(
                (here, ahead) -> here + pow({gamma:Float64}, n) * ahead,
                sums, arrayResize(arraySlice(sums, n + 1), length(sums), 0.)),
            arrayMap(power -> bitShiftLeft(toUInt64(1), power), range(toUInt32(ceil(log2(length(calls)))))),
            own))) AS told
    FROM
    (
        SELECT
            rollout_id, attempt, policy, ret, call_ns, span_id, trace_id, agent,
            sumKahanIf(reward, is_itself) AS step,
            sumKahan(pow({gamma:Float64}, n_later) * reward) AS hierarchical
        FROM
        (
            SELECT
                *,
                sumKahan(score) OVER shared AS reward,
                countIf(span_id != '') OVER shared
                    - countIf(span_id != '') OVER (PARTITION BY rollout_id, attempt, policy, id ORDER BY call_ns) AS n_later
            FROM
            (
                -- Each call, with itself, with each id above it, and with the attempt as a whole; and each reward.
                SELECT
                    rollout_id, attempt, policy, ret, one.1 AS id, one.2 AS call_ns, one.3 AS span_id, one.4 AS trace_id,
                    one.5 AS agent, one.6 AS is_itself, one.7 AS score
                FROM
                (
                    SELECT
                        rollout_id, attempt, policy, arrayReduce('sumKahan', rewards.2) AS ret,
                        arrayJoin(arrayConcat(
                            arrayMap(reward -> (reward.1, toInt64(0), '', '', '', false, reward.2), rewards),
                            arrayFlatten(arrayMap(
                                call -> arrayMap(
                                    id -> (id, call.1.call_ns, call.1.span_id, call.1.trace_id, call.1.agent, id = call.1.id, 0.),
                                    arrayConcat([call.1.id, toUInt64(0)], call.3)),
                                calls)))) AS one
                    FROM otel.credit_rewards
                )
            )
            WINDOW shared AS (PARTITION BY rollout_id, attempt, policy, id)
        )
        WHERE span_id != ''
        GROUP BY rollout_id, attempt, policy, ret, call_ns, span_id, trace_id, agent
    )
    GROUP BY rollout_id, attempt, policy, ret
);
