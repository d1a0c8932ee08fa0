-- `llm_calls`, and what it is put together from. See 0007 on how calls that extend others are recorded.

-- One row is one sampled choice as its span tells it: of a call that extends another (`depth` > 0), what is new.
-- GROUP BY drops spans that were delivered twice and, unlike LIMIT BY, lets a filter on any of its keys reach the table;
-- hence the start among them, which is the same whenever a span is sent again.
-- One of them is shown as a whole. A sidecar that was killed may have sent a span, and its successor once more as not
-- proved (`mixed_versions`): then the first counts.
CREATE OR REPLACE VIEW otel.recorded_calls AS
WITH multiIf(Trainable, 2, UntrainableReason != 'mixed_versions', 1, 0) AS standing
SELECT
    TraceId AS trace_id,
    SpanId AS span_id,
    RolloutId AS rollout_id,
    RolloutAttempt AS attempt,
    Timestamp AS started_at,
    CallLine AS line,
    ExtendsDepth AS depth,
    argMax(ParentSpanId, standing) AS parent_span_id,
    argMax(TaskId, standing) AS task_id,
    argMax(PolicyName, standing) AS policy,
    -- The tuple is there because argMax takes no NULL.
    argMax(tuple(PolicyVersion), standing).1 AS policy_version,
    argMax(Model, standing) AS model,
    argMax(EndedAt, standing) AS ended_at,
    argMax(PromptTokenIds, standing) AS prompt_token_ids,
    argMax(ResponseTokenIds, standing) AS response_token_ids,
    argMax(ResponseLogprobs, standing) AS logprobs,
    argMax(FinishReason, standing) AS finish_reason,
    argMax(Trainable, standing) AS trainable,
    argMax(UntrainableReason, standing) AS untrainable_reason,
    argMax(ErrorType, standing) AS error_type,
    -- From the map, not from columns of their own: they are as large as everything else together.
    argMax(SpanAttributes['gen_ai.input.messages'], standing) AS input_messages,
    argMax(SpanAttributes['gen_ai.output.messages'], standing) AS output_messages,
    argMax(Sampling, standing) AS sampling,
    argMax(ResponseId, standing) AS response_id,
    argMax(ChoiceIndex, standing) AS choice_index,
    argMax(RetryCount, standing) AS retry_count,
    argMax(ExtendsRoot, standing) AS root,
    argMax(ExtendsTokens, standing) AS n_shared,
    argMax(ExtendsMessages, standing) AS n_shared_messages,
    argMax(length(PromptTokenIds), standing) AS n_new,
    argMax(PromptLength, standing) AS n_prompt,
    argMax(PromptCrc32, standing) AS prompt_crc32,
    argMax(ToolCallIds, standing) AS tool_call_ids,
    argMax(AnswerFaults, standing) AS answer_faults
FROM otel.otel_traces
WHERE IsLlmCall
GROUP BY TraceId, SpanId, RolloutId, RolloutAttempt, Timestamp, CallLine, ExtendsDepth;

-- One row is one call of a line, which is of one rollout: all that extend another, and the roots that are extended.
-- `tokens`: what is new in its prompt, and its response. `messages`: its new ones, as JSON text without
-- the brackets and with a comma at the end.
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
    any(SpanAttributes['gen_ai.input.messages']) AS own_messages,
    if(length(own_messages) <= 2, '', concat(substring(own_messages, 2, length(own_messages) - 2), ',')) AS messages
FROM
(
    SELECT
        RolloutId, RolloutAttempt, CallLine, SpanId, ExtendsDepth, ExtendsTokens, ExtendsMessages, PromptTokenIds,
        ResponseTokenIds, SpanAttributes
    FROM otel.otel_traces
    WHERE IsLlmCall AND ExtendsDepth > 0
    UNION ALL
    SELECT
        RolloutId, RolloutAttempt, CallLine, SpanId, ExtendsDepth, ExtendsTokens, ExtendsMessages, PromptTokenIds,
        ResponseTokenIds, SpanAttributes
    FROM otel.otel_traces AS roots
    LEFT SEMI JOIN
    (
        SELECT RolloutId AS rollout_id, RolloutAttempt AS attempt, ExtendsRoot AS root FROM otel.otel_traces WHERE ExtendsDepth = 1
    ) AS extended ON extended.rollout_id = RolloutId AND extended.attempt = RolloutAttempt AND extended.root = SpanId
    WHERE IsLlmCall AND ExtendsDepth = 0
)
GROUP BY RolloutId, RolloutAttempt, CallLine, SpanId;

