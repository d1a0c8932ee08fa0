"""The span tree of one attempt: who stands above whom, whichever instrumentation told it, and however much is missing.

Invariant: the rollout's root span stands above every other span of the attempt, whether or not parents lead to it.
Agents without a tracer, lost parents and traces of their own therefore change how much is known in between, and nothing
else.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

NO_SPAN = "0" * 16
"""How some write that there is no parent."""


@dataclass(frozen=True, slots=True)
class Span:
    """One span of a trace in which the attempt has spans: one row of the view `rollout_tree`.

    `agent`: the agent whose span it is, empty for all others. `tool_call_id`: of the request that a tool span answers,
    empty where its instrumentation does not say. `started_ns`, `ended_ns`: unix time by the clock of whoever sent it.
    `http_status`: of the response, 0 where there is none. `error_message`: what is said of a failure. `is_call`: of a
    model call, of whichever rollout.
    """

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    agent: str
    is_tool: bool
    tool_name: str
    tool_call_id: str
    started_ns: int
    ended_ns: int
    status_code: str
    error_type: str
    http_status: int
    error_message: str = ""
    is_call: bool = False

    @property
    def failed(self) -> bool:
        """Whether its instrumentation saw it fail."""
        return self.status_code == "Error" or self.error_type != ""


def shared_traces(spans: Iterable[Span], own_calls: AbstractSet[str]) -> frozenset[str]:
    """Ids of the traces that hold calls of other attempts too. `own_calls`: span ids of the attempt's."""
    return frozenset(span.trace_id for span in spans if span.is_call and span.span_id not in own_calls)


class SpanTree:
    """All spans of an attempt's traces. `root_span_id`: the launcher's span, empty where nobody launched the agent."""

    def __init__(self, spans: Iterable[Span], root_span_id: str) -> None:
        self.spans = {span.span_id: span for span in spans}
        self.root_span_id = root_span_id

    def ancestors(self, span_id: str) -> list[str]:
        """Ids of the spans above, nearest first, the rollout's root last. Where parents go in a circle, each once.

        A parent that is not there is one all the same, and ends the way: it may be judged by its id.
        """
        above: list[str] = []
        seen = {"", NO_SPAN, span_id, self.root_span_id}
        span = self.spans.get(span_id)
        while span is not None and (parent := span.parent_span_id) not in seen:
            seen.add(parent)
            above.append(parent)
            span = self.spans.get(parent)
        if self.root_span_id and span_id != self.root_span_id:
            above.append(self.root_span_id)
        return above

    def leads_to_root(self, span_id: str) -> bool:
        """Whether parents lead from there to the rollout's root, which stands above it in any case."""
        above = [span_id, *self.ancestors(span_id)]
        return self.root_span_id != "" and any(
            span is not None and span.parent_span_id == self.root_span_id for span in map(self.spans.get, above)
        )

    def agent_span(self, span_id: str) -> str:
        """Id of the nearest agent's span at or above `span_id`; empty where there is none."""
        for candidate in (span_id, *self.ancestors(span_id)):
            span = self.spans.get(candidate)
            if span is not None and span.agent:
                return candidate
        return ""

    def tools(self) -> list[Span]:
        """The tool spans, by start and span id."""
        return sorted(
            (span for span in self.spans.values() if span.is_tool), key=lambda span: (span.started_ns, span.span_id)
        )
