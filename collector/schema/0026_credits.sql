-- `credits`: what each transition is worth by every scheme, as `trainer/credit.py` has it. docs/credit.md explains them.
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

-- One row is one attempt and one policy of its transitions, which are `calls`, each with the ids of `above`. `rewards`: an id
-- and a score; id 0 stands for the attempt as a whole, and what was given to a tool is on the call that asked for it.
-- That is told by the tool call's id: of several calls that hold it by the agent, then by the order. Where no call does,
-- it is the last of this policy that the tool's agent made before, unless another attempt in the same trace may have asked.
CREATE OR REPLACE VIEW otel.credit_rewards AS
WITH
    'Array(Tuple(key UInt64, agent UInt64, at_ns Int64, is_tool Bool, span_id String, id UInt64))' AS events,
    -- Of each tool, by its id, the call with equal keys that began last before it, or first after it; 0 for none.
    ((one, other) -> (
        if(one.is_tool, one.id, 0),
        if(NOT other.is_tool AND other.key = one.key AND other.agent = one.agent, other.id, 0))) AS matched,
    (found -> arrayMap(answer -> answer.2, arraySort(arrayFilter(answer -> answer.1 != 0, found)))) AS of_tools,
    (told -> of_tools(arrayMap(
        (one, other) -> matched(one, other), told, arrayFill(one -> NOT one.is_tool, told)))) AS last_before,
    (told -> of_tools(arrayMap(
        (one, other) -> matched(one, other), told, arrayReverseFill(one -> NOT one.is_tool, told)))) AS first_after
SELECT
    rollout_id, attempt, policy, calls, arrayReduce('sumKahan', given.2) AS ret,
    -- Each reward behind the tool that it is on, if any, and then the call that asked for that.
    arraySort(arrayConcat(
        arrayMap(
            (tool, a, b, c, d, e) -> (tool.id, false, arrayFirst(id -> id != 0, [a, b, c, d, e, tool.id]), 0.),
            tools, last_before(of_agent), first_after(of_agent), last_before(of_anybody), first_after(of_anybody),
            last_before(of_policy)),
        arrayMap(one -> (one.1, true, if(one.1 = root_id, 0, one.1), one.2), given))) AS told,
    arrayFilter(reward -> reward.1, arrayMap(
        (one, tool) -> (one.2, if(NOT tool.2 AND tool.1 = one.1, tool.3, one.3), one.4),
        told, arrayFill(one -> NOT one.2, told))) AS rewards