-- One row is one line. `tokens`: those that its calls share, one after another, behind the `first_shared` ones that its
-- first call shares with the line before. `messages`: of all its calls, in order, each followed by a comma; those of the
-- nth end at `message_ends[n]`, and what it says begins at `message_starts[n]`, behind which the next call with all
-- messages begins anew; -1: on a line before. A call deeper than `whole_depth` cannot be put together: one above it is
-- missing, is not the only one of its depth, or has not the tokens that were taken from it.
CREATE OR REPLACE VIEW otel.call_lines AS
WITH
    arraySort(call -> call.1, groupArray((parts.depth, parts.n_shared, parts.n_tokens, parts.span_id = parts.line))) AS calls,
    arrayPopFront(calls) AS nexts,
    arrayPushBack(arrayMap(call -> call.2, nexts), calls[-1].2) AS next_shared,
    arrayPushBack(arrayMap(call -> call.1, nexts), calls[-1].1 + 1) AS next_depth,
    arrayFirstIndex(
        (call, next, below, place) -> call.1 + 1 != first_depth + place OR call.1 = below OR next < call.2 OR next > call.2 + call.3,
        calls, next_shared, next_depth, arrayEnumerate(calls)) AS broken_at,
    arraySort(own -> own.1, groupArray((parts.depth, parts.has_all_messages, parts.messages))) AS said
SELECT
    parts.rollout_id AS rollout_id,
    parts.attempt AS attempt,
    parts.line AS line,
    calls[1].1 AS first_depth,
    calls[1].2 AS first_shared,
    multiIf(
        NOT calls[1].4, -1,
        broken_at = 0, toInt64(calls[-1].1),
        toInt64(first_depth) + broken_at - 1 - (calls[broken_at].1 = next_depth[broken_at])) AS whole_depth,
    arraySum((call, next) -> greatest(next, call.2) - call.2, calls, next_shared) AS n_tokens,
    arrayFlatten(arrayMap(
        (call, next, own) -> arraySlice(own.2, 1, greatest(next, call.2) - call.2),
        calls, next_shared, arraySort(own -> own.1, groupArray((parts.depth, parts.tokens))))) AS tokens,
    arrayStringConcat(said.3) AS messages,
    arrayCumSum(text -> length(text), said.3) AS message_ends,
    arrayFill(start -> start >= 0, arrayMap(
        (has_all, text, end) -> if(has_all, toInt64(end) - toInt64(length(text)), -1), said.2, said.3, message_ends)) AS message_starts
FROM otel.line_calls AS parts
GROUP BY parts.rollout_id, parts.attempt, parts.line;

-- One row is one fork: what its line has from the line that it leaves, behind what that one has from lines before. Forks are
-- few: what they need is on the left of their joins, so that no more of it is read. `is_whole`: all of it is there.
CREATE OR REPLACE VIEW otel.call_forks AS
SELECT
    lines.rollout_id AS rollout_id,
    lines.attempt AS attempt,
    lines.fork AS line,
    greatest(calls.n_shared, lines.first_shared) - lines.first_shared AS n_before,
    greatest(lines.fork_shares, calls.n_shared) - calls.n_shared AS n_of_call,
    lines.line != '' AND calls.line != '' AND calls.depth <= lines.whole_depth AND n_before <= lines.n_tokens
        AND n_of_call <= calls.n_tokens AS is_whole,
    n_before + n_of_call AS n_tokens,
    arrayConcat(arraySlice(lines.tokens, 1, n_before), arraySlice(calls.tokens, 1, n_of_call)) AS tokens,
    least(toUInt64(greatest(toInt64(calls.depth) - lines.first_depth + 1, 0)), length(lines.message_ends)) AS n_calls,
    n_calls > 0 AND lines.message_starts[n_calls] >= 0 AS begins_anew,
    substring(
        lines.messages, if(begins_anew, lines.message_starts[n_calls], 0) + 1,
        lines.message_ends[n_calls] - if(begins_anew, lines.message_starts[n_calls], 0)) AS messages
FROM otel.line_calls AS calls
RIGHT ANY JOIN
(
    SELECT
        forks.rollout_id AS rollout_id, forks.attempt AS attempt, forks.line AS fork, forks.extends AS extends,
        forks.n_shared AS fork_shares, lines.line AS line, lines.first_depth AS first_depth, lines.first_shared AS first_shared,
        lines.whole_depth AS whole_depth, lines.n_tokens AS n_tokens, lines.tokens AS tokens, lines.messages AS messages,
        lines.message_ends AS message_ends, lines.message_starts AS message_starts
    FROM otel.call_lines AS lines
    RIGHT ANY JOIN
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
    ) AS forks ON lines.rollout_id = forks.rollout_id AND lines.attempt = forks.attempt AND lines.line = forks.line_before
) AS lines ON calls.rollout_id = lines.rollout_id AND calls.attempt = lines.attempt AND calls.span_id = lines.extends;

