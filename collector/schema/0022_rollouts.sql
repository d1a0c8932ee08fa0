-- Rewards by the rollout that they judge, and how rollouts went.

-- One row is one evaluation with a score, as it was written; one beyond 1e30 is none, as little as one that is not finite, so
-- that neither sums nor squares of any overflow. An id of zeros is none; `judged_trace_id` and `judged_span_id` are
-- as they were told, because joins on these find the evaluations of a span by an index.
CREATE OR REPLACE VIEW otel.evaluations AS
SELECT
    TraceId AS judged_trace_id,
    SpanId AS judged_span_id,
    if(TraceId = repeat('0', 32), '', TraceId) AS trace_id,
    if(SpanId = repeat('0', 16), '', SpanId) AS span_id,
    RolloutId AS told_rollout_id,
    RolloutAttempt AS told_attempt,
    EvaluationName AS name,
    assumeNotNull(EvaluationScore) AS score,
    EvaluationLabel AS label,
    ServiceName AS source,
    EvaluationExplanation AS explanation,
    Timestamp AS written_at
FROM otel.otel_logs
WHERE EventName = 'gen_ai.evaluation.result' AND abs(EvaluationScore) <= 1e30;

-- One row is one span that names its rollout; one that was delivered twice may be there twice. A span without an id is none:
-- else what was given to no span would be its.
CREATE OR REPLACE VIEW otel.rollout_spans AS
SELECT TraceId AS trace_id, SpanId AS span_id, RolloutId AS rollout_id, RolloutAttempt AS attempt
FROM otel.otel_traces
WHERE RolloutId != '' AND SpanId NOT IN ('', '0000000000000000');

-- One row is one evaluation and the rollout that it belongs to, or several equal ones: that which the judged span names;
-- failing that, the one that the evaluation names; failing that, its trace's; failing that, the trace is the rollout. Each way
-- is a branch of its own, and the rollout a column of what is found first in it, so that a filter on rollouts reads what they
-- have and, of all others, no more than the ids of evaluations that name no rollout.
CREATE OR REPLACE VIEW otel.rollout_evaluations AS
SELECT
    spans.rollout_id AS rollout_id, spans.attempt AS attempt, spans.trace_id AS trace_id, spans.span_id AS span_id,
    given.name AS name, given.score AS score, given.label AS label, given.source AS source,
    given.explanation AS explanation, given.written_at AS written_at
FROM otel.rollout_spans AS spans
INNER JOIN otel.evaluations AS given ON spans.trace_id = given.judged_trace_id AND spans.span_id = given.judged_span_id
UNION ALL
SELECT
    given.told_rollout_id AS rollout_id, given.told_attempt AS attempt, given.trace_id AS trace_id, given.span_id AS span_id,
    given.name, given.score, given.label, given.source, given.explanation, given.written_at
FROM otel.rollout_spans AS spans
RIGHT ANTI JOIN otel.evaluations AS given ON spans.trace_id = given.judged_trace_id AND spans.span_id = given.judged_span_id
WHERE given.told_rollout_id != ''
UNION ALL
SELECT
    if(traces.rollout_id != '', traces.rollout_id, given.trace_id) AS rollout_id, traces.attempt AS attempt,
    given.trace_id AS trace_id, given.span_id AS span_id,
    given.name, given.score, given.label, given.source, given.explanation, given.written_at
FROM
(
    -- A trace's rollout is that of its root span.
    SELECT
        TraceId AS trace_id,
        argMax(RolloutId, RolloutStatus != '') AS rollout_id,
        argMax(RolloutAttempt, RolloutStatus != '') AS attempt
    FROM otel.otel_traces
    WHERE RolloutId != ''
    GROUP BY TraceId
) AS traces
RIGHT JOIN
(
    SELECT given.*
    FROM otel.rollout_spans AS spans
    RIGHT ANTI JOIN otel.evaluations AS given ON spans.trace_id = given.judged_trace_id AND spans.span_id = given.judged_span_id
    WHERE given.told_rollout_id = ''
) AS given ON traces.trace_id = given.trace_id;

