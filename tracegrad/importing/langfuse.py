"""Traces of Langfuse: what its page exports (`trace` and `observations`), what its API answers (a trace with its
observations, or pages of either), and single observations.

The observations beside a trace are told in full; those inside of it may lack input and output.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tracegrad.importing.call_attributes import call_of, tool_of
from tracegrad.importing.foreign import (
    ForeignCall,
    ForeignScore,
    ForeignSpan,
    ForeignTool,
    Found,
    Json,
    NotThisFormatError,
    span_id_of,
    trace_id_of,
)
from tracegrad.importing.json_text import json_text, mapping, parsed, text, whole
from tracegrad.importing.messages import messages_of, with_system
from tracegrad.importing.numbered import flat
from tracegrad.importing.times import time_ns
from tracegrad.importing.tool_definitions import is_tool_definition, tool_definitions

_TYPES = frozenset(
    {"SPAN", "EVENT", "GENERATION", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"}
)
_NUMBERS = ("temperature", "top_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty")


def is_langfuse(value: Any) -> bool:
    """Whether this is a trace of Langfuse, an observation, or a page of them."""
    told = mapping(value)
    return (
        isinstance(told.get("observations"), list)
        or _is_observation(told)
        or (isinstance(told.get("data"), list) and bool(told["data"]) and is_langfuse(told["data"][0]))
    )


def langfuse_spans(value: Any) -> Iterator[Found]:
    """The spans of the trace, then its scores. Raises NotThisFormatError."""
    if not is_langfuse(value):
        raise NotThisFormatError("no trace of Langfuse: it has no observations")
    if isinstance(value.get("data"), list):
        for one in value["data"]:
            yield from langfuse_spans(one)
        return
    if _is_observation(value):
        yield _span(value, str(value["traceId"]), {})
        return
    trace = mapping(value.get("trace")) or value
    trace_id = text(trace.get("id"))
    if trace_id is None:
        raise NotThisFormatError("the trace has no id")
    observations = _observations(value, trace)
    service = mapping(parsed(trace.get("metadata")))
    for place, one in enumerate(observations):
        if text(one.get("id")) is None or time_ns(one.get("startTime")) is None:
            raise NotThisFormatError(f"observations[{place}] has no {'startTime' if one.get('id') else 'id'}")
        yield _span(one, trace_id, service)
    if not observations:
        yield _bare(trace, trace_id)
    scores = trace.get("scores")
    for score in scores if isinstance(scores, list) else []:
        if (found := _score(mapping(score), trace_id)) is not None:
            yield found


def _is_observation(value: Mapping[str, Any]) -> bool:
    return value.get("type") in _TYPES and isinstance(value.get("traceId"), str) and isinstance(value.get("id"), str)


def _observations(value: Mapping[str, Any], trace: Mapping[str, Any]) -> list[Json]:
    found: dict[str, Json] = {}
    for holder in (trace, value):
        told = holder.get("observations")
        for one in told if isinstance(told, list) else []:
            if not isinstance(one, dict):
                raise NotThisFormatError("observations holds something that is no object")
            known = found.setdefault(str(one.get("id")), {})
            known |= {key: one[key] for key in one if one[key] is not None or key not in known}
    return list(found.values())


def _span(one: Mapping[str, Any], trace_id: str, trace_metadata: Mapping[str, Any]) -> ForeignSpan:
    own, parent = str(one["id"]), text(one.get("parentObservationId"))
    kind = str(one.get("type") or "SPAN").lower()
    metadata = dict(mapping(parsed(one.get("metadata"))))
    resource = mapping(metadata.pop("resourceAttributes", None) or trace_metadata.get("resourceAttributes"))
    scope = mapping(metadata.pop("scope", None))
    attributes: dict[str, Any] = dict(flat(mapping(metadata.pop("attributes", None))))
    attributes["langfuse.observation.type"] = kind
    if metadata:
        attributes.setdefault("metadata", json_text(metadata))
    for name, key in (("input.value", "input"), ("output.value", "output")):
        if one.get(key) is not None:
            attributes.setdefault(name, one[key])
    name = text(one.get("name")) or kind
    start = time_ns(one.get("startTime")) or 0
    failed = one.get("level") == "ERROR"
    return ForeignSpan(
        trace_id=trace_id_of(trace_id),
        span_id=span_id_of(own, trace_id),
        parent_span_id=span_id_of(parent, trace_id) if parent else b"",
        name=name,
        start_ns=start,
        end_ns=max(start, time_ns(one.get("endTime")) or start),
        attributes=attributes,
        error=(text(one.get("statusMessage")) or "") if failed else None,
        call=_call(one, attributes) if kind == "generation" else None,
        tool=_tool(one, attributes, name),
        service=text(resource.get("service.name")) or "",
        scope=text(scope.get("name")) or "",
        told_ids={"trace_id": trace_id, "span_id": own},
    )


def _call(one: Mapping[str, Any], attributes: Mapping[str, Any]) -> ForeignCall:
    """Its own fields first; what they leave open, the attributes that it was made from may tell."""
    told = call_of(dict(attributes) | {"openinference.span.kind": "LLM", "gen_ai.operation.name": ""}) or ForeignCall()
    request, answer = parsed(one.get("input")), parsed(one.get("output"))
    parameters = mapping(parsed(one.get("modelParameters")))
    given = [request] if isinstance(request, dict) else []
    lifted, request = _without_definitions(request)
    instructions = parameters.get("instructions") or mapping(answer).get("instructions")
    tools = (
        tool_definitions(one.get("toolDefinitions"))
        or tool_definitions(lifted)
        or next((found for holder in (*given, mapping(answer)) if (found := tool_definitions(holder.get("tools")))), [])
        or told.tools
    )
    usage = mapping(one.get("usageDetails")) or mapping(one.get("usage"))
    output = messages_of(answer, "assistant") or told.output_messages
    return replace(
        told,
        input_messages=with_system(messages_of(request, "user"), instructions) or told.input_messages,
        output_messages=output,
        tools=tools,
        model=text(one.get("model")) or told.model,
        response_id=told.response_id or text(mapping(answer).get("id")),
        finish_reasons=told.finish_reasons or [reason for one in output if (reason := one.get("finish_reason"))],
        input_tokens=_usage(usage, "input") if usage else told.input_tokens,
        output_tokens=_usage(usage, "output") if usage else told.output_tokens,
    )


def _without_definitions(request: Any) -> tuple[list[Any], Any]:
    """Langfuse puts tool definitions among the messages, as messages of tools."""
    holder = request.get("messages") if isinstance(request, dict) else request
    if not isinstance(holder, list):
        return [], request
    lifted = [one["content"] for one in holder if is_tool_definition(mapping(one).get("content"))]
    kept = [one for one in holder if not is_tool_definition(mapping(one).get("content"))]
    return lifted, request | {"messages": kept} if isinstance(request, dict) else kept


def _usage(usage: Mapping[str, Any], name: str) -> int | None:
    return whole(usage.get(name, usage.get({"input": "promptTokens", "output": "completionTokens"}[name])))


def _tool(one: Mapping[str, Any], attributes: Mapping[str, Any], name: str) -> ForeignTool | None:
    """Also a span whose output is a tool's message, as LangGraph's are."""
    answer = mapping(parsed(one.get("output")))
    call_id = text(answer.get("tool_call_id"))
    if (told := tool_of(attributes, name)) is not None:
        return replace(told, call_id=told.call_id or call_id)
    is_message = answer.get("type") == "tool" or answer.get("role") == "tool"
    return ForeignTool(text(answer.get("name")) or name, call_id) if is_message and call_id else None


def _bare(trace: Mapping[str, Any], trace_id: str) -> ForeignSpan:
    """A trace without observations is one span."""
    start = time_ns(trace.get("timestamp"))
    if start is None:
        raise NotThisFormatError("the trace has neither observations nor a timestamp")
    told = {name: trace[key] for name, key in (("input.value", "input"), ("output.value", "output")) if trace.get(key)}
    return ForeignSpan(
        trace_id=trace_id_of(trace_id),
        span_id=span_id_of("trace", trace_id),
        parent_span_id=b"",
        name=text(trace.get("name")) or "trace",
        start_ns=start,
        end_ns=start,
        attributes=told,
        told_ids={"trace_id": trace_id},
    )


def _score(score: Mapping[str, Any], trace_id: str) -> ForeignScore | None:
    name, value = text(score.get("name")), score.get("value")
    at = time_ns(score.get("timestamp") or score.get("createdAt"))
    if name is None or at is None:
        return None
    judged = text(score.get("observationId"))
    numeric = isinstance(value, int | float) and score.get("dataType") != "CATEGORICAL"
    return ForeignScore(
        trace_id=trace_id_of(trace_id),
        span_id=span_id_of(judged, trace_id) if judged else b"",
        name=name,
        score=float(value) if numeric and value is not None else None,
        label=text(score.get("stringValue")),
        explanation=text(score.get("comment")),
        at_ns=at,
    )
