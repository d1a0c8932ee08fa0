-- One row is one span under an agent's invocation: `agent` names the nearest one. Spans under no agent have no row.
-- The walk goes from the invocations down, so it costs nothing where no agent is named; its depth is bounded because
-- what a parent id says is not ours to trust.
CREATE VIEW IF NOT EXISTS otel.agent_spans AS
WITH RECURSIVE under AS
(
    SELECT DISTINCT TraceId AS trace_id, SpanId AS span_id, AgentName AS agent, toUInt16(0) AS depth
    FROM otel.otel_traces
    WHERE AgentName != ''
    UNION ALL
    SELECT spans.TraceId, spans.SpanId, under.agent, toUInt16(under.depth + 1)
    FROM
    (
        SELECT DISTINCT TraceId, SpanId, ParentSpanId
        FROM otel.otel_traces
        WHERE AgentName = '' AND TraceId IN (SELECT TraceId FROM otel.otel_traces WHERE AgentName != '')
    ) AS spans
    INNER JOIN under ON spans.TraceId = under.trace_id AND spans.ParentSpanId = under.span_id
    WHERE under.depth < 100
)
SELECT trace_id, span_id, agent
FROM under;

-- One row is one sampled choice of a model call: what the engine saw, what it sampled, and which weights did it.
-- GROUP BY drops spans that were delivered twice and, unlike LIMIT BY, lets a filter on rollout_id reach the table.
-- A call whose agent passed on no task id has that of its rollout's root span, once that has arrived.
CREATE VIEW IF NOT EXISTS otel.llm_calls AS
SELECT
    calls.trace_id AS trace_id,
    calls.span_id AS span_id,
    calls.parent_span_id AS parent_span_id,
    calls.rollout_id AS rollout_id,
    calls.attempt AS attempt,
    if(calls.task_id = '', roots.task_id, calls.task_id) AS task_id,
    agents.agent AS agent,
    calls.policy AS policy,
    calls.policy_version AS policy_version,
    calls.model AS model,
    calls.started_at AS started_at,
    addNanoseconds(calls.started_at, calls.duration) AS ended_at,
    calls.prompt_token_ids AS prompt_token_ids,
    calls.response_token_ids AS response_token_ids,
    calls.logprobs AS logprobs,
    calls.finish_reason AS finish_reason,
    calls.trainable AS trainable,
    calls.untrainable_reason AS untrainable_reason,
    calls.error_type AS error_type,
    calls.input_messages AS input_messages,
    calls.output_messages AS output_messages,
    calls.sampling AS sampling,
    calls.response_id AS response_id,
    calls.choice_index AS choice_index,
    calls.retry_count AS retry_count
FROM
(
    SELECT
        TraceId AS trace_id,
        SpanId AS span_id,
        RolloutId AS rollout_id,
        RolloutAttempt AS attempt,
        any(ParentSpanId) AS parent_span_id,
        any(TaskId) AS task_id,
        any(PolicyName) AS policy,
        any(PolicyVersion) AS policy_version,
        any(Model) AS model,
        any(Timestamp) AS started_at,
        any(Duration) AS duration,
        any(PromptTokenIds) AS prompt_token_ids,
        any(ResponseTokenIds) AS response_token_ids,
        any(ResponseLogprobs) AS logprobs,
        any(FinishReason) AS finish_reason,
        any(Trainable) AS trainable,
        any(UntrainableReason) AS untrainable_reason,
        any(ErrorType) AS error_type,
        -- From the map, not from columns of their own: they are as large as everything else together.
        any(SpanAttributes['gen_ai.input.messages']) AS input_messages,
        any(SpanAttributes['gen_ai.output.messages']) AS output_messages,
        any(Sampling) AS sampling,
        any(ResponseId) AS response_id,
        any(ChoiceIndex) AS choice_index,
        any(RetryCount) AS retry_count
    FROM otel.otel_traces
    WHERE IsLlmCall
    GROUP BY TraceId, SpanId, RolloutId, RolloutAttempt
) AS calls
LEFT ANY JOIN otel.agent_spans AS agents ON agents.trace_id = calls.trace_id AND agents.span_id = calls.span_id
LEFT ANY JOIN
(
    SELECT RolloutId AS rollout_id, RolloutAttempt AS attempt, TaskId AS task_id
    FROM otel.otel_traces
    WHERE RolloutStatus != ''
) AS roots ON roots.rollout_id = calls.rollout_id AND roots.attempt = calls.attempt;

