"""One model call, from the request's arrival to its end, and the spans that tell of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import urlsplit

from sidecar.chat_answer import Answer, Choice, Numbers, inexact_reason, mapping, text
from sidecar.continuation.continued import Continued
from sidecar.history import Growth
from sidecar.identity import Identity
from sidecar.messages import input_messages, output_messages, tool_definitions
from sidecar.policy import Replica, Stamp
from sidecar.redaction import keys_in, redacted
from sidecar.sampling import forced, max_tokens, sampling
from tracegrad import names
from tracegrad.otlp import SpanContext
from tracegrad.otlp_span import SPAN_INTERNAL, SPAN_SERVER, Value, encoded_attributes, encoded_span

NO_LOGPROBS = "no_logprobs"
PASSTHROUGH, ERROR, MIXED, DISCONNECTED = "passthrough", "error", "mixed_versions", "client_disconnected"

SHARED_BY_CHOICES = (
    names.REQUEST_MODEL,
    names.RESPONSE_ID,
    names.RESPONSE_MODEL,
    names.SAMPLING,
    names.INPUT_MESSAGES,
)
"""What the span of each of several choices repeats of its call, so that a choice is complete by itself."""


@dataclass
class Call:
    """What is known of a call so far; filled in as it goes, turned into spans once, at its end."""

    identity: Identity
    started_ns: int
    operation: str = "chat"
    provider: str | None = None
    """Whose API it is, in OpenTelemetry's words; None while no route is chosen."""
    tenant: str = ""
    agent: str | None = None
    """Who calls, by the `x-tracegrad-agent` header."""
    prompt: tuple[str, int] | None = None
    """Name and version of the system prompt that replaced the agent's own."""
    body: dict[str, Any] = field(default_factory=dict)
    chat: Callable[[dict[str, Any]], Mapping[str, Any]] = dict
    """Gives the body in chat completions' names."""
    pins: Mapping[str, Any] = field(default_factory=dict)
    """Sampling settings that were set whatever the client asked for."""
    continuation: Continued | None = None
    """What it extends by token ids, or why it does not; None where that is switched off."""
    policy: str | None = None
    replica: Replica | None = None
    """The engine that serves a policy's call."""
    upstream: str | None = None
    start: Stamp | None = None
    """What was known of the replica's weights when the call went out."""
    end: Stamp | None = None
    """The same after it came back, by the engine's own word."""
    status: int | None = None
    answer: Answer = field(default_factory=Answer)
    error_type: str | None = None
    error_message: str = ""
    credentials: tuple[Mapping[str, str], str | None] = field(default=({}, None), repr=False)
    """The client's headers, and the key that went upstream in the place of its own: never recorded."""
    untrainable: str | None = None
    """Decided before the tokens are looked at: passthrough, error, aborted, client_disconnected."""
    unread: str | None = None
    """Why the record lacks the answer or its end, which the client has: too_long, compressed, no_json."""
    delivered: bool = False
    """The whole answer was written to the client, which may then close as it likes."""
    ended_ns: int = 0
    growth: Growth | None = None
    """What of its record earlier calls hold; None: nothing, and no later one extends it."""

    @property
    def model(self) -> str:
        """The model name the client asked for; empty without one."""
        model = self.body.get("model")
        return model if isinstance(model, str) else ""

    @property
    def version(self) -> int | None:
        """The one policy version that sampled every token; None when that is not proved."""
        return self.start.version if self.start is not None and self.start == self.end else None

    def fail(self, error_type: str, message: str, untrainable: str = ERROR) -> None:
        """Note what went wrong, without keys that the message may hold; what was noted first stays."""
        self.untrainable = self.untrainable or untrainable
        if self.error_type is None:
            self.error_type, self.error_message = error_type, redacted(message, keys_in(*self.credentials))

    def why_untrainable(self) -> tuple[str | None, ...]:
        """Why each choice (of a call that brought none: the call) must not be trained on; None for one that may.

        To be asked once the call has ended: what cannot change after that is looked at once.
        """
        choices = self.answer.choices
        if self.untrainable is not None or not choices:
            return (self.untrainable or ERROR,) * max(1, len(choices))
        reason = MIXED if self.version is None else None if self._exact_logprobs else NO_LOGPROBS
        return tuple(inexact or reason for inexact in self._inexact)

    @cached_property
    def _inexact(self) -> tuple[str | None, ...]:
        """Why each choice's tokens are not proved exact, whoever sampled them."""
        return tuple(inexact_reason(self.answer, choice) for choice in self.answer.choices)

    @property
    def _exact_logprobs(self) -> bool:
        return not self._forced and (self.replica is None or self.replica.traits.exact_logprobs)

    @cached_property
    def _forced(self) -> bool:
        return forced(self.chat(self.body))


