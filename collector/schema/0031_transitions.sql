-- `transitions`: what `tracegrad transitions` lists with its defaults, hierarchical credit with gamma 1, but for advantages.

-- One row is one span that a step has consumed, and what the newest such step of a policy did with it.
CREATE OR REPLACE VIEW otel.consumed_spans AS
SELECT
    samples.rollout_id AS rollout_id,
    samples.attempt AS attempt,
    samples.span_id AS span_id,
    steps.policy AS policy,
    argMax(samples.step_id, steps.started_at) AS step_id,
    max(steps.started_at) AS step_started_at,
    argMax(samples.used, steps.started_at) AS used,
    argMax(samples.drop_reason, steps.started_at) AS drop_reason
FROM (SELECT * FROM otel.train_samples FINAL) AS samples
INNER JOIN (SELECT step_id, policy, started_at FROM otel.train_steps FINAL) AS steps ON steps.step_id = samples.step_id
GROUP BY samples.rollout_id, samples.attempt, samples.span_id, steps.policy;

-- One row is one attempt, how it went, and its `circle`: that of all that are measured together, its task's or its own.
CREATE OR REPLACE VIEW otel.measured_attempts AS
SELECT
    rollout_id, attempt, task_id, status, split, reward, policies, n_calls,
    if(task_id != '', concat('task ', task_id), concat('rollout ', rollout_id, ' ', toString(attempt))) AS circle,
    split != 'eval' AND reward IS NOT NULL AND status IN ('succeeded', 'failed', 'timeout', 'running') AS is_looked_at
FROM otel.rollout_outcomes;

-- One row is one transition, as its task measures it, or one attempt of the policy that has none, whose span_id is empty: its
-- return counts all the same. An attempt that died before its first call is of its task's policies. `n_members`, `has_signal`:
-- of those measured together, attempts that a step would look at, because they are over, rewarded and not held out, and
-- whether any two credits among them differ by more than rounding. The newest step that consumed any of an attempt parts it
-- from those that others did. A filter on the circle reads what is in it; hence credits on the left of their join.
CREATE OR REPLACE VIEW otel.measured_transitions AS
SELECT
    rollout_id, attempt, policy, span_id, task_id, status, split, reward, credit, circle, step_id,
    uniqExactIf((rollout_id, attempt), is_looked_at) OVER members AS n_members,
    maxIf(credit, is_looked_at) OVER members - minIf(credit, is_looked_at) OVER members
        > 1e-12 * maxIf(abs(credit), is_looked_at) OVER members AS has_signal
FROM
(
    SELECT
        attempts.rollout_id AS rollout_id, attempts.attempt AS attempt, attempts.policy AS policy, attempts.task_id AS task_id,
        attempts.status AS status, attempts.split AS split, attempts.reward AS reward, attempts.circle AS circle,
        attempts.is_looked_at AS is_looked_at, attempts.step_id AS step_id, credits.span_id AS span_id,
        if(credits.span_id = '', ifNull(attempts.reward, 0), credits.hierarchical) AS credit
    FROM otel.credits(gamma = 1) AS credits
    RIGHT JOIN
    (
        SELECT attempts.*, consumed.step_id AS step_id
        FROM
        (
            SELECT *, policy
            FROM
            (
                SELECT
                    *,
                    if(n_calls > 0, policies, arrayDistinct(arrayFlatten(groupArray(policies) OVER (PARTITION BY circle)))) AS known
                FROM otel.measured_attempts
            )
            ARRAY JOIN known AS policy
        ) AS attempts
        LEFT ANY JOIN
        (
            SELECT rollout_id, attempt, policy, argMax(step_id, (step_started_at, step_id)) AS step_id
            FROM otel.consumed_spans
            GROUP BY rollout_id, attempt, policy
        ) AS consumed
            ON consumed.rollout_id = attempts.rollout_id AND consumed.attempt = attempts.attempt
                AND consumed.policy = attempts.policy
    ) AS attempts
        ON credits.rollout_id = attempts.rollout_id AND credits.attempt = attempts.attempt AND credits.policy = attempts.policy
)
WINDOW members AS (PARTITION BY policy, step_id, circle);