-- One row is the newest reward of one name on one span. `version` grows with each newer one (ns since 1970).
-- One that judges no span judges the rollout, which is to judge its root span; until that has arrived, its span_id is empty.
CREATE OR REPLACE VIEW otel.rewards AS
SELECT
    rollout_id,
    argMax(trace_id, written_at) AS trace_id,
    span_id,
    name,
    argMax(score, written_at) AS score,
    argMax(label, written_at) AS label,
    argMax(source, written_at) AS source,
    max(written_at) AS at,
    toUInt64(toUnixTimestamp64Nano(max(written_at))) AS version,
    attempt,
    argMax(explanation, written_at) AS explanation
FROM
(
    SELECT
        given.rollout_id AS rollout_id, given.attempt AS attempt,
        if(given.trace_id = '', roots.trace_id, given.trace_id) AS trace_id,
        if(given.span_id = '', roots.span_id, given.span_id) AS span_id,
        given.name AS name, given.score AS score, given.label AS label, given.source AS source,
        given.explanation AS explanation, given.written_at AS written_at
    FROM
    (
        SELECT RolloutId AS rollout_id, RolloutAttempt AS attempt, TraceId AS trace_id, SpanId AS span_id
        FROM otel.otel_traces
        WHERE RolloutStatus != '' AND RolloutId != ''
    ) AS roots
    RIGHT ANY JOIN otel.rollout_evaluations AS given ON roots.rollout_id = given.rollout_id AND roots.attempt = given.attempt
)
GROUP BY rollout_id, attempt, span_id, name;

-- One row is one attempt of one rollout, without its agents: `rollouts` adds them, and reads the traces for that.
-- The launcher's root span says how it ended; of several the one that ended last. Until that arrives the rollout is running
-- or, after a long silence and without a reward, lost. Who runs an agent by hand sends no root span: then silence and a
-- reward are the end, and whoever reads this decides after how much of it.
CREATE OR REPLACE VIEW otel.rollout_outcomes AS
SELECT
    spans.rollout_id AS rollout_id, spans.attempt AS attempt, spans.task_id AS task_id, spans.trace_id AS trace_id,
    multiIf(
        spans.ended, spans.root_status,
        scores.reward IS NULL
            AND spans.last_seen_at < now64(9) - toIntervalSecond((SELECT lost_after_s FROM otel.chosen_settings)), 'lost',
        'running') AS status,
    spans.error_type AS error_type, spans.started_at AS started_at, spans.ended_at AS ended_at, spans.n_calls AS n_calls,
    spans.n_trainable AS n_trainable, scores.reward AS reward, spans.root_span_id AS root_span_id, spans.split AS split,
    spans.exit_code AS exit_code, spans.stdout AS stdout, spans.stderr AS stderr, spans.last_seen_at AS last_seen_at,
    spans.policies AS policies
