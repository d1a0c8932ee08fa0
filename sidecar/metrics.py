"""Counters of one sidecar, in Prometheus' text format."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sidecar.policy import Policy
from tracegrad.otlp import OtlpSender

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_CLOSED = 499
"""The status under which calls are counted whose client went away before the answer ended."""


@dataclass
class Metrics:
    """What happened so far. Keys are label values."""

    calls: Counter[str] = field(default_factory=Counter)
    choices: Counter[str] = field(default_factory=Counter)
    """By reason; the empty reason is trainable."""
    publishes: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """By policy and outcome."""
    unrecorded: int = 0
    """Calls whose spans could not be built."""

    def render(self, policies: Iterable[Policy], sender: OtlpSender) -> str:
        """The whole page."""
        replicas = [(policy.name, replica) for policy in policies for replica in policy.replicas]
        spans = sender.counters
        states = {
            "queued": spans.queued,
            "sent": spans.sent,
            "dropped_queue_full": spans.dropped_queue_full,
            "dropped_refused": spans.dropped_refused,
        }
        families = (
            _family("calls_total", "counter", "Model calls by HTTP status.", ("status",), _one(self.calls)),
            _family(
                "choices_total",
                "counter",
                "Sampled answers by whether they may be trained on, and why not.",
                ("trainable", "reason"),
                {("false" if reason else "true", reason): n for reason, n in self.choices.items()},
            ),
            _family("publishes_total", "counter", "Publications by outcome.", ("policy", "outcome"), self.publishes),
            _family("spans_total", "counter", "Spans by what became of them.", ("state",), _one(states)),
            _family("span_retries_total", "counter", "Exports that were tried again.", (), {(): spans.retries}),
            _family("unrecorded_total", "counter", "Calls whose spans could not be built.", (), {(): self.unrecorded}),
            _family("span_queue_bytes", "gauge", "Bytes of spans that wait.", (), {(): sender.queue_bytes}),
            _family(
                "policy_version",
                "gauge",
                "The version the engine named last; absent while unknown.",
                ("policy", "replica"),
                {(name, one.url): one.version for name, one in replicas if one.version is not None},
            ),
            _family(
                "replica_up",
                "gauge",
                "Whether the engine answers and its version is known.",
                ("policy", "replica"),
                {(name, one.url): int(one.healthy) for name, one in replicas},
            ),
            _family(
                "in_flight",
                "gauge",
                "Calls in flight.",
                ("policy", "replica"),
                {(name, one.url): one.in_flight for name, one in replicas},
            ),
        )
        return "".join(families)


def _one(values: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(label,): value for label, value in values.items()}


def _family(name: str, kind: str, text: str, labels: tuple[str, ...], samples: Mapping[tuple[str, ...], int]) -> str:
    full = f"tracegrad_sidecar_{name}"
    lines = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    for values, number in samples.items():
        pairs = ",".join(f'{label}="{_escape(value)}"' for label, value in zip(labels, values, strict=True))
        lines.append(f"{full}{{{pairs}}} {number}" if pairs else f"{full} {number}")
    return "\n".join(lines) + "\n"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
