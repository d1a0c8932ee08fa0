-- `transitions`: what `tracegrad transitions` lists with identical credit and without advantages, as SQL.

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
WHERE policy != '';

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
            FROM otel.agent_steps
            WHERE rollout_id IN
            (
                SELECT RolloutId
                FROM otel.otel_traces
                WHERE RetryCount > 0 OR UntrainableReason IN ('aborted', 'client_disconnected')
            )
        )
        GROUP BY rollout_id, attempt, agent
    )
);

-- One row is one span that a step has consumed, and what the newest such step of a policy did with it.
CREATE OR REPLACE VIEW otel.consumed_spans AS
SELECT
    samples.rollout_id AS rollout_id,
    samples.span_id AS span_id,
    steps.policy AS policy,
    argMax(samples.step_id, steps.started_at) AS step_id,
    argMax(samples.used, steps.started_at) AS used,
    argMax(samples.drop_reason, steps.started_at) AS drop_reason
FROM (SELECT * FROM otel.train_samples FINAL) AS samples
INNER JOIN (SELECT step_id, policy, started_at FROM otel.train_steps FINAL) AS steps ON steps.step_id = samples.step_id
GROUP BY samples.rollout_id, samples.span_id, steps.policy;

-- One row is one attempt and one policy of its calls, or of its task's where it died before its first call: how the attempt
-- went, and who is measured together. `n_members` and `has_signal` are of those that a step would look at, because they are
-- over, rewarded and not held out. The newest step that consumed any of an attempt parts it from those that others did.
CREATE OR REPLACE VIEW otel.measured_attempts AS
SELECT
    rollout_id, attempt, policy, task_id, status, split, reward,
    countIf(is_looked_at) OVER members AS n_members,
    maxIf(reward, is_looked_at) OVER members - minIf(reward, is_looked_at) OVER members
        > 1e-12 * maxIf(abs(reward), is_looked_at) OVER members AS has_signal
FROM
(
    SELECT
        attempts.rollout_id AS rollout_id, attempts.attempt AS attempt, attempts.policy AS policy, attempts.task_id AS task_id,
        attempts.status AS status, attempts.split AS split, attempts.reward AS reward, attempts.circle AS circle,
        attempts.is_looked_at AS is_looked_at, consumed.step_id AS step_id
    FROM
    (
        SELECT
            *,
            arrayJoin(if(
                n_calls > 0, policies, arrayDistinct(arrayFlatten(groupArray(policies) OVER (PARTITION BY circle))))) AS policy
        FROM
        (
            SELECT
                rollout_id, attempt, task_id, status, split, reward, policies, n_calls,
                if(task_id != '', concat('task ', task_id), concat('rollout ', rollout_id, ' ', toString(attempt))) AS circle,
                split != 'eval' AND reward IS NOT NULL AND status IN ('succeeded', 'failed', 'timeout', 'running') AS is_looked_at
            FROM otel.rollout_outcomes
        )
    ) AS attempts
    LEFT ANY JOIN
    (
        SELECT rollout_id, policy, max(step_id) AS step_id FROM otel.consumed_spans GROUP BY rollout_id, policy
    ) AS consumed ON consumed.rollout_id = attempts.rollout_id AND consumed.policy = attempts.policy
)
WINDOW members AS (PARTITION BY policy, step_id, circle);

