"""From a plan to rows: what is trained on has passed the gate, and the report that says so is on the disk.

Order: what can be seen of a call alone comes first, so that a hopeless batch starts no engine; then log-probs are
computed again, on the rows that would be trained. Advantages are there already, and no drop changes them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trainer.agreement import agreement
from trainer.break_classes import MessagesOf, with_classes
from trainer.config import TrainConfig
from trainer.gate import Gate
from trainer.gate_markdown import as_markdown
from trainer.gate_report import GateReport
from trainer.learner import Learner
from trainer.merge_limits import merge_limits
from trainer.merge_report import MergeReport
from trainer.merging import rows_of
from trainer.plan import Plan
from trainer.records import JobDirectory
from trainer.rows import Row
from trainer.samples import Samples
from trainer.seconds import Seconds


@dataclass(frozen=True, eq=False)
class Proved:
    """`plan`: with the verdicts of the whole gate. `rows`: of its used samples. `metrics`: of gate and merging."""

    plan: Plan
    rows: Sequence[Row]
    metrics: dict[str, float]


def proved_rows(
    config: TrainConfig,
    plan: Plan,
    gate: Gate,
    *,
    directory: JobDirectory,
    number: int,
    load: Callable[[], Learner],
    messages_of: MessagesOf,
    seconds: Seconds,
) -> Proved:
    """The rows of step `number`. Raises RefusedError where too much of the plan fails; its report is written first.

    `load`: starts the learner, which holds the newest version of the gate's lineage. `messages_of`: what calls were
    asked and answered, to tell why they do not merge.
    """

    def judged(report: GateReport) -> GateReport:
        report.check(directory.write_gate_report(number, report.model_dump_json(indent=2), as_markdown(report)))
        return report

    first = GateReport.of(config, number, plan, gate, recomputed=False)
    if not first.passed:
        judged(first)
    rows, merged = _rows(config, plan.samples)
    compared = None
    if rows:
        with seconds("load"):
            learner = load()
        with seconds("check"):
            version = gate.lineage[-1] if gate.lineage else 0
            compared = agreement(learner, version, plan.samples.used, rows, config.gate.logprob_tolerance)
        if compared is not None and compared.mismatched:
            plan = replace(plan, samples=compared.applied(plan.samples))
            rows, merged = _rows(config, plan.samples)
    with seconds("merge"):
        merged = with_classes(merged, plan.samples.used, messages_of, config.engine.model)
    report = judged(GateReport.of(config, number, plan, gate, compared=compared, merge=merged.metrics()))
    metrics = report.metrics() | merged.metrics() | (compared.metrics() if compared is not None else {})
    return Proved(plan, rows, metrics)


def _rows(config: TrainConfig, samples: Samples) -> tuple[list[Row], MergeReport]:
    limits = merge_limits(config)
    return rows_of(
        samples,
        merge=limits.merge,
        max_row_tokens=limits.max_row_tokens,
        branches=limits.branches,
        token_cost=limits.token_cost,
    )