-- One row is one line that began as a fork: all that it has from the lines before it, from the root on.
CREATE OR REPLACE VIEW otel.line_beginnings AS
SELECT
    lines.rollout_id AS rollout_id,
    lines.attempt AS attempt,
    lines.line AS line,
    min(forks.is_whole) AND count() = any(lines.n_forks) AS is_whole,
    sum(forks.n_tokens) AS n_tokens,
    arrayFlatten(arrayMap(one -> one.2, arraySort(one -> one.1, groupArray((lines.place, forks.tokens))))) AS tokens,
    arraySort(one -> one.1, groupArray((lines.place, forks.begins_anew, forks.messages))) AS said,
    arrayStringConcat(arraySlice(said.3, greatest(arrayLastIndex(begins_anew -> begins_anew, said.2), 1))) AS messages
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
    if(calls.task_id = '', around.task_id, calls.task_id) AS task_id,
    around.agent AS agent,
    calls.policy AS policy,
    calls.policy_version AS policy_version,
    calls.model AS model,
    calls.started_at AS started_at,
    calls.ended_at AS ended_at,
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
    calls.retry_count AS retry_count,
    calls.tool_call_ids AS tool_call_ids,
    calls.answer_faults AS answer_faults
FROM
(
    SELECT
        trace_id, span_id, parent_span_id, rollout_id, attempt, task_id, policy, policy_version, model, started_at, ended_at,
        prompt_token_ids, response_token_ids, logprobs, finish_reason, trainable, untrainable_reason, error_type,
        input_messages, output_messages, sampling, response_id, choice_index, retry_count, tool_call_ids, answer_faults
    FROM otel.recorded_calls
    WHERE depth = 0
    UNION ALL
    WITH
        lines.whole_depth >= new.depth AND lines.line != '' AND (new.line = new.root OR beginnings.is_whole) AS has_all,
        least(new.n_shared - lines.first_shared, lines.n_tokens) AS n_of_line,
        new.n_shared = 0 OR (
            has_all AND beginnings.n_tokens + n_of_line = new.n_shared AND new.n_shared + new.n_new = new.n_prompt) AS is_whole,
        arrayConcat(beginnings.tokens, arraySlice(lines.tokens, 1, n_of_line), new.prompt_token_ids) AS prompt,
        least(toUInt64(greatest(toInt64(new.depth) - lines.first_depth, 0)), length(lines.message_ends)) AS n_above,
        n_above > 0 AND lines.message_starts[n_above] >= 0 AS begins_anew,
        concat(
            if(begins_anew, '', beginnings.messages),
            substring(
                lines.messages, if(begins_anew, lines.message_starts[n_above], 0) + 1,
                lines.message_ends[n_above] - if(begins_anew, lines.message_starts[n_above], 0))) AS messages_above
    SELECT
        new.trace_id, new.span_id, new.parent_span_id, new.rollout_id, new.attempt, new.task_id, new.policy,
        new.policy_version, new.model, new.started_at, new.ended_at,
        multiIf(
            new.n_shared = 0, new.prompt_token_ids,
            is_whole AND length(prompt) = new.n_prompt AND CRC32(toString(prompt)) = new.prompt_crc32, prompt,
            []) AS prompt_token_ids,
        new.response_token_ids, new.logprobs, new.finish_reason,
        new.trainable AND is_whole AS trainable,
        if(is_whole OR new.untrainable_reason != '', new.untrainable_reason, 'incomplete_token_ids') AS untrainable_reason,
        new.error_type,
        multiIf(
            new.n_shared_messages = 0 OR NOT has_all, new.input_messages,
            length(new.input_messages) <= 2, concat('[', substring(messages_above, 1, length(messages_above) - 1), ']'),
            concat('[', messages_above, substring(new.input_messages, 2))) AS input_messages,
        new.output_messages, new.sampling, new.response_id, new.choice_index, new.retry_count, new.tool_call_ids,
        new.answer_faults
    FROM otel.call_lines AS lines
    RIGHT JOIN otel.recorded_calls AS new
        ON new.rollout_id = lines.rollout_id AND new.attempt = lines.attempt AND new.line = lines.line
    LEFT JOIN otel.line_beginnings AS beginnings
        ON beginnings.rollout_id = new.rollout_id AND beginnings.attempt = new.attempt AND beginnings.line = new.line
    WHERE new.depth > 0
) AS calls
LEFT ANY JOIN otel.call_contexts AS around
    ON around.rollout_id = calls.rollout_id AND around.attempt = calls.attempt AND around.trace_id = calls.trace_id
        AND around.span_id = calls.span_id AND around.started_at = calls.started_at;
