"""What one process of the sidecar counts."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sidecar.delivery import Delivery
from sidecar.exposition import Family, Histogram, render
from sidecar.policy import Policy

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
    continuations: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Calls with earlier answers in them, by policy and by `tokens` or why they were not continued by ids."""
    unrecorded: int = 0
    """Calls whose spans could not be built."""
    unread: Counter[str] = field(default_factory=Counter)
    """Answers of providers that are not in the record, or not all of them, by reason."""
    responses_lost: int = 0
    """Responses that could not be stored."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Requests that were turned away at the gate, by code."""
    durations: Histogram = field(default_factory=Histogram)
    waiting: int = 0
    """Requests that wait for a place."""
    log_lines_lost: int = 0

    def render(self, policies: Iterable[Policy], delivery: Delivery) -> str:
        """The whole page of this process."""
        return render(self.families(policies, delivery))

    def families(self, policies: Iterable[Policy], delivery: Delivery | None) -> list[Family]:
        """Everything that is counted. `delivery` None: a process that sends no spans."""
        replicas = [(policy.name, replica) for policy in policies for replica in policy.replicas]
        of_spans = _spans(delivery) if delivery is not None else ()
        return [
            Family("calls_total", "counter", "Model calls by HTTP status.", ("status",), _one(self.calls)),
            Family(
                "choices_total",
                "counter",
                "Sampled answers by whether they may be trained on, and why not.",
                ("trainable", "reason"),
                {("false" if reason else "true", reason): n for reason, n in self.choices.items()},
            ),
            Family("publishes_total", "counter", "Publications by outcome.", ("policy", "outcome"), self.publishes),
            Family(
                "continuations_total",
                "counter",
                "Calls with earlier answers in them: prompted with an earlier call's tokens, or why not.",
                ("policy", "outcome"),
                self.continuations,
            ),
            *of_spans,
            Family("unrecorded_total", "counter", "Calls whose spans could not be built.", (), {(): self.unrecorded}),
            Family(
                "answers_unread_total",
                "counter",
                "Answers of providers that their spans lack, or the end of which, by reason.",
                ("reason",),
                _one(self.unread),
            ),
            Family(
                "responses_lost_total",
                "counter",
                "Responses that could not be stored, so that nothing can continue them.",
                (),
                {(): self.responses_lost},
            ),
            Family(
                "refusals_total",
                "counter",
                "Requests turned away, by code.",
                ("code",),
                _one(self.refusals),
            ),
            self.durations.family("request_seconds", "How long requests took, from arrival to last byte."),
            Family("waiting", "gauge", "Requests that wait for a place.", (), {(): self.waiting}),
            Family(
                "log_lines_lost_total",
                "counter",
                "Lines of the access log that could not be written.",
                (),
                {(): self.log_lines_lost},
            ),
            Family(
                "policy_version",
                "gauge",
                "The version the engine named last; absent while unknown.",
                ("policy", "replica"),
                {(name, one.url): one.version for name, one in replicas if one.version is not None},
                "own",
            ),
            Family(
                "replica_up",
                "gauge",
                "Whether the engine is in service: it answers, and runs what it should.",
                ("policy", "replica"),
                {(name, one.url): int(one.in_service) for name, one in replicas},
                "own",
            ),
            Family(
                "replica_standing",
                "gauge",
                "How the engine stands: serves, last_resort, updating, paused, broken or down.",
                ("policy", "replica", "standing"),
                {(name, one.url, one.standing.value): 1 for name, one in replicas},
                "own",
            ),
            Family(
                "in_flight",
                "gauge",
                "Calls in flight.",
                ("policy", "replica"),
                {(name, one.url): one.in_flight for name, one in replicas},
                "own",
            ),
        ]


def _spans(delivery: Delivery) -> tuple[Family, ...]:
    spans, store = delivery.counters, delivery.store
    states = {
        "queued": spans.queued,
        "adopted": spans.adopted,
        "sent": spans.sent,
        "dropped_spool_full": spans.dropped_spool_full,
        "dropped_memory_full": spans.dropped_memory_full,
        "dropped_refused": spans.dropped_refused,
    }
    return (
        Family(
            "spans_total",
            "counter",
            "Spans by what became of them: put by this process or left by an earlier one; sent; lost.",
            ("state",),
            _one(states),
        ),
        Family("span_retries_total", "counter", "Exports that were tried again.", (), {(): spans.retries}),
        Family(
            "spool_torn_total",
            "counter",
            "Stretches of spool files that were damaged, each at least one span.",
            (),
            {(): spans.torn},
        ),
        Family(
            "spans_recovered_total",
            "counter",
            "Spans, among the adopted, of calls with which a process was killed before their version was proved.",
            (),
            {(): store.spool.recovered},
        ),
        Family(
            "journal_calls",
            "gauge",
            "Calls on disk whose version is being asked for.",
            (),
            {(): delivery.journal.calls},
        ),
        Family(
            "journal_skipped_total",
            "counter",
            "Calls whose version was asked for while they stood in memory only: the disk did not take them.",
            (),
            {(): delivery.journal.skipped},
        ),
        Family("spool_waiting_bytes", "gauge", "Spans on disk, not sent.", (), {(): store.spool.waiting_bytes}),
        Family("spool_memory_bytes", "gauge", "Spans in memory only, not sent.", (), {(): store.memory.size}),
        Family(
            "spool_disk_failing",
            "gauge",
            "Whether the disk takes no spans, so that they wait in memory.",
            (),
            {(): int(store.disk_problem is not None)},
        ),
        Family(
            "spool_oldest_seconds",
            "gauge",
            "Age of the oldest span that is not sent.",
            (),
            {(): round(store.oldest_s, 3)},
        ),
    )


def _one(values: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(label,): value for label, value in values.items()}