FROM
(
    SELECT rollout_id, attempt, toNullable(sum(score)) AS reward
    FROM otel.rewards
    GROUP BY rollout_id, attempt
) AS scores
RIGHT ANY JOIN
(
    WITH
        RolloutStatus != '' AS is_root,
        (EndedAt, SpanId) AS order_of_ends
    SELECT
        RolloutId AS rollout_id,
        RolloutAttempt AS attempt,
        max(is_root) AS ended,
        argMax(TaskId, (is_root, TaskId != '', order_of_ends)) AS task_id,
        if(ended, argMaxIf(TraceId, order_of_ends, is_root), argMin(TraceId, (Timestamp, SpanId))) AS trace_id,
        toString(argMaxIf(RolloutStatus, order_of_ends, is_root)) AS root_status,
        argMaxIf(ErrorType, order_of_ends, is_root) AS error_type,
        if(ended, argMaxIf(Timestamp, order_of_ends, is_root), min(Timestamp)) AS started_at,
        if(ended, maxIf(EndedAt, is_root), NULL) AS ended_at,
        uniqExactIf((TraceId, SpanId), IsLlmCall) AS n_calls,
        uniqExactIf((TraceId, SpanId), IsLlmCall AND Trainable) AS n_trainable,
        argMaxIf(SpanId, order_of_ends, is_root) AS root_span_id,
        argMaxIf(RolloutSplit, order_of_ends, is_root) AS split,
        -- The tuple is there because argMax takes no NULL.
        argMaxIf(tuple(ExitCode), order_of_ends, is_root).1 AS exit_code,
        argMaxIf(RolloutStdout, order_of_ends, is_root) AS stdout,
        argMaxIf(RolloutStderr, order_of_ends, is_root) AS stderr,
        max(EndedAt) AS last_seen_at,
        arraySort(groupUniqArrayIf(PolicyName, IsLlmCall AND PolicyName != '')) AS policies
    FROM otel.otel_traces
    WHERE RolloutId != ''
    GROUP BY RolloutId, RolloutAttempt
) AS spans ON scores.rollout_id = spans.rollout_id AND scores.attempt = spans.attempt;

-- One row is one attempt of one rollout. `agents`: those whose calls there are.
CREATE OR REPLACE VIEW otel.rollouts AS
SELECT
    outcomes.rollout_id AS rollout_id, outcomes.attempt AS attempt, outcomes.task_id AS task_id, outcomes.trace_id AS trace_id,
    outcomes.status AS status, outcomes.error_type AS error_type, outcomes.started_at AS started_at,
    outcomes.ended_at AS ended_at, outcomes.n_calls AS n_calls, outcomes.n_trainable AS n_trainable,
    outcomes.reward AS reward, named.agents AS agents, outcomes.root_span_id AS root_span_id, outcomes.split AS split,
    outcomes.exit_code AS exit_code, outcomes.stdout AS stdout, outcomes.stderr AS stderr,
    outcomes.last_seen_at AS last_seen_at, outcomes.policies AS policies
FROM
(
    SELECT rollout_id, attempt, arraySort(groupUniqArrayIf(toString(agent), agent != '')) AS agents
    FROM otel.call_contexts
    GROUP BY rollout_id, attempt
) AS named
RIGHT ANY JOIN otel.rollout_outcomes AS outcomes
    ON named.rollout_id = outcomes.rollout_id AND named.attempt = outcomes.attempt;

-- One row is one span of a trace in which a rollout has spans, and where it stands in its tree. `root_span_id`: the first
-- span on the way down to it, whose parent is not there or is none; `depth`: how many spans down that is, 0 for the root
-- itself. Spans in a circle have no root.
CREATE OR REPLACE VIEW otel.span_tree AS
WITH
    -- As in `trace_spans` and `trace_agents`.
    ((spans, places) -> arraySort(arrayConcat(
        arrayMap((span, place) -> bitShiftLeft(toUInt128(span.1), 64) + place, spans, places),
        arrayMap((span, place) -> bitShiftLeft(toUInt128(span.2), 64) + 4294967296 + place, spans, places)))) AS asked_parents,
    (together -> arrayMap(answer -> toUInt32(bitAnd(answer, 4294967295)), arraySort(arrayFilter(answer -> answer != 0, arrayMap(
        (one, found) -> if(toUInt64(one) < 4294967296, 0, bitShiftLeft(bitAnd(toUInt64(one), 4294967295), 32) + if(
            bitShiftRight(one, 64) = bitShiftRight(found, 64) AND toUInt64(found) < 4294967296, toUInt64(found), 0)),
        together, arrayFill(one -> toUInt64(one) < 4294967296, together)))))) AS answered_parents,
    ((at, numbers) -> arraySort(arrayConcat(
        arrayMap((number, place) -> bitShiftLeft(toUInt64(place), 33) + number, numbers, arrayEnumerate(numbers)),
        arrayMap((asked, place) -> bitShiftLeft(toUInt64(asked), 33) + 4294967296 + place, at, arrayEnumerate(at))))) AS asked,
    (together -> arrayMap(answer -> toUInt32(bitAnd(answer, 4294967295)), arraySort(arrayFilter(answer -> answer != 0, arrayMap(
        (one, standing) -> if(bitTest(one, 32), bitShiftLeft(bitAnd(one, 4294967295), 32) + bitAnd(standing, 4294967295), 0),
        together, arrayFill(one -> NOT bitTest(one, 32), together)))))) AS answered
