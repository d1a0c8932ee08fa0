"""What untouched agents of each framework sent, from `../shared/fixtures/framework_captures`, and whose each call was.

Whose is not read from spans: the calls' requests are there as well, and each agent was told who it is in its prompt.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad import names, otlp

CAPTURES = Path(__file__).parents[3] / "shared" / "fixtures" / "framework_captures"
TOLD: Mapping[str, Mapping[str, str]] = {
    "lc": {"You are researcher": "researcher", "You are writer": "writer"},
    "oaa": {"You triage": "Triage", "You write": "Writer", "You are boss": "Boss", "You are sub": "Sub"},
    "ag": {"You research": "researcher", "You write": "writer", "You stream": "streamer"},
    "crew": {"You are Researcher.": "Researcher", "You are Writer.": "Writer"},
    "maf": {"You research": "Researcher", "You write": "Writer"},
    "as": {"You research": "Researcher", "You write": "Writer"},
}
"""By capture: how a prompt begins, and the name of the agent that has it. A call without such a prompt is nobody's."""
PROXY = "rollout.proxy"
"""The scope of the spans that stand for a sidecar's."""


@dataclass(frozen=True)
class Capture:
    """`spans`: with new trace and rollout ids. `agents`: by span id, whose each call was; empty for nobody's."""

    rollout_id: str
    spans: list[tuple[str, Span]]
    agents: dict[str, str]


def load(name: str) -> Capture:
    """One framework's capture: spans with the name of their scope, its calls as the sidecar marks them."""
    recorded = [json.loads(line) for line in (CAPTURES / f"{name}.otlp.jsonl").read_text().splitlines()]
    requests = [json.loads(line) for line in (CAPTURES / f"{name}.http.jsonl").read_text().splitlines()]
    calls = sorted((span for span in recorded if span["scope"] == PROXY), key=lambda span: int(span["start"]))
    requests.sort(key=lambda request: float(request["t"]))
    agents = {call["span_id"]: _agent(name, request["body"]) for call, request in zip(calls, requests, strict=True)}
    rollout_id, traces = secrets.token_hex(8), {span["trace_id"]: secrets.token_bytes(16) for span in recorded}
    return Capture(rollout_id, [(span["scope"], _span(span, rollout_id, traces)) for span in recorded], agents)


def _agent(name: str, body: Mapping[str, Any]) -> str:
    said = [message.get("content") for message in (*body.get("messages", ()), *_items(body))]
    prompts = [body.get("instructions") or "", *(_text(content) for content in said[:1])]
    found = {agent for prompt in prompts for told, agent in TOLD[name].items() if prompt.startswith(told)}
    assert len(found) <= 1, (name, prompts)
    return found.pop() if found else ""


def _items(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = body.get("input")
    return given if isinstance(given, list) else []


def _text(content: Any) -> str:
    return "".join(part.get("text", "") for part in content) if isinstance(content, list) else str(content or "")


def _span(recorded: Mapping[str, Any], rollout_id: str, traces: Mapping[str, bytes]) -> Span:
    values = {key: value for key, value in recorded["attributes"].items() if value is not None}
    if recorded["scope"] == PROXY:
        values |= {names.ROLLOUT_ID: rollout_id, names.ROLLOUT_ATTEMPT: 0, names.TRAINABLE: True}
    return Span(
        trace_id=traces[recorded["trace_id"]],
        span_id=bytes.fromhex(recorded["span_id"]),
        parent_span_id=bytes.fromhex(recorded["parent"] or ""),
        name=recorded["name"],
        start_time_unix_nano=int(recorded["start"]),
        end_time_unix_nano=int(recorded["end"]),
        attributes=_attributes(values),
    )


def _attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    plain = {
        key: value if isinstance(value, str | bool | int | float) else json.dumps(value)
        for key, value in values.items()
    }
    return list(otlp.attributes(plain))