-- One row is one sampled choice that its agent received: state (`prompt_token_ids`), action (`response_token_ids`), reward and
-- next state, as `tracegrad transitions` lists it. The calls of one agent in one attempt are a sequence, by start and span id;
-- choices of one request share the next state, which is that of the request after. `reward`: what was given to this call;
-- `credit`: hierarchical, undiscounted; `advantage`: of a step alone, so NULL. `next_span_id` is NULL and
-- `next_prompt_token_ids` empty where `terminal`. `used` and `drop_reason` tell what the newest step did with it; where none
-- has, what a step with default limits would do (none takes a call that came after one consumed its attempt), as far as the store can tell, whose gate is `trainer/gate.py`.
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
        calls.split = 'eval', 'eval',
        calls.status IN ('succeeded', 'failed', 'timeout'), if(calls.reward IS NULL, 'no_reward', ''),
        calls.status != 'running' OR calls.reward IS NULL, calls.status,
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
        calls.attempts_step_id != '', 'came_late',
        call_reason != '', call_reason,
        calls.n_members < 2, 'singleton_group',
        NOT ifNull(calls.has_signal, false), 'no_signal',
        '') AS expected_reason
SELECT
    calls.rollout_id AS rollout_id, calls.attempt AS attempt, calls.task_id AS task_id, calls.agent AS agent,
    calls.trace_id AS trace_id, calls.span_id AS span_id, calls.index AS index, calls.prompt_token_ids AS prompt_token_ids,
    calls.response_token_ids AS response_token_ids, calls.logprobs AS logprobs, ifNull(given.reward, 0) AS reward,
    calls.credit AS credit, CAST(NULL, 'Nullable(Float64)') AS advantage,
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
                steps.*, measured.task_id AS task_id, measured.status AS status, measured.split AS split,
                measured.reward AS reward, measured.credit AS credit, measured.n_members AS n_members,
                measured.has_signal AS has_signal, measured.step_id AS attempts_step_id,
                response_id = '' OR response_id != lagInFrame(response_id) OVER (
                    PARTITION BY rollout_id, attempt, agent ORDER BY started_at, span_id
                    ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS is_first
            FROM otel.agent_steps AS steps
            INNER ANY JOIN
            (
                -- The circles of the attempts that are asked for, and of these what is asked for.
                SELECT
                    wanted.rollout_id AS rollout_id, wanted.attempt AS attempt, measured.policy AS policy,
                    measured.span_id AS span_id, measured.task_id AS task_id, measured.status AS status, measured.split AS split,
                    measured.reward AS reward, measured.credit AS credit, measured.n_members AS n_members,
                    measured.has_signal AS has_signal, measured.step_id AS step_id
                FROM otel.measured_transitions AS measured
                INNER JOIN (SELECT rollout_id, attempt, circle FROM otel.measured_attempts) AS wanted
                    ON wanted.circle = measured.circle AND wanted.rollout_id = measured.rollout_id
                        AND wanted.attempt = measured.attempt
            ) AS measured
                ON measured.rollout_id = steps.rollout_id AND measured.attempt = steps.attempt
                    AND measured.policy = steps.policy AND measured.span_id = steps.span_id
        )
    )
    WINDOW next_request AS (PARTITION BY rollout_id, attempt, agent ORDER BY request RANGE BETWEEN 1 FOLLOWING AND 1 FOLLOWING)
) AS calls
LEFT ANY JOIN
(
    SELECT rollout_id, attempt, span_id, toNullable(sum(score)) AS reward FROM otel.rewards GROUP BY rollout_id, attempt, span_id
) AS given ON given.rollout_id = calls.rollout_id AND given.attempt = calls.attempt AND given.span_id = calls.span_id
LEFT ANY JOIN otel.consumed_spans AS consumed
    ON consumed.rollout_id = calls.rollout_id AND consumed.span_id = calls.span_id AND consumed.policy = calls.policy;
