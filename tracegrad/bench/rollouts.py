"""What the sidecar adds to calls of rollouts, whose conversations grow: each repeats all before it.

Every connection plays rollouts of `turns` turns, one after another, through `/rollout/{id}/v1`. Of such a call the
sidecar looks up what earlier ones recorded, records only what is new, asks the engine how the prompt would be written,
and prompts it with the tokens that it sampled. Of anonymous calls, which the other figures are of, it does none of it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracegrad.bench import machine
from tracegrad.bench.metric import Metric
from tracegrad.bench.phases import DIRECT, Harness, Measured, Phase, alternate
from tracegrad.bench.plan import Plan
from tracegrad.bench.sidecar_under_test import SidecarUnderTest

SETTLE_S = 1.0


@dataclass(frozen=True)
class Found:
    """The phases that were timed, and what follows from them."""

    phases: Sequence[Phase]
    metrics: Sequence[Metric]


def measure(bench: Harness, plan: Plan, tested: SidecarUnderTest) -> Found:
    """Play rollouts straight to the stand-in and through the sidecar."""
    target, turns = tested.target, {"turns": plan.turns}
    title, few = f"rollouts of {plan.turns} turns, ", min(plan.repeats, 2)
    alone = alternate(bench, f"{title}one at a time", [bench.direct, target], few, {**plan.plain(1), **turns})
    many = alternate(
        bench, f"{title}{plan.concurrency} at a time", [target], few, {**plan.plain(plan.concurrency), **turns}
    )
    growing, after = growth(bench, plan, tested)

    def added(how: Callable[[Measured], float]) -> float | None:
        return alone.compared(target.name, DIRECT, lambda one, base: how(one) - how(base))

    cpu_ms = many.median(target.name, lambda one: one.cpu_ms)
    metrics = [
        Metric("rollout_added_latency_p50_ms", added(lambda one: one.seen.p50_ms), "rollouts: added, median"),
        Metric("rollout_added_latency_p99_ms", added(lambda one: one.seen.p99_ms), "the same, 99th percentile"),
        Metric("rollout_requests_per_s", many.median(target.name, lambda one: one.seen.per_s), "rollouts: on one core"),
        Metric("rollout_requests_per_s_per_core", 1e3 / cpu_ms if cpu_ms else None, "per second of CPU time"),
        Metric("rollout_cpu_ms_per_call", cpu_ms, "CPU time of a call"),
        Metric("rollout_continued_share", tested.continued(), "calls after the first prompted with exact tokens"),
        Metric(
            "rollout_rss_growth_bytes_per_call",
            growing,
            f"memory kept of a call, over {plan.rollout_calls:,} after {plan.rollout_warm_calls:,}",
        ),
        Metric("rollout_rss_bytes", after, "memory of the sidecar after that"),
    ]
    return Found([alone, many], metrics)


def growth(bench: Harness, plan: Plan, tested: SidecarUnderTest) -> tuple[float | None, int | None]:
    """Bytes kept of a call once what is remembered of rollouts has reached its bounds, and all memory then."""

    def play(what: str, calls: int) -> int | None:
        load = {**plan.counted(calls), "turns": plan.turns}
        alternate(bench, f"memory of rollouts, {what}", [tested.target], 1, load)
        return resident(bench, tested)

    before = play("warming up", plan.rollout_warm_calls)
    after = play(f"over {plan.rollout_calls:,} calls", plan.rollout_calls)
    return None if before is None or after is None else (after - before) / plan.rollout_calls, after


def resident(bench: Harness, tested: SidecarUnderTest) -> int | None:
    """The sidecar's memory, when all that it was asked has been delivered."""
    bench.wait_for_spans()
    time.sleep(SETTLE_S)
    return machine.resident_bytes(tested.target.running.pids) if tested.target.running else None
