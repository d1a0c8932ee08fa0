"""The gate's report as a page for people."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice

from trainer.gate_report import FailedCall, GateReport

ROWS_PER_REASON = 10


def as_markdown(report: GateReport) -> str:
    """The report; of calls that fail, at most ROWS_PER_REASON of each reason."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: GateReport) -> Iterator[str]:
    verdict = "passed" if report.passed else "refused"
    yield f"# Gate of step {report.step}, job {report.job}: {verdict}"
    yield ""
    yield (
        f"{report.at}, policy {report.policy}: {report.failed} of {report.looked_at} calls "
        f"({report.failed_share:.1%}) fail; {report.max_failed_share:.0%} may."
    )
    yield _of_logprobs(report)
    if report.uncalled_rollouts:
        yield f"{report.uncalled_rollouts} rollouts have no call of this policy."
    yield from _counts("Calls that fail", ("reason", "calls"), report.reasons)
    yield from _counts("Calls that pass and are not trained on", ("reason", "calls"), report.other_drops)
    yield from _section(
        "Errors of rollouts and calls",
        ("type", "action", "count"),
        [(error, action, str(n)) for error, actions in report.failures.items() for action, n in actions.items()],
    )
    shown = [
        call
        for _, of_reason in groupby(report.failing, key=lambda call: call.reason)
        for call in islice(of_reason, ROWS_PER_REASON)
    ]
    yield from _section(
        "Which calls fail",
        ("reason", "rollout", "span", "agent", "version", "versions behind", "prompt", "response", "log-prob gap"),
        [_of_call(call) for call in shown],
    )
    if len(shown) < len(report.failing):
        yield f"\nThese are the furthest off of each reason; all {len(report.failing)} are in the file for programs."
    yield from _counts("Rows", ("metric", "value"), {name: f"{value:.4g}" for name, value in report.merge.items()})


def _of_logprobs(report: GateReport) -> str:
    if report.recomputed is None:
        return "Log-probs were not computed again."
    if report.logprob_max_diff is None:
        return "No call was sampled by the newest version, so no log-probs were computed again."
    return (
        f"Log-probs of {report.recomputed} calls were computed again: {report.mismatched} differ by more than "
        f"{report.logprob_tolerance:g}; at most by {report.logprob_max_diff:.3g}, {report.logprob_mean_diff:.3g} on "
        "average."
    )


def _of_call(call: FailedCall) -> tuple[str, ...]:
    return (
        call.reason,
        call.rollout_id + (f"/{call.attempt}" if call.attempt else ""),
        call.span_id,
        call.agent,
        "" if call.policy_version is None else str(call.policy_version),
        "" if call.staleness is None else str(call.staleness),
        str(call.prompt_tokens),
        str(call.response_tokens),
        "" if call.logprob_gap is None else f"{call.logprob_gap:.3g}",
    )


def _counts(title: str, header: Sequence[str], counts: Mapping[str, object]) -> Iterator[str]:
    return _section(title, header, [(name, str(count)) for name, count in counts.items()])


def _section(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    yield f"\n## {title}\n"
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        cells = [cell.replace("|", r"\|") for cell in row]
        yield f"| {' | '.join(cells)} |"