FROM
(
    SELECT
        rollout_id, attempt, root_id, given, arrayJoin(arrayDistinct(all_calls.policy)) AS policy, tools,
        arrayFilter(call -> call.policy = policy, all_calls) AS calls,
        arraySort(CAST(arrayConcat(holders, arrayMap(
            tool -> (tool.tool_call_id, tool.agent, tool.started_ns, true, '', tool.id), tools)), events)) AS of_agent,
        arraySort(CAST(arrayMap(one -> (one.1, 0, one.3, one.4, one.5, one.6), of_agent), events)) AS of_anybody,
        arraySort(CAST(arrayConcat(
            arrayMap(call -> (0, call.agent_id, call.at_ns, false, call.span_id, call.id), if(empty(tools), [], calls)),
            arrayMap(
                tool -> (toUInt64(tool.may_be_anothers), tool.agent, tool.started_ns, true, '', tool.id), tools)), events)) AS of_policy
    FROM
    (
        WITH
            -- Each call behind its place in the tree, where there is one.
            arraySort(one -> (one.1, one.2), arrayConcat(
                arrayMap(place -> (place.1, toUInt64(0), place.2, place.3), placed),
                arrayMap(
                    (call, number) -> (call.1, toUInt64(number), toUInt64(0), CAST([], 'Array(UInt64)')),
                    received, arrayEnumerate(received)))) AS told,
            arraySort(one -> one.1, arrayFilter(one -> one.1 != 0, arrayMap(
                (one, place) -> (
                    one.2, if(place.1 = one.1, place.3, 0), if(place.1 = one.1, place.4, CAST([], 'Array(UInt64)'))),
                told, arrayFill(one -> one.2 = 0, told)))) AS places
        SELECT
            rollout_id, attempt, root_id, given, tools, holders,
            CAST(
                arrayMap((call, place) -> (call.1, call.2, call.3, call.4, call.5, call.6, place.2, place.3), received, places),
                'Array(Tuple(
                    id UInt64, policy String, at_ns Int64, span_id String, trace_id String, agent String, agent_id UInt64,
                    above Array(UInt64)))') AS all_calls
        FROM
        (
            SELECT
                rollout_id, attempt, max(facts.root) AS root_id, groupArrayArray(facts.received) AS received,
                groupArrayArray(facts.given) AS given, groupArrayArray(facts.placed) AS placed,
                CAST(
                    arraySort(groupArrayArray(facts.tools)),
                    'Array(Tuple(id UInt64, agent UInt64, tool_call_id UInt64, started_ns Int64, may_be_anothers Bool))') AS tools,
                groupArrayArray(facts.holders) AS holders
            FROM
            (
                SELECT
                    rollout_id, attempt, toUInt64(0) AS root,
                    [(cityHash64(span_id), toString(policy), toUnixTimestamp64Nano(started_at), span_id, trace_id,
                        toString(agent))] AS received,
                    CAST([], 'Array(Tuple(UInt64, Float64))') AS given,
                    CAST([], 'Array(Tuple(UInt64, UInt64, Array(UInt64)))') AS placed,
                    CAST([], 'Array(Tuple(UInt64, UInt64, UInt64, Int64, Bool))') AS tools,
                    CAST([], 'Array(Tuple(UInt64, UInt64, Int64, Bool, String, UInt64))') AS holders
                FROM otel.received_calls
                UNION ALL
                SELECT rollout_id, attempt, id, [], [], [], [], []
                FROM otel.credit_roots
                UNION ALL
                SELECT rollout_id, attempt, 0, [], [(if(span_id = '', 0, cityHash64(span_id)), score)], [], [], []
                FROM otel.rewards
                UNION ALL
                WITH
                    arrayFilter(one -> one.1.is_anothers, told) AS anothers,
                    arrayDistinct(arrayMap(one -> one.1.trace, anothers)) AS shared_traces,
                    arrayPushBack(arrayDistinct(arrayMap(one -> one.2, anothers)), 0) AS anothers_agents,
                    arraySum(one -> if(one.1.is_root, one.1.id, 0), told) AS root_id
                SELECT
                    rollout_id, attempt, 0, [], [],
                    arrayMap(one -> (one.1.id, one.2, one.3), arrayFilter(one -> one.1.call_id != '', told)),
                    arrayMap(
                        one -> (one.1.id, one.2, one.1.tool_call_id, one.1.started_ns,
                            has(shared_traces, one.1.trace) AND has(anothers_agents, one.2)
                                AND (root_id = 0 OR one.4 != root_id)),
                        arrayFilter(one -> one.1.is_tool AND one.1.is_rewarded, told)),
                    arrayFlatten(arrayMap(
                        one -> arrayMap(
                            asked_for -> (asked_for, one.2, one.1.started_ns, false, one.1.call_id, one.1.id),
                            one.1.asked_for),
                        told))
                FROM (SELECT rollout_id, attempt, arrayZip(nodes, agents, above, ends) AS told FROM otel.credit_trees)
            ) AS facts
            GROUP BY rollout_id, attempt
            HAVING notEmpty(received)
        )
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
                        rollout_id, attempt, policy, ret,
                        arrayJoin(arrayConcat(
                            arrayMap(reward -> (reward.2, toInt64(0), '', '', '', false, reward.3), rewards),
                            arrayFlatten(arrayMap(
                                call -> arrayMap(
                                    id -> (id, call.at_ns, call.span_id, call.trace_id, call.agent, id = call.id, 0.),
                                    arrayConcat([call.id, toUInt64(0)], call.above)),
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
