-- A call that extends an earlier one of its rollout is a span that holds only what is new in it; tracegrad/names.py tells
-- what it says of the rest (`tracegrad.extends.*`). The views below put calls together, and `llm_calls` shows them whole.
-- Calls form lines: chains, each call extending the one before; what extends a call that has been extended already
-- begins a line of its own, a fork. Along a line the shared beginnings grow, so that each of them is a beginning of the
-- line's tokens: a prompt is one slice and what is new. All of it costs as much as its output is long.
ALTER TABLE otel.otel_traces
    ADD COLUMN IF NOT EXISTS ExtendsSpanId String MATERIALIZED SpanAttributes['tracegrad.extends.span_id'] CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS ExtendsRoot String MATERIALIZED SpanAttributes['tracegrad.extends.root'] CODEC(ZSTD(1)),
    -- 0: it extends nothing.
    ADD COLUMN IF NOT EXISTS ExtendsDepth UInt32
        MATERIALIZED toUInt32OrZero(SpanAttributes['tracegrad.extends.depth']) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS ExtendsTokens UInt32
        MATERIALIZED toUInt32OrZero(SpanAttributes['tracegrad.extends.tokens']) CODEC(ZSTD(1)),
    -- 0: the messages are whole.
    ADD COLUMN IF NOT EXISTS ExtendsMessages UInt32
        MATERIALIZED toUInt32OrZero(SpanAttributes['tracegrad.extends.messages']) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS CallLine String MATERIALIZED multiIf(
        SpanAttributes['tracegrad.extends.line'] != '', SpanAttributes['tracegrad.extends.line'],
        SpanAttributes['tracegrad.extends.root'] != '', SpanAttributes['tracegrad.extends.root'],
        SpanId) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS IsFork Bool MATERIALIZED SpanAttributes['tracegrad.extends.line'] = SpanId CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS ForkPath Array(String)
        MATERIALIZED JSONExtract(SpanAttributes['tracegrad.extends.path'], 'Array(String)') CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS InputTokens UInt32
        MATERIALIZED toUInt32OrZero(SpanAttributes['gen_ai.usage.input_tokens']) CODEC(ZSTD(1));

-- For the rows that are there already, in the background: until then these columns are read from the map.
ALTER TABLE otel.otel_traces
    MATERIALIZE COLUMN ExtendsSpanId, MATERIALIZE COLUMN ExtendsRoot, MATERIALIZE COLUMN ExtendsDepth,
    MATERIALIZE COLUMN ExtendsTokens, MATERIALIZE COLUMN ExtendsMessages, MATERIALIZE COLUMN CallLine,
    MATERIALIZE COLUMN IsFork, MATERIALIZE COLUMN ForkPath, MATERIALIZE COLUMN InputTokens;

-- One row is one sampled choice as its span tells it: of a call that extends another (`depth` > 0), what is new.
-- GROUP BY drops spans that were delivered twice and, unlike LIMIT BY, lets a filter on any of its keys reach the table.
CREATE OR REPLACE VIEW otel.recorded_calls AS
SELECT
    TraceId AS trace_id,
    SpanId AS span_id,
    RolloutId AS rollout_id,
    RolloutAttempt AS attempt,
    CallLine AS line,
    ExtendsDepth AS depth,
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
    any(RetryCount) AS retry_count,
    any(ExtendsRoot) AS root,
    any(ExtendsTokens) AS n_shared,
    any(ExtendsMessages) AS n_shared_messages,
    any(length(PromptTokenIds)) AS n_new,
    any(InputTokens) AS n_prompt
FROM otel.otel_traces
WHERE IsLlmCall
GROUP BY TraceId, SpanId, RolloutId, RolloutAttempt, CallLine, ExtendsDepth;

-- One row is one call of a line, which is of one rollout: all that extend another, and the roots that are extended.
-- `tokens`: what is new in its prompt, and its response. `messages`: its new ones, as JSON text without the brackets.
CREATE OR REPLACE VIEW otel.line_calls AS
SELECT
    RolloutId AS rollout_id,
    RolloutAttempt AS attempt,
    CallLine AS line,
    SpanId AS span_id,
    any(ExtendsDepth) AS depth,
    any(ExtendsTokens) AS n_shared,
    any(ExtendsMessages) = 0 AS has_all_messages,
    any(length(PromptTokenIds) + length(ResponseTokenIds)) AS n_tokens,
    any(arrayConcat(PromptTokenIds, ResponseTokenIds)) AS tokens,
    any(substring(SpanAttributes['gen_ai.input.messages'], 2, length(SpanAttributes['gen_ai.input.messages']) - 2)) AS messages