SELECT
    rollouts.rollout_id AS rollout_id, rollouts.attempt AS attempt, rollouts.trace_id AS trace_id,
    traces.span.1.3 AS span_id, traces.span.1.4 AS parent_span_id, traces.span.1.5 AS name, traces.span.1.6 AS service,
    fromUnixTimestamp64Nano(traces.span.1.7) AS started_at, fromUnixTimestamp64Nano(traces.span.1.8) AS ended_at,
    traces.span.2 AS root_span_id, traces.span.3 AS depth
FROM
(
    SELECT
        trace_id,
        arrayJoin(arrayDistinct(arrayZip(
            spans,
            -- The id of the span at the end of the way.
            arrayMap(answer -> answer.2, arraySort(answer -> answer.1, arrayFilter(answer -> answer.1 != 0, arrayMap(
                (one, standing) -> (one.2, if(standing.1 = one.1, standing.3, '')),
                asked_ids, arrayFill(one -> one.2 = 0, asked_ids))))),
            arrayMap((depth, is_round) -> if(is_round, 0, depth), way.2, in_circles)))) AS span
    FROM
    (
        SELECT
            trace_id, spans, way, in_circles,
            arraySort(one -> bitShiftLeft(toUInt64(one.1), 32) + one.2, arrayConcat(
                arrayMap((place, span) -> (place, toUInt32(0), span.3), places, spans),
                arrayMap((end, is_round, place) -> (if(is_round, 0, end), place, ''), way.1, in_circles, places))) AS asked_ids
        FROM
        (
            SELECT
                trace_id, spans, places, way,
                arrayMap((end, beyond) -> end != beyond, way.1, answered(asked(way.1, parents))) AS in_circles
            FROM
            (
                SELECT
                    trace_id, spans, places, parents,
                    arrayFold(
                        (reached, step) -> (
                            answered(asked(reached.1, reached.1)),
                            arrayMap(
                                (passed, further) -> toUInt32(passed + further),
                                reached.2, answered(asked(reached.1, reached.2)))),
                        range(toUInt32(ceil(log2(length(places) + 1)))),
                        (parents, arrayMap((parent, place) -> toUInt32(parent != place), parents, places))) AS way
                FROM
                (
                    SELECT
                        trace_id, spans, arrayEnumerate(spans) AS places,
                        arrayMap(
                            (parent, place) -> if(parent = 0, place, parent),
                            answered_parents(asked_parents(spans, places)), places) AS parents
                    FROM
                    (
                        SELECT
                            TraceId AS trace_id,
                            groupArray((
                                cityHash64(SpanId),
                                if(ParentSpanId IN ('', '0000000000000000'), 0, cityHash64(ParentSpanId)),
                                SpanId, ParentSpanId, toString(SpanName), toString(ServiceName),
                                toUnixTimestamp64Nano(Timestamp),
                                toUnixTimestamp64Nano(EndedAt))) AS spans
                        FROM otel.otel_traces
                        GROUP BY TraceId
                    )
                )
            )
        )
    )
) AS traces
INNER JOIN (SELECT DISTINCT rollout_id, attempt, trace_id FROM otel.rollout_spans) AS rollouts
    ON rollouts.trace_id = traces.trace_id;
