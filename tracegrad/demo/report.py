"""What the demo shows at its end: every figure is read from the store by SQL, or was measured while it ran."""

import json
import math
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from clickhouse_connect.driver.client import Client

from tracegrad.errors import TracegradError

DIRECTORY = Path("demo-report")


@dataclass(frozen=True)
class Question:
    """Something a user may ask the store: the words, and the SQL that answers them."""

    words: str
    sql: str


def _sql(name: str) -> str:
    return files("tracegrad.demo").joinpath(f"sql/{name}.sql").read_text()


def _question(name: str) -> Question:
    comment, _, sql = _sql(name).partition("\n")
    return Question(comment.removeprefix("-- "), sql.strip())


QUESTIONS = tuple(map(_question, ("1_reward_by_version", "2_most_taught", "3_span_tree")))
"""The three that the report shows with their answers."""


@dataclass(frozen=True)
class Measured:
    """`report.json`. Accuracies are shares of `n_eval` held-out questions answered right with greedy decoding."""

    seed: int
    accuracy_before: float
    accuracy_after: float
    n_eval: int
    policy_versions: int
    steps: int
    seconds: float
    peak_memory_bytes: int


@dataclass(frozen=True)
class StepRow:
    """One optimiser step as the store recorded it. Without signal it publishes nothing and compares no log-probs."""

    version: int
    reward: float
    logprob_max_diff: float | None


def accuracy(client: Client, prefix: str, expected: int) -> float:
    """Share of right answers among the held-out rollouts whose task id begins with `prefix`."""
    n, share = client.query(_sql("accuracy"), parameters={"prefix": prefix}).first_row
    if n != expected:
        raise TracegradError(f"{n} of {expected} held-out rollouts are in the store and scored: see the demo's logs")
    return float(share)


def steps(client: Client) -> list[StepRow]:
    """Every optimiser step of the run, oldest first."""
    return [StepRow(*row) for row in client.query(_sql("steps")).result_rows]


def published_versions(client: Client) -> int:
    """How many versions were trained and swapped into the engine; the base model is none of them."""
    return int(client.query(_sql("published_versions")).first_row[0])


def answer(client: Client, query: str) -> str:
    """The result of a query as the table that `tracegrad sql` prints."""
    table: bytes = client.raw_query(query, fmt="PrettyCompactMonoBlock", settings={"output_format_pretty_color": 0})
    return table.decode()


def interval(share: float, n: int) -> tuple[float, float]:
    """The 95% confidence interval of a share of `n` (Wilson's score interval, sound also at 0 and 1)."""
    z = 1.96
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def with_interval(share: float, n: int) -> str:
    """A share and its confidence interval in words."""
    low, high = interval(share, n)
    return f"{share:.1%} (95% interval {low:.1%} to {high:.1%})"


def write(directory: Path, measured: Measured, rows: list[StepRow], answers: list[str], store: Path) -> Path:
    """Write report.json, report.md and reward.png; returns the Markdown file."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(json.dumps(asdict(measured), indent=2) + "\n")
    _draw(directory / "reward.png", measured, rows)
    report = directory / "report.md"
    report.write_text(_markdown(measured, rows, answers, store))
    return report


def _markdown(measured: Measured, rows: list[StepRow], answers: list[str], store: Path) -> str:
    before, after, n = measured.accuracy_before, measured.accuracy_after, measured.n_eval
    table = "\n".join(f"| {row.version} | {row.reward:.3f} | {_power(row.logprob_max_diff)} |" for row in rows)
    questions = "\n\n".join(
        f"### {question.words}\n\n```sql\n{question.sql}\n```\n\n```text\n{result.rstrip()}\n```"
        for question, result in zip(QUESTIONS, answers, strict=True)
    )
    title = f"# tracegrad demo, seed {measured.seed}"
    return f"""{title}

An untouched agent (`examples/calculator_agent.py`) was run, scored and trained for {measured.steps} GRPO steps through
vLLM, OpenTelemetry, ClickHouse and verl. Its model swapped weights {measured.policy_versions} times without a restart.

| held-out questions answered right (greedy) | |
|---|---|
| before | {with_interval(before, n)} |
| after | {with_interval(after, n)} |
| gain | {100 * (after - before):+.1f} points on {n} questions, none of them trained on |
| time | {measured.seconds / 60:.1f} minutes, warm start included where none was kept |
| peak memory of all processes | {measured.peak_memory_bytes / 2**30:.1f} GiB |

![Reward per step](reward.png)

What was learned: the model was warm-started on demonstrations that choose the wrong operation in most wordings.
Training repairs these planted habits; held-out means new numbers in the same wordings.

## Steps

`reward` is the mean over the step's rollouts, sampled at temperature 1 by the version before. `log-prob difference` is
the largest between what vLLM reported while sampling and what the trainer computed from the same token ids.

| published version | reward | log-prob difference |
|---|---|---|
{table}

## Ask the store

The answers below were computed at the end of this run. To ask again:

    .venv/bin/tracegrad collector --data {store}
    .venv/bin/tracegrad sql "SELECT count() FROM llm_calls"

{questions}
"""  # noqa: S608 - Markdown, not a query


def _power(difference: float | None) -> str:
    return "not compared" if difference is None else f"{difference:.1e}"


def _draw(path: Path, measured: Measured, rows: list[StepRow]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=[2, 1], layout="constrained")
    left.plot(range(1, len(rows) + 1), [row.reward for row in rows], marker="o", color="#2a6f97")
    left.set(title="Reward per step", xlabel="step", ylabel="mean reward of its rollouts", ylim=(0, 1))
    left.grid(alpha=0.3)
    shares = [measured.accuracy_before, measured.accuracy_after]
    bounds = [interval(share, measured.n_eval) for share in shares]
    errors = [
        [max(0.0, share - low) for share, (low, _) in zip(shares, bounds, strict=True)],
        [max(0.0, high - share) for share, (_, high) in zip(shares, bounds, strict=True)],
    ]
    bars = right.bar(["before", "after"], shares, yerr=errors, capsize=6, color=["#a9a9a9", "#2a6f97"])
    right.bar_label(bars, [f"{share:.0%}" for share in shares], label_type="center", color="white", fontsize=13)
    right.set(title=f"Held-out accuracy (n = {measured.n_eval})", ylim=(0, 1.05))
    figure.suptitle(f"An untouched agent, trained from its traces (seed {measured.seed})")
    figure.savefig(path, dpi=120)
    plt.close(figure)