-- One row is one sampled choice that its agent received: state (`prompt_token_ids`), action (`response_token_ids`), reward and
-- next state, as `tracegrad transitions` lists it. The calls of one agent in one attempt are a sequence, by start and span id;
-- choices of one request share the next state, which is that of the request after. `reward`: what was given to this call;
-- `credit`: the sum of all that was given in the attempt; `advantage`: of a step alone, so NULL. `next_span_id` is NULL and
-- `next_prompt_token_ids` empty where `terminal`. `used` and `drop_reason` tell what the newest step did with it; where none
-- has, what a step with default limits would do, whose gate is `trainer/gate.py`.
CREATE OR REPLACE VIEW otel.transitions AS
WITH
    -- Of a sampling parameter its name, its JSON text, and its number: whether it leaves the distribution as it is.
    (parameter -> parameter.2 = 'null' OR multiIf(
        parameter.1 IN ('temperature', 'top_p', 'repetition_penalty'), parameter.3 = 1,
        parameter.1 = 'top_k', parameter.3 IN (0, -1),
        parameter.1 IN ('min_p', 'presence_penalty', 'frequency_penalty', 'min_tokens'), parameter.3 = 0,
        parameter.1 = 'thinking_token_budget', parameter.3 = -1,
        parameter.1 = 'tool_choice', parameter.2 IN ('"auto"', '"none"'),
        parameter.1 = 'logprobs_mode', parameter.2 IN ('"raw_logprobs"', '"processed_logprobs"'),
        parameter.1 IN (
            'logit_bias', 'bad_words', 'allowed_token_ids', 'structured_outputs', 'use_beam_search', 'watermarking',
            'vllm_xargs', 'ignore_eos', 'strict_tools', 'response_format'),
        parameter.3 = 0 OR parameter.2 IN ('""', '[]', '{}')
            OR parameter.1 = 'response_format'
                AND (parameter.2 = '"text"' OR JSONExtractKeysAndValuesRaw(parameter.2) = [('type', '"text"')]),
        true)) AS is_neutral,
    arrayMap(
        parameter -> (parameter.1, parameter.2, multiIf(
            parameter.2 = 'true', 1, parameter.2 = 'false', 0, toFloat64OrNull(parameter.2))),
        JSONExtractKeysAndValuesRaw(calls.sampling)) AS parameters,
    multiIf(
        outcomes.split = 'eval', 'eval',
        outcomes.status IN ('succeeded', 'failed', 'timeout'), if(outcomes.reward IS NULL, 'no_reward', ''),
        outcomes.status != 'running' OR outcomes.reward IS NULL, outcomes.status,
        '') AS rollout_reason,
    multiIf(
        NOT calls.trainable, if(calls.untrainable_reason != '', calls.untrainable_reason, 'untrainable'),
        empty(calls.prompt_token_ids) OR empty(calls.response_token_ids), 'no_tokens',
        length(calls.logprobs) != length(calls.response_token_ids)
            OR arrayExists(value -> NOT isFinite(value) OR value > toFloat32(0.001), calls.logprobs), 'no_logprobs',
        length(calls.prompt_token_ids) > 4096 OR length(calls.response_token_ids) > 2048, 'too_long',
        JSONType(calls.sampling) != 'Object' OR NOT isValidJSON(calls.sampling)
            OR NOT arrayAll(parameter -> ifNull(is_neutral(parameter), false), parameters), 'off_distribution',
        '') AS call_reason,
    multiIf(
        rollout_reason != '', rollout_reason,
        call_reason != '', call_reason,
        outcomes.n_members < 2, 'singleton_group',
        NOT ifNull(outcomes.has_signal, false), 'no_signal',
        '') AS expected_reason
SELECT
    calls.rollout_id AS rollout_id, calls.attempt AS attempt, outcomes.task_id AS task_id, calls.agent AS agent,
    calls.trace_id AS trace_id, calls.span_id AS span_id, calls.index AS index, calls.prompt_token_ids AS prompt_token_ids,
    calls.response_token_ids AS response_token_ids, calls.logprobs AS logprobs, ifNull(given.reward, 0) AS reward,
    ifNull(outcomes.reward, 0) AS credit, CAST(NULL, 'Nullable(Float64)') AS advantage,
    if(calls.terminal, NULL, calls.next_span_id) AS next_span_id, calls.next_prompt_token_ids AS next_prompt_token_ids,
    calls.terminal AS terminal, calls.policy AS policy, calls.policy_version AS policy_version, calls.started_at AS started_at,
    if(consumed.step_id != '', consumed.used, expected_reason = '') AS used,
    nullIf(if(consumed.step_id != '', consumed.drop_reason, expected_reason), '') AS drop_reason
FROM
(
    SELECT
        *,
        toUInt32(row_number() OVER (PARTITION BY rollout_id, attempt, agent ORDER BY started_at, span_id) - 1) AS index,
        max(request) OVER (PARTITION BY rollout_id, attempt, agent) = request AS terminal,
        anyIf(span_id, is_first) OVER next_request AS next_span_id,
        anyIf(prompt_token_ids, is_first) OVER next_request AS next_prompt_token_ids
    FROM
    (
        SELECT *, sum(is_first) OVER (PARTITION BY rollout_id, attempt, agent ORDER BY started_at, span_id) AS request
        FROM
        (
            SELECT
                *,
                response_id = '' OR response_id != lagInFrame(response_id) OVER (
                    PARTITION BY rollout_id, attempt, agent ORDER BY started_at, span_id
                    ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS is_first
            FROM otel.agent_steps AS steps
            LEFT ANTI JOIN otel.superseded_calls AS superseded
                ON superseded.rollout_id = steps.rollout_id AND superseded.attempt = steps.attempt
                    AND superseded.agent = steps.agent AND superseded.span_id = steps.span_id
            WHERE untrainable_reason != 'error'
        )
    )
    WINDOW next_request AS (PARTITION BY rollout_id, attempt, agent ORDER BY request RANGE BETWEEN 1 FOLLOWING AND 1 FOLLOWING)
) AS calls
LEFT ANY JOIN otel.measured_attempts AS outcomes
    ON outcomes.rollout_id = calls.rollout_id AND outcomes.attempt = calls.attempt AND outcomes.policy = calls.policy
LEFT ANY JOIN
(
    SELECT rollout_id, attempt, span_id, toNullable(sum(score)) AS reward FROM otel.rewards GROUP BY rollout_id, attempt, span_id
) AS given ON given.rollout_id = calls.rollout_id AND given.attempt = calls.attempt AND given.span_id = calls.span_id
LEFT ANY JOIN otel.consumed_spans AS consumed
    ON consumed.rollout_id = calls.rollout_id AND consumed.span_id = calls.span_id AND consumed.policy = calls.policy;
