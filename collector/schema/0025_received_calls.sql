-- Which calls an agent received: those are its transitions.

-- One row is one sampled choice of a policy as its agent met it: its place among all the choices of that agent in one attempt.
CREATE OR REPLACE VIEW otel.agent_steps AS
SELECT
    rollout_id, attempt, agent, trace_id, span_id, policy, policy_version, started_at, prompt_token_ids, response_token_ids,
    logprobs, trainable, untrainable_reason, sampling, response_id, retry_count,
    -- What tells whether two requests are equal: a failed call may lack its token ids.
    if(empty(prompt_token_ids), '', toString(sipHash128(prompt_token_ids))) AS prompt_hash,
    sipHash64(input_messages) AS input_hash,
    row_number() OVER (PARTITION BY rollout_id, attempt, agent ORDER BY started_at, span_id) AS place
FROM otel.llm_calls
WHERE policy != '' AND rollout_id != '';

-- One row is one call that was asked again, so that the agent never had its response: a retry says so, or it was broken off
-- and an equal request followed. Of several that a retry may repeat it is one that ended badly, then the last: a client asks
-- again at once. Each retry, in order, explains one request, with all its choices. Where nothing was tried again or broken
-- off, nothing is read.
CREATE OR REPLACE VIEW otel.superseded_calls AS
WITH
    ((call, retry) -> call.place < retry.place AND call.retry_count = retry.retry_count - 1
        AND NOT (call.response_id != '' AND call.response_id = retry.response_id)
        AND if(
            call.prompt_hash != '' AND retry.prompt_hash != '',
            call.prompt_hash = retry.prompt_hash,
            call.input_hash = retry.input_hash)) AS may_repeat,
    ((found, call) -> call.place = found.place OR call.response_id != '' AND call.response_id = found.response_id) AS is_of_request
SELECT rollout_id, attempt, agent, arrayJoin(arrayFilter(call -> call.explained OR call.followed, calls)).span_id AS span_id
FROM
(
    SELECT
        rollout_id, attempt, agent,
        arrayFold(
            (told, retry) -> arrayMap(
                found -> arrayMap(
                    call -> CAST(
                        (call.place, call.span_id, call.retry_count, call.prompt_hash, call.input_hash, call.response_id,
                            call.badness, call.followed, call.explained OR may_repeat(call, retry) AND is_of_request(found, call)),
                        'Tuple(
                            place UInt64, span_id String, retry_count UInt32, prompt_hash String, input_hash UInt64,
                            response_id String, badness UInt8, followed Bool, explained Bool)'),
                    told),
                [arraySort(
                    call -> (call.badness, call.place),
                    arrayFilter(call -> NOT call.explained AND may_repeat(call, retry), told))[-1]])[1],
            arrayFilter(call -> call.retry_count > 0, in_order),
            in_order) AS calls
    FROM
    (
        SELECT
            rollout_id, attempt, agent,
            arraySort(call -> call.place, groupArray(CAST(
                (place, span_id, retry_count, prompt_hash, input_hash, response_id,
                    multiIf(untrainable_reason = 'error', 2, is_broken_off, 1, 0),
                    is_broken_off
                        AND place < greatest(last_equal_prompt, if(prompt_hash = '', last_equal_input, last_bare_equal_input)),
                    false),
                'Tuple(
                    place UInt64, span_id String, retry_count UInt32, prompt_hash String, input_hash UInt64,
                    response_id String, badness UInt8, followed Bool, explained Bool)'))) AS in_order
        FROM
        (
            SELECT
                *,
                untrainable_reason IN ('aborted', 'client_disconnected') AS is_broken_off,
                if(prompt_hash = '', 0, max(place) OVER (PARTITION BY rollout_id, attempt, agent, prompt_hash)) AS last_equal_prompt,
                max(place) OVER (PARTITION BY rollout_id, attempt, agent, input_hash) AS last_equal_input,
                max(if(prompt_hash = '', place, 0)) OVER (
                    PARTITION BY rollout_id, attempt, agent, input_hash) AS last_bare_equal_input
            FROM otel.agent_steps AS steps
            LEFT SEMI JOIN
            (
                SELECT RolloutId AS rollout_id
                FROM otel.otel_traces
                WHERE RetryCount > 0 OR UntrainableReason IN ('aborted', 'client_disconnected')
            ) AS tried_again ON tried_again.rollout_id = steps.rollout_id
        )
        GROUP BY rollout_id, attempt, agent
    )
);

-- One row is one sampled choice of a policy that its agent received: one transition.
CREATE OR REPLACE VIEW otel.received_calls AS
SELECT
    calls.rollout_id AS rollout_id, calls.attempt AS attempt, calls.agent AS agent, calls.trace_id AS trace_id,
    calls.span_id AS span_id, calls.policy AS policy, calls.started_at AS started_at
FROM
(
    SELECT
        calls.rollout_id AS rollout_id, calls.attempt AS attempt, around.agent AS agent, calls.trace_id AS trace_id,
        calls.span_id AS span_id, calls.policy AS policy, calls.started_at AS started_at
    FROM otel.recorded_calls AS calls
    LEFT ANY JOIN otel.call_contexts AS around
        ON around.rollout_id = calls.rollout_id AND around.attempt = calls.attempt AND around.trace_id = calls.trace_id
            AND around.span_id = calls.span_id AND around.started_at = calls.started_at
    WHERE calls.policy != '' AND calls.rollout_id != '' AND calls.untrainable_reason != 'error'
) AS calls
LEFT ANTI JOIN otel.superseded_calls AS superseded
    ON superseded.rollout_id = calls.rollout_id AND superseded.attempt = calls.attempt
        AND superseded.agent = calls.agent AND superseded.span_id = calls.span_id;
