"""Rules about what an answer took: time and money."""

from collections.abc import Iterator

from reward.rules.facts import Attempt
from reward.rules.finding import Finding
from reward.rules.settings import CostSettings, LatencySettings

MILLION = 1e6


def latency(attempt: Attempt, settings: LatencySettings) -> Iterator[Finding]:
    """The seconds beyond `above_s` that a call, or the rollout as a whole, took."""
    if settings.of == "rollout":
        seconds = max(0, attempt.ended_ns - attempt.started_ns) / 1e9
        took = [(attempt.root_span_id, seconds, "the rollout")]
    else:
        took = [(call.span.span_id, call.span.seconds, "the call") for call in attempt.calls]
    for span_id, seconds, what in took:
        if seconds > settings.above_s:
            words = f"{what} took {seconds:.3f} s, {seconds - settings.above_s:.3f} s beyond {settings.above_s:g} s"
            yield Finding(span_id, seconds - settings.above_s, words)


def cost(attempt: Attempt, settings: CostSettings) -> Iterator[Finding]:
    """The price of each call's tokens, by its prices of a million."""
    for call in attempt.calls:
        price = call.input_tokens * settings.input_per_million + call.output_tokens * settings.output_per_million
        if price and settings.is_of(call.model):
            words = f"{call.input_tokens:.10g} tokens in and {call.output_tokens} out cost {price / MILLION:.6g}"
            yield Finding(call.span.span_id, price / MILLION, words)