FROM otel.otel_traces
WHERE IsLlmCall AND (ExtendsDepth > 0 OR SpanId IN (SELECT ExtendsRoot FROM otel.otel_traces WHERE ExtendsDepth = 1))
GROUP BY RolloutId, RolloutAttempt, CallLine, SpanId;

-- One row is one line. `tokens`: those that its calls share, one after another, behind the `first_shared` ones that its
-- first call shares with the line before. `messages`: of each call, in order. A call deeper than `whole_depth` cannot be put
-- together: one above it is missing, or has fewer tokens than were taken from it.
CREATE OR REPLACE VIEW otel.call_lines AS
WITH
    arraySort(call -> call.1, groupArray((parts.depth, parts.n_shared, parts.n_tokens, parts.span_id = parts.line))) AS calls,
    arrayPushBack(arrayMap(call -> call.2, arrayPopFront(calls)), 0) AS next_shared,
    arrayFirstIndex(
        (call, next, place) -> call.1 + 1 != first_depth + place OR next > call.2 + call.3,
        calls, next_shared, arrayEnumerate(calls)) AS broken_at
SELECT
    parts.rollout_id AS rollout_id,
    parts.attempt AS attempt,
    parts.line AS line,
    calls[1].1 AS first_depth,
    calls[1].2 AS first_shared,
    multiIf(NOT calls[1].4, -1, broken_at = 0, toInt64(calls[-1].1), toInt64(first_depth) + broken_at - 1) AS whole_depth,
    arrayFlatten(arrayMap(
        (call, next, own) -> arraySlice(own.2, 1, greatest(next, call.2) - call.2),
        calls, next_shared, arraySort(own -> own.1, groupArray((parts.depth, parts.tokens))))) AS tokens,
    arrayMap(
        own -> (own.2, own.3),
        arraySort(own -> own.1, groupArray((parts.depth, parts.has_all_messages, parts.messages)))) AS messages
FROM otel.line_calls AS parts
GROUP BY parts.rollout_id, parts.attempt, parts.line;

-- One row is one fork: what its line has from the line that it leaves, behind what that one has from lines before.
CREATE OR REPLACE VIEW otel.call_forks AS
SELECT
    forks.rollout_id AS rollout_id,
    forks.attempt AS attempt,
    forks.line AS line,
    calls.depth <= lines.whole_depth AND forks.n_shared <= calls.n_shared + calls.n_tokens AS is_whole,
    arrayConcat(
        arraySlice(lines.tokens, 1, greatest(calls.n_shared, lines.first_shared) - lines.first_shared),
        arraySlice(calls.tokens, 1, greatest(forks.n_shared, calls.n_shared) - calls.n_shared)) AS tokens,
    arraySlice(lines.messages, 1, calls.depth - lines.first_depth + 1) AS messages
FROM
(
    SELECT
        RolloutId AS rollout_id,
        RolloutAttempt AS attempt,
        SpanId AS line,
        any(ExtendsSpanId) AS extends,
        any(if(empty(ForkPath), ExtendsRoot, ForkPath[-1])) AS line_before,
        any(ExtendsTokens) AS n_shared
    FROM otel.otel_traces
    WHERE IsFork
    GROUP BY RolloutId, RolloutAttempt, SpanId
) AS forks
INNER JOIN
(
    SELECT * FROM otel.line_calls
    WHERE span_id IN (SELECT ExtendsSpanId FROM otel.otel_traces WHERE IsFork)
) AS calls ON calls.rollout_id = forks.rollout_id AND calls.attempt = forks.attempt AND calls.span_id = forks.extends
INNER JOIN
(
    SELECT * FROM otel.call_lines
    WHERE line IN (SELECT if(empty(ForkPath), ExtendsRoot, ForkPath[-1]) FROM otel.otel_traces WHERE IsFork)
) AS lines ON lines.rollout_id = forks.rollout_id AND lines.attempt = forks.attempt AND lines.line = forks.line_before;

-- One row is one line that began as a fork: all that it has from the lines before it, from the root on.
CREATE OR REPLACE VIEW otel.line_beginnings AS
SELECT
    lines.rollout_id AS rollout_id,
    lines.attempt AS attempt,
    lines.line AS line,
    min(forks.is_whole) AND count() = any(lines.n_forks) AS is_whole,
    arrayFlatten(arrayMap(one -> one.2, arraySort(one -> one.1, groupArray((lines.place, forks.tokens))))) AS tokens,
    arrayFlatten(arrayMap(one -> one.2, arraySort(one -> one.1, groupArray((lines.place, forks.messages))))) AS messages
