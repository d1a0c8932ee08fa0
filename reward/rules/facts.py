"""What is known of one attempt of a rollout: all that a rule may look at.

Invariant: facts are what spans say. A rule gets them whole, never half an attempt, and can ask nothing else, so that
the same spans give the same rewards whoever evaluates them, and whenever.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reward.rules.arguments import ArgumentSchema


@dataclass(frozen=True, slots=True)
class Span:
    """One span of a trace that the attempt has spans in. `agent`: named by the span itself; empty where it is none's.

    Ids are in hex; `parent_span_id` is empty for a span without a parent. Times are unix times in nanoseconds.
    """

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    service: str
    agent: str
    started_ns: int
    ended_ns: int
    status_code: str
    error_type: str

    @property
    def failed(self) -> bool:
        """Whether it says that it ended with an error."""
        return self.error_type != "" or self.status_code.lower().endswith("error")

    @property
    def seconds(self) -> float:
        """How long it took; 0 where clocks say that it ended before it began."""
        return max(0, self.ended_ns - self.started_ns) / 1e9


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in a response. `arguments`: as JSON gives them, or the text that is no JSON.

    `schema`: what the request said of the tool's arguments; None where it said nothing that can be checked.
    """

    call_id: str
    name: str
    arguments: Any
    schema: ArgumentSchema | None


@dataclass(frozen=True, slots=True)
class Call:
    """One sampled choice of a model call. `message`: what its error said; empty without one.

    `input_tokens`: of several choices of one prompt each bears its share, so that sums are what the engine counted.
    `unparsed`: the response's text holds the markup of a tool call that the engine could not read.
    """

    span: Span
    agent: str
    policy: str
    model: str
    finish_reason: str
    message: str
    input_tokens: float
    output_tokens: float
    tool_calls: tuple[ToolCall, ...]
    unparsed: bool


@dataclass(frozen=True, slots=True)
class Tool:
    """One run of a tool. `arguments`: in one spelling where they are JSON, so that equal ones are equal texts.

    None: neither the tool's span nor the call that asked for it tells. `call_id`: of the tool call; empty if unknown.
    `agent_span_id`: the nearest span above that is an agent's; empty where there is none.
    """

    span: Span
    name: str
    call_id: str
    arguments: str | None
    agent: str
    agent_span_id: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a rollout that is over. Calls and tools are in order of their start.

    `root_span_id` is empty for a rollout that was not started by the launcher; `ended_ns` is then when it was last
    heard of. `status`: succeeded, failed, timeout or, without a root span, running.
    """

    rollout_id: str
    attempt: int
    task_id: str
    trace_id: str
    root_span_id: str
    status: str
    error_type: str
    started_ns: int
    ended_ns: int
    calls: Sequence[Call]
    tools: Sequence[Tool]
    spans: Mapping[str, Span]

    def above(self, span_id: str) -> Iterator[Span]:
        """The spans above one, nearest first, as far as they have arrived. Spans in a circle are passed once."""
        seen, span = {span_id}, self.spans.get(span_id)
        while span is not None and span.parent_span_id not in seen:
            seen.add(span.parent_span_id)
            span = self.spans.get(span.parent_span_id)
            if span is not None:
                yield span

    def restricted(self, agents: Sequence[str], tools: Sequence[str]) -> "Attempt":
        """The same, with only the calls and tools of some agents, and only some tools: each a list of patterns.

        An empty list keeps all.
        """
        of_agent, of_tool = _matcher(agents), _matcher(tools)
        if not (agents or tools):
            return self
        return replace(
            self,
            calls=[
                replace(call, tool_calls=tuple(one for one in call.tool_calls if of_tool(one.name)))
                for call in self.calls
                if of_agent(call.agent)
            ],
            tools=[tool for tool in self.tools if of_agent(tool.agent) and of_tool(tool.name)],
        )


def _matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether any of the patterns is the whole of a text, or is that very text; of no patterns: always."""
    names, compiled = frozenset(patterns), [re.compile(pattern) for pattern in patterns]
    return lambda name: not patterns or name in names or any(one.fullmatch(name) for one in compiled)
