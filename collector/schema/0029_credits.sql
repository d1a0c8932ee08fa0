-- `credits`: what each transition is worth by every scheme, as `trainer/credit.py` has it. docs/credit.md explains them.

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
                tool -> (toUInt64(tool.may_be_anothers), tool.agent, tool.started_ns, true, '', tool.id),
                tools)), events)) AS of_policy
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
                    'Array(Tuple(
                        id UInt64, agent UInt64, tool_call_id UInt64, started_ns Int64, may_be_anothers Bool))') AS tools,
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
