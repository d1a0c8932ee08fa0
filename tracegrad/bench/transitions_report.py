"""What the transitions bench found, as metrics, tables and sentences."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tracegrad.bench import machine
from tracegrad.bench.collector_phases import median
from tracegrad.bench.metric import Metric, Table, shown
from tracegrad.bench.phases import BUSY
from tracegrad.bench.plan import Plan
from tracegrad.bench.transitions_reader import Read
from tracegrad.bench.transitions_store import CALLS, SPANS

JOB, ROWS, COLUMNS = "job", "rows", "columns"
LEAST_ROLLOUTS = 1_000
NOTHING = ""
NAMES = {JOB: "job", ROWS: "rows, read only", COLUMNS: "columns, read only"}


@dataclass(frozen=True)
class Ran:
    """One reading of a whole store. `store_s`: CPU time of the store. None: not known on this system."""

    way: str
    read: Read
    store_s: float | None
    store_peak_bytes: int | None
    others_cores: float | None

    @property
    def cpu_s(self) -> float | None:
        """Of reader and store."""
        return None if self.store_s is None else self.store_s + self.read.cpu_s

    @property
    def per_cpu_s(self) -> float | None:
        """Tokens per second of CPU time."""
        return self.read.tokens / self.cpu_s if self.cpu_s else None

    @property
    def per_s(self) -> float:
        """Tokens a second, by the clock."""
        return self.read.tokens / self.read.seconds


@dataclass(frozen=True)
class Found:
    """All that was measured. `one_core`: by store and way. `two_cores`: the small store on a core of its own."""

    one_core: Mapping[tuple[str, str], Sequence[Ran]]
    two_cores: Sequence[Ran]
    disk_bytes: Mapping[str, int]
    load_average: float

    def median(self, store: str, way: str, what: Callable[[Ran], float | None]) -> float | None:
        """Of one figure over the repeats."""
        return median([what(one) for one in self.one_core[store, way]])

    def ratio(self, of: tuple[str, str], to: tuple[str, str], what: Callable[[Ran], float | None]) -> float | None:
        """The median of the ratios of the repeats."""
        pairs = zip(map(what, self.one_core[of]), map(what, self.one_core[to]), strict=True)
        return median([one / other if one and other else None for one, other in pairs])


def metrics(found: Found) -> list[Metric]:
    """With goals where there are any."""
    small, large, whole = ("small", JOB), ("large", JOB), ("whole", JOB)
    columns, rows = ("small", COLUMNS), ("small", ROWS)

    def at_large(what: Callable[[Ran], float | None]) -> float | None:
        return found.median(*large, what)

    return [
        Metric(
            "tokens_per_s_per_core",
            at_large(_per_cpu_s),
            "tokens of transitions, store to packed rows, a second of CPU time of trainer and store together",
            ">= 1000000",
        ),
        Metric("tokens_per_s", at_large(_per_s), "the same by the clock, trainer and store on one core"),
        Metric("growth_10x", found.ratio(large, small, _cpu_s), "CPU time: ten times the rollouts", "<= 11"),
        Metric("growth_10x_by_the_clock", found.ratio(large, small, _seconds), "the same by the clock"),
        Metric("peak_rss", at_large(_peak), "bytes: the trainer's process at ten times the rollouts"),
        Metric(
            "peak_rss_growth", found.ratio(large, small, _peak), "peak_rss at ten times the rollouts to that at one"
        ),
        Metric("store_peak_rss", at_large(lambda one: one.store_peak_bytes), "bytes: the collector's process"),
        Metric("trained_tokens_per_s_per_core", at_large(_of_cpu("trained")), "tokens that rows train"),
        Metric("packed_tokens_per_s_per_core", at_large(_of_cpu("packed")), "tokens that rows hold"),
        Metric("transitions_per_s_per_core", at_large(_of_cpu("transitions")), "calls"),
        Metric("trainer_tokens_per_s_per_core", at_large(_trainer), "tokens a second of the trainer's CPU time alone"),
        Metric("store_tokens_per_s_per_core", at_large(_store), "tokens a second of the store's CPU time alone"),
        Metric(
            "tokens_per_s_two_cores",
            median([one.per_s for one in found.two_cores]),
            "by the clock, trainer and store on a core each",
        ),
        Metric("plan_s", at_large(_plan), "of it, until it was known what waits, ten times the rollouts"),
        Metric("plan_growth_10x", found.ratio(large, small, _plan), "the same to that of one time"),
        Metric(
            "whole_prompts_tokens_per_s_per_core", found.median(*whole, _per_cpu_s), "each call with its whole prompt"
        ),
        Metric("rows_tokens_per_s_per_core", found.median(*rows, _per_cpu_s), "the calls row by row, read only"),
        Metric("ratio_to_rows", found.ratio(small, rows, _per_cpu_s), "CPU: all that a job does to that"),
        Metric("columns_tokens_per_s_per_core", found.median(*columns, _per_cpu_s), "the stored columns, read only"),
        Metric("columns_limit_ratio", found.ratio(small, columns, _per_cpu_s), "CPU: all that a job does to that"),
        Metric(
            "stored_bytes_per_token",
            found.disk_bytes["large"] / max(1, found.one_core[large][0].read.tokens),
            "bytes on disk for a token of a transition, messages and all",
        ),
        Metric("others_cores", _most_others(found), "cores that were busy with something else"),
        Metric("load_average", found.load_average, "of the machine, before"),
    ]


def _per_cpu_s(one: Ran) -> float | None:
    return one.per_cpu_s


def _per_s(one: Ran) -> float:
    return one.per_s


def _cpu_s(one: Ran) -> float | None:
    return one.cpu_s


def _seconds(one: Ran) -> float:
    return one.read.seconds


def _peak(one: Ran) -> float:
    return one.read.peak_bytes


def _plan(one: Ran) -> float:
    return one.read.plan_s


def _trainer(one: Ran) -> float:
    return one.read.tokens / one.read.cpu_s


def _store(one: Ran) -> float | None:
    return one.read.tokens / one.store_s if one.store_s else None


def _of_cpu(name: str) -> Callable[[Ran], float | None]:
    return lambda one: getattr(one.read, name) / one.cpu_s if one.cpu_s else None


def _runs(found: Found) -> list[Ran]:
    return [one for runs in found.one_core.values() for one in runs] + list(found.two_cores)


def _most_others(found: Found) -> float | None:
    return max((one.others_cores for one in _runs(found) if one.others_cores is not None), default=None)


def tables(found: Found) -> list[Table]:
    """Every run."""
    header = (
        "store, and what is done",
        "rollouts",
        "tokens/s",
        "tokens/CPU s",
        "seconds",
        "plan s",
        "trainer CPU s",
        "store CPU s",
        "peak MB",
        "store MB",
        "others",
    )
    rows = []
    for (store, way), runs in found.one_core.items():
        rows += [_row(f"{store}: {NAMES[way]}", one) for one in runs]
    rows += [_row("small, on two cores", one) for one in found.two_cores]
    return [Table("Every run, in turn; trainer and store on one core but where it says two", header, rows)]


def _row(title: str, one: Ran) -> tuple[str, ...]:
    read = one.read
    values = (
        *(one.per_s, one.per_cpu_s, read.seconds, read.plan_s or None, read.cpu_s, one.store_s),
        *(read.peak_bytes / 1e6, one.store_peak_bytes / 1e6 if one.store_peak_bytes else None, one.others_cores),
    )
    cells = [NOTHING if value is None else shown(value, digits=3) for value in values]
    return title, f"{read.rollouts:,}", *cells


def notes(plan: Plan, cores: machine.Cores, found: Found) -> list[str]:
    """What must be said of the figures."""
    read = found.one_core["large", JOB][0].read
    said = [
        f"load average {found.load_average:.2f} before; {read.transitions:,} transitions in {read.rollouts:,} rollouts "
        f"of {CALLS} calls and {SPANS} spans, {read.tokens:,} tokens: prompt and response of each, of which the store "
        f"holds what is new; {read.trained:,} are trained, in {read.rows:,} rows of {read.packed:,} tokens; "
        f"batches of {plan.batch}"
    ]
    if plan.rollouts < LEAST_ROLLOUTS:
        said.append(f"less than {LEAST_ROLLOUTS:,} rollouts show that the bench works, and little else")
    said += machine.shortcomings(cores, "trainer")
    if (others := _most_others(found)) is not None and others > BUSY:
        said.append(
            f"{others:.2f} cores were busy with something else: figures by the clock are not only ours; "
            "those per core and ratios of CPU time are sound"
        )
    return said
