"""Names on the wire. Span and log attributes that the rooms agree on; each is declared here once.

OpenTelemetry's GenAI names are used where one exists; `tracegrad.*` names what has no convention.
"""

# Identity of a rollout (one run of an agent on a task) and of its tries.
ROLLOUT_ID = "tracegrad.rollout.id"
ROLLOUT_ATTEMPT = "tracegrad.rollout.attempt"
TASK_ID = "tracegrad.task.id"

# The launcher's root span.
ROOT_SPAN_NAME = "rollout"
ROLLOUT_STATUS = "tracegrad.rollout.status"  # succeeded | failed | timeout
ROLLOUT_SPLIT = "tracegrad.rollout.split"  # train | eval: the trainer never learns from eval
ROLLOUT_STDOUT = "tracegrad.rollout.stdout"  # the last bytes, as text
ROLLOUT_STDERR = "tracegrad.rollout.stderr"
EXIT_CODE = "process.exit.code"

# The sidecar's span of a model call.
POLICY_NAME = "tracegrad.policy.name"
POLICY_VERSION = "tracegrad.policy.version"
CHOICE_INDEX = "tracegrad.choice.index"
PROMPT_TOKEN_IDS = "tracegrad.prompt.token_ids"
RESPONSE_TOKEN_IDS = "tracegrad.response.token_ids"
RESPONSE_LOGPROBS = "tracegrad.response.logprobs"
SAMPLING = "tracegrad.sampling"
TRAINABLE = "tracegrad.trainable"
UNTRAINABLE_REASON = "tracegrad.untrainable.reason"  # docs/sidecar.md, "What is exact"
RETRY_COUNT = "tracegrad.retry.count"
TENANT = "tracegrad.tenant"  # whose key the call bore
CONTINUATION = "tracegrad.continuation"  # tokens: prompted with an earlier call's ids; else why not
ANSWER_UNREAD = "tracegrad.answer.unread"  # why a provider's answer is not all there: too_long, compressed, no_json
PROMPT_NAME = "tracegrad.prompt.name"  # the system prompt that replaced the agent's own
PROMPT_VERSION = "tracegrad.prompt.version"

# A call that extends an earlier one of its rollout holds only what is new; the view `llm_calls` shows it whole.
EXTENDS_SPAN_ID = "tracegrad.extends.span_id"  # the span that holds the earlier call's tokens
EXTENDS_ROOT = "tracegrad.extends.root"  # the first such span on the way up, which extends nothing
EXTENDS_DEPTH = "tracegrad.extends.depth"  # how many spans up that is: 1 for one that extends a root
EXTENDS_TOKENS = "tracegrad.extends.tokens"  # the prompt begins with so many ids of the earlier prompt and response
EXTENDS_MESSAGES = "tracegrad.extends.messages"  # the input begins with so many messages, all of the earlier call's
EXTENDS_TOOLS = "tracegrad.extends.tools"  # true: the tool definitions are the earlier call's
EXTENDS_LINE = "tracegrad.extends.line"  # the span that begins this chain of calls; absent: the root
EXTENDS_PATH = "tracegrad.extends.path"  # on that span, JSON: the chains between the root's and this one, in order
PROMPT_LENGTH = "tracegrad.prompt.length"  # how many ids the whole prompt has
PROMPT_CRC32 = "tracegrad.prompt.crc32"  # of the whole prompt as compact JSON: what is put together must have it

# A span of another system that `tracegrad import` brought.
IMPORT_PREFIX = "tracegrad.import."  # trace_id, span_id: those that it had
IMPORT_SOURCE = "tracegrad.import.source"  # otlp | openinference | langfuse
IMPORT_SERVICE = "tracegrad.import.service"  # the service and the scope that it had
IMPORT_SCOPE = "tracegrad.import.scope"

AGENT_NAME = "gen_ai.agent.name"
OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_DEFINITIONS = "gen_ai.tool.definitions"
CONVERSATION_ID = "gen_ai.conversation.id"
ERROR_TYPE = "error.type"

# A reward: a log record with this event name, on the span it judges.
EVALUATION_EVENT = "gen_ai.evaluation.result"
EVALUATION_NAME = "gen_ai.evaluation.name"
EVALUATION_SCORE = "gen_ai.evaluation.score.value"
EVALUATION_LABEL = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION = "gen_ai.evaluation.explanation"
RULE_VERSION = "tracegrad.rule.version"  # of the rule that gave it: a digest of its settings and code

# HTTP headers.
HEADER_ROLLOUT_ID = "x-rollout-id"
HEADER_AGENT = "x-tracegrad-agent"
HEADER_POLICY = "x-tracegrad-policy"
HEADER_SPAN_ID = "x-tracegrad-span-id"
BAGGAGE_ROLLOUT_ID = "rollout.id"
BAGGAGE_TASK_ID = "task.id"
BAGGAGE_SPLIT = "rollout.split"  # eval: the agent is being measured, so its sampling settings stay its own