FROM
(
    SELECT rollout_id, attempt, line, fork, place, length(path) AS n_forks
    FROM
    (
        SELECT
            RolloutId AS rollout_id,
            RolloutAttempt AS attempt,
            SpanId AS line,
            arrayPushBack(any(ForkPath), SpanId) AS path
        FROM otel.otel_traces
        WHERE IsFork
        GROUP BY RolloutId, RolloutAttempt, SpanId
    )
    ARRAY JOIN path AS fork, arrayEnumerate(path) AS place
) AS lines
INNER JOIN otel.call_forks AS forks
    ON forks.rollout_id = lines.rollout_id AND forks.attempt = lines.attempt AND forks.line = lines.fork
GROUP BY lines.rollout_id, lines.attempt, lines.line;

-- One row is one sampled choice of a model call: what the engine saw, what it sampled, and which weights did it.
-- A call that extends another is put together; where one above it is missing, it is not trainable, its prompt is empty,
-- and its messages are only the new ones. The lines are on the left of their join so that a filter on spans or traces,
-- which finds its calls on the right, reaches the lines as well. A filter on rollout_id reaches every table.
-- A call whose agent passed on no task id has that of its rollout's root span, once that has arrived.
CREATE OR REPLACE VIEW otel.llm_calls AS
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
        trace_id, span_id, parent_span_id, rollout_id, attempt, task_id, policy, policy_version, model, started_at, duration,
        prompt_token_ids, response_token_ids, logprobs, finish_reason, trainable, untrainable_reason, error_type,
        input_messages, output_messages, sampling, response_id, choice_index, retry_count
    FROM otel.recorded_calls
    WHERE depth = 0
    UNION ALL
    WITH
        lines.whole_depth >= new.depth AND lines.line != '' AND (new.line = new.root OR beginnings.is_whole) AS has_all,
        new.n_shared = 0 OR (has_all AND new.n_prompt IN (0, new.n_shared + new.n_new)) AS is_whole,
        arrayConcat(beginnings.messages, arraySlice(lines.messages, 1, new.depth - lines.first_depth)) AS messages_above,
        arraySlice(messages_above, greatest(arrayLastIndex(one -> one.1, messages_above), 1)).2 AS texts_above
    SELECT
        new.trace_id, new.span_id, new.parent_span_id, new.rollout_id, new.attempt, new.task_id, new.policy,
        new.policy_version, new.model, new.started_at, new.duration,
        multiIf(
            new.n_shared = 0, new.prompt_token_ids,
            is_whole, arrayConcat(
                beginnings.tokens,
                arraySlice(lines.tokens, 1, new.n_shared - lines.first_shared),
                new.prompt_token_ids),
            []) AS prompt_token_ids,
        new.response_token_ids, new.logprobs, new.finish_reason,
        new.trainable AND is_whole AS trainable,
        if(is_whole OR new.untrainable_reason != '', new.untrainable_reason, 'incomplete_token_ids') AS untrainable_reason,
        new.error_type,
        if(new.n_shared_messages = 0 OR NOT has_all, new.input_messages, concat('[', arrayStringConcat(
            arrayFilter(text -> text != '', arrayPushBack(texts_above, substring(new.input_messages, 2, length(new.input_messages) - 2))),
            ','), ']')) AS input_messages,
        new.output_messages, new.sampling, new.response_id, new.choice_index, new.retry_count
    FROM otel.call_lines AS lines
    RIGHT JOIN otel.recorded_calls AS new
        ON new.rollout_id = lines.rollout_id AND new.attempt = lines.attempt AND new.line = lines.line
    LEFT JOIN otel.line_beginnings AS beginnings
        ON beginnings.rollout_id = new.rollout_id AND beginnings.attempt = new.attempt AND beginnings.line = new.line
    WHERE new.depth > 0
) AS calls
LEFT ANY JOIN otel.agent_spans AS agents ON agents.trace_id = calls.trace_id AND agents.span_id = calls.span_id
LEFT ANY JOIN
(
    SELECT RolloutId AS rollout_id, RolloutAttempt AS attempt, TaskId AS task_id
    FROM otel.otel_traces
    WHERE RolloutStatus != ''
) AS roots ON roots.rollout_id = calls.rollout_id AND roots.attempt = calls.attempt;