def verdicts(call: Call, reasons: Sequence[str | None]) -> list[bytes]:
    """What each of `bare_spans` lacks, to be appended to its bytes. `reasons`: `why_untrainable`, as known now."""
    version = call.version if call.policy else None
    found = [_verdict(version, reason) for reason in reasons]
    return found if len(found) < 2 else [*found, b""]


@lru_cache(maxsize=64)
def _verdict(version: int | None, reason: str | None) -> bytes:
    values: dict[str, Value] = {names.POLICY_VERSION: version, names.TRAINABLE: reason is None}
    return encoded_attributes({**values, names.UNTRAINABLE_REASON: reason})


def bare_spans(call: Call) -> Iterator[bytes]:
    """The call's span, encoded; with several choices, one more per choice, which then carries its tokens.

    All without the verdicts: which weights sampled it and whether to train on it, which the engine decides.
    """
    choices = call.answer.choices
    values = _call_values(call)
    if len(choices) > 1:
        for position, choice in enumerate(choices):
            trace_id = call.identity.context.trace_id
            context = call.growth.context(position, trace_id) if call.growth else SpanContext.new(trace_id)
            own = _identity_values(call.identity) | _choice_values(call, choice)
            own[names.CHOICE_INDEX] = choice.index
            own[names.OUTPUT_MESSAGES] = output_messages([choice])
            own[names.FINISH_REASONS] = [choice.finish_reason] if choice.finish_reason else None
            own |= {name: values[name] for name in SHARED_BY_CHOICES}
            if choice.prompt is not None:
                own |= _own_prompt(call, choice, choice.prompt)
            if call.growth is not None:
                own |= call.growth.values(position)
            yield _span(call, "choice", context, parent=call.identity.context.span_id, values=own, kind=SPAN_INTERNAL)
        if call.growth is not None:
            values |= call.growth.call_values()
    else:
        values |= _choice_values(call, choices[0] if choices else None)
        if call.growth is not None:
            values |= call.growth.values()
    name = f"{call.operation} {call.model}".rstrip()
    parent = call.identity.parent_span_id
    yield _span(call, name, call.identity.context, parent=parent, values=values, kind=SPAN_SERVER)


def _span(
    call: Call,
    name: str,
    context: SpanContext,
    *,
    parent: bytes,
    values: Mapping[str, Value],
    kind: int,
) -> bytes:
    return encoded_span(
        name,
        context.trace_id,
        context.span_id,
        parent_span_id=parent,
        kind=kind,
        start_ns=call.started_ns,
        end_ns=call.ended_ns,
        values=values,
        error=call.error_message if call.error_type else None,
    )


def _choice_values(call: Call, choice: Choice | None) -> dict[str, Value]:
    values: dict[str, Value] = {names.POLICY_NAME: call.policy}
    if choice is not None:
        values[names.CHOICE_INDEX] = choice.index if call.policy else None
        values[names.PROMPT_TOKEN_IDS] = _text(call.answer.prompt_of(choice))
        values[names.RESPONSE_TOKEN_IDS] = _text(choice.token_ids)
        values[names.RESPONSE_LOGPROBS] = _text(choice.logprobs)
    return values