-- One row is the newest reward of one name on one span. `version` grows with each newer one (ns since 1970).
-- A reward belongs to the rollout that the judged span names; failing that, to the one the evaluation names; failing
-- that, to its trace's; failing that, the trace is the rollout. One that judges no span (an id of zeros is none) judges
-- the rollout, which is to judge its root span; until that has arrived, its span_id is empty.
CREATE VIEW IF NOT EXISTS otel.rewards AS
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
        given.rollout_id AS rollout_id,
        given.attempt AS attempt,
        if(given.trace_id = '', roots.trace_id, given.trace_id) AS trace_id,
        if(given.span_id = '', roots.span_id, given.span_id) AS span_id,
        given.name AS name,
        given.score AS score,
        given.label AS label,
        given.source AS source,
        given.explanation AS explanation,
        given.written_at AS written_at
    FROM
    (
        SELECT
            multiIf(judged.rollout_id != '', judged.rollout_id,
                    logs.RolloutId != '', logs.RolloutId,
                    traces.rollout_id != '', traces.rollout_id,
                    logs.TraceId) AS rollout_id,
            multiIf(judged.rollout_id != '', judged.attempt,
                    logs.RolloutId != '', logs.RolloutAttempt,
                    traces.attempt) AS attempt,
            if(logs.TraceId = repeat('0', 32), '', logs.TraceId) AS trace_id,
            if(logs.SpanId = repeat('0', 16), '', logs.SpanId) AS span_id,
            logs.EvaluationName AS name,
            assumeNotNull(logs.EvaluationScore) AS score,
            logs.EvaluationLabel AS label,
            logs.ServiceName AS source,
            logs.EvaluationExplanation AS explanation,
            logs.Timestamp AS written_at
        FROM otel.otel_logs AS logs
        LEFT ANY JOIN
        (
            SELECT TraceId AS trace_id, SpanId AS span_id, RolloutId AS rollout_id, RolloutAttempt AS attempt
            FROM otel.otel_traces
            WHERE RolloutId != '' AND SpanId IN
            (
                SELECT SpanId FROM otel.otel_logs WHERE EventName = 'gen_ai.evaluation.result'
            )
        ) AS judged ON judged.trace_id = logs.TraceId AND judged.span_id = logs.SpanId
        LEFT JOIN
        (
            SELECT
                TraceId AS trace_id,
                argMax(RolloutId, RolloutStatus != '') AS rollout_id,
                argMax(RolloutAttempt, RolloutStatus != '') AS attempt
            FROM otel.otel_traces
            WHERE RolloutId != '' AND TraceId IN
            (
                SELECT TraceId FROM otel.otel_logs WHERE EventName = 'gen_ai.evaluation.result' AND RolloutId = ''
            )
            GROUP BY TraceId
        ) AS traces ON traces.trace_id = logs.TraceId
        WHERE logs.EventName = 'gen_ai.evaluation.result' AND logs.EvaluationScore IS NOT NULL
    ) AS given
    LEFT ANY JOIN
    (
        SELECT RolloutId AS rollout_id, RolloutAttempt AS attempt, TraceId AS trace_id, SpanId AS span_id
        FROM otel.otel_traces
        WHERE RolloutStatus != '' AND RolloutId IN
        (
            SELECT RolloutId FROM otel.otel_logs
            WHERE EventName = 'gen_ai.evaluation.result' AND SpanId IN ('', '0000000000000000')
            UNION ALL
            SELECT RolloutId FROM otel.otel_traces
            WHERE TraceId IN
            (
                SELECT TraceId FROM otel.otel_logs
                WHERE EventName = 'gen_ai.evaluation.result' AND SpanId IN ('', '0000000000000000') AND RolloutId = ''
            )
        )
    ) AS roots ON roots.rollout_id = given.rollout_id AND roots.attempt = given.attempt
)
GROUP BY rollout_id, attempt, span_id, name;

-- One row is one attempt of one rollout. It runs until the launcher's root span arrives, which says how it ended.
CREATE VIEW IF NOT EXISTS otel.rollouts AS
SELECT
    spans.rollout_id AS rollout_id,
    spans.attempt AS attempt,
    spans.task_id AS task_id,
    spans.trace_id AS trace_id,
    spans.status AS status,
    spans.error_type AS error_type,
    spans.started_at AS started_at,
    spans.ended_at AS ended_at,
    spans.n_calls AS n_calls,
    spans.n_trainable AS n_trainable,
    scores.reward AS reward,
    named.agents AS agents,
    spans.root_span_id AS root_span_id,
    spans.split AS split,
    spans.exit_code AS exit_code,
    spans.stdout AS stdout,
    spans.stderr AS stderr
FROM
(
    SELECT
        RolloutId AS rollout_id,
        RolloutAttempt AS attempt,
        max(RolloutStatus != '') AS ended,
        argMax(TaskId, (RolloutStatus != '', TaskId != '')) AS task_id,
        argMax(TraceId, RolloutStatus != '') AS trace_id,
        if(ended, max(RolloutStatus), 'running') AS status,
        anyIf(ErrorType, RolloutStatus != '') AS error_type,
        if(ended, minIf(Timestamp, RolloutStatus != ''), min(Timestamp)) AS started_at,
        if(ended, maxIf(addNanoseconds(Timestamp, Duration), RolloutStatus != ''), NULL) AS ended_at,
        uniqExactIf((TraceId, SpanId), IsLlmCall) AS n_calls,
        uniqExactIf((TraceId, SpanId), IsLlmCall AND Trainable) AS n_trainable,
        anyIf(SpanId, RolloutStatus != '') AS root_span_id,
        anyIf(RolloutSplit, RolloutStatus != '') AS split,
        anyIf(ExitCode, RolloutStatus != '') AS exit_code,
        anyIf(RolloutStdout, RolloutStatus != '') AS stdout,
        anyIf(RolloutStderr, RolloutStatus != '') AS stderr
    FROM otel.otel_traces
    WHERE RolloutId != ''
    GROUP BY RolloutId, RolloutAttempt
) AS spans
LEFT JOIN
(
    SELECT rollout_id, attempt, toNullable(sum(score)) AS reward
    FROM otel.rewards
    GROUP BY rollout_id, attempt
) AS scores ON scores.rollout_id = spans.rollout_id AND scores.attempt = spans.attempt
LEFT JOIN
(
    SELECT calls.RolloutId AS rollout_id, calls.RolloutAttempt AS attempt, arraySort(groupUniqArray(found.agent)) AS agents
    FROM otel.otel_traces AS calls
    INNER JOIN otel.agent_spans AS found ON found.trace_id = calls.TraceId AND found.span_id = calls.SpanId
    WHERE calls.IsLlmCall AND calls.RolloutId != ''
    GROUP BY rollout_id, attempt
) AS named ON named.rollout_id = spans.rollout_id AND named.attempt = spans.attempt;