def _own_prompt(call: Call, choice: Choice, place: int) -> dict[str, Value]:
    """Of the several prompts of a call, the one that a choice answers."""
    messages = call.chat(call.body).get("messages") or []
    ids = choice.prompt_token_ids
    return {
        names.INPUT_MESSAGES: input_messages(messages[place : place + 1]),
        names.INPUT_TOKENS: ids.count if ids is not None else None,
    }


def _identity_values(identity: Identity) -> dict[str, Value]:
    return {
        names.ROLLOUT_ID: identity.rollout_id,
        names.ROLLOUT_ATTEMPT: identity.attempt,
        names.TASK_ID: identity.task_id,
        names.RETRY_COUNT: identity.retry_count,
    }


def _call_values(call: Call) -> dict[str, Value]:
    body, answer = {**call.chat(call.body), **call.pins}, call.answer
    where = urlsplit(call.upstream or "")
    finished = [choice.finish_reason for choice in answer.choices if choice.finish_reason]
    return {
        **_identity_values(call.identity),
        names.OPERATION_NAME: call.operation,
        names.PROVIDER_NAME: call.provider,
        names.REQUEST_MODEL: call.model or None,
        names.CONVERSATION_ID: _conversation(call.body),
        names.AGENT_NAME: call.agent,
        names.TENANT: call.tenant or None,
        names.CONTINUATION: call.continuation.outcome if call.continuation else None,
        names.PROMPT_NAME: call.prompt[0] if call.prompt else None,
        names.PROMPT_VERSION: call.prompt[1] if call.prompt else None,
        **_request_values(body),
        names.SAMPLING: sampling(body, call.replica.traits if call.replica else None),
        names.INPUT_MESSAGES: input_messages(_new_messages(call, body["messages"])) if "messages" in body else None,
        names.TOOL_DEFINITIONS: None if call.growth and call.growth.same_tools else tool_definitions(body.get("tools")),
        names.OUTPUT_MESSAGES: output_messages(answer.choices) if answer.choices else None,
        names.ANSWER_UNREAD: call.unread,
        names.RESPONSE_ID: answer.id,
        names.RESPONSE_MODEL: answer.model,
        names.FINISH_REASONS: finished or None,
        names.INPUT_TOKENS: answer.prompt_tokens,
        names.OUTPUT_TOKENS: answer.completion_tokens,
        names.ERROR_TYPE: call.error_type,
        "server.address": where.hostname,
        "server.port": where.port,
        "http.response.status_code": call.status,
    }


def _new_messages(call: Call, messages: Any) -> Any:
    return messages[call.growth.left_out :] if call.growth is not None else messages


def _conversation(body: Mapping[str, Any]) -> str | None:
    """The conversation that a Responses request names (an id, or an object with one). Chat requests name none."""
    given = body.get("conversation")
    return text(mapping(given).get("id")) if isinstance(given, dict) else text(given)


def _request_values(body: Mapping[str, Any]) -> dict[str, Value]:
    numbers = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
    values: dict[str, Value] = {f"gen_ai.request.{name}": _float(body.get(name)) for name in numbers}
    values["gen_ai.request.top_k"] = _int(body.get("top_k"))
    values["gen_ai.request.seed"] = _int(body.get("seed"))
    values["gen_ai.request.max_tokens"] = _int(max_tokens(body))
    values["gen_ai.request.choice.count"] = _int(body.get("n")) if body.get("n") not in (None, 1) else None
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    values["gen_ai.request.stop_sequences"] = [one for one in stops if isinstance(one, str)] or None
    return values


def _text(numbers: Numbers | None) -> str | None:
    return None if numbers is None else numbers.text


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _int(value: Any) -> int | None:
    return value if type(value) is int and -(2**63) <= value < 2**63 else None
