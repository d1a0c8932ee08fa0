"""The machine that a bench runs on: its cores, and what Linux says of processes' time and memory.

Invariant: what cannot be known here (another system than Linux, a container that hides it) is None, never 0.
"""

import contextlib
import os
import platform
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LINUX = (PROC / "self" / "stat").exists()
_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Cores:
    """Which cores what runs on; empty: the system decides."""

    proxy: frozenset[int]
    load: frozenset[int]
    total: int

    @property
    def all(self) -> frozenset[int]:
        """Both together."""
        return self.proxy | self.load


def cores(for_proxy: int = 1) -> Cores:
    """The first cores for the proxy under test; the rest, without the siblings of those, for the load."""
    if not hasattr(os, "sched_getaffinity"):
        return Cores(frozenset(), frozenset(), os.cpu_count() or 1)
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) <= for_proxy:
        return Cores(frozenset(allowed), frozenset(allowed), len(allowed))
    proxy = allowed[:for_proxy]
    rest = [core for core in allowed if core not in proxy]
    siblings = {sibling for core in proxy for sibling in _siblings(core)}
    own = [core for core in rest if core not in siblings]
    return Cores(frozenset(proxy), frozenset(own if len(own) > 1 else rest), len(allowed))


def _siblings(core: int) -> set[int]:
    """The cores that share their hardware with this one."""
    with contextlib.suppress(OSError, ValueError):
        found: set[int] = set()
        for part in (_CPUS / f"cpu{core}" / "topology" / "thread_siblings_list").read_text().split(","):
            first, _, last = part.strip().partition("-")
            found |= set(range(int(first), int(last or first) + 1))
        return found
    return {core}


@contextlib.contextmanager
def on(chosen: Collection[int]) -> Iterator[None]:
    """Processes started in the block run on these cores alone."""
    if not chosen:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _stat(pid: int) -> list[str] | None:
    """What follows the name in a process's `stat`; None where it has ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def session(leader: int) -> list[int]:
    """The living processes of the session that one process leads: itself, and all that it has started."""
    found = []
    for entry in PROC.iterdir() if LINUX else ():
        if not entry.name.isdecimal() or (stat := _stat(int(entry.name))) is None:
            continue
        if int(stat[3]) == leader and stat[0] != "Z":
            found.append(int(entry.name))
    return found


def cpu_s(pids: Collection[int]) -> float | None:
    """What these have computed, for themselves and in the kernel."""
    if not LINUX:
        return None
    stats = [stat for stat in map(_stat, pids) if stat is not None]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pids: Collection[int]) -> int | None:
    """Their memory; pages that they share count for each."""
    if not LINUX:
        return None
    stats = [stat for stat in map(_stat, pids) if stat is not None]
    return sum(int(stat[21]) for stat in stats) * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes(pids: Collection[int]) -> int | None:
    """The most memory that each of these ever had, together; of one that has ended, nothing."""
    if not LINUX:
        return None
    found = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in (PROC / str(pid) / "status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    found += int(line.split()[1]) << 10
    return found


def busy_s() -> float | None:
    """What all cores have computed since the machine was started, for anybody."""
    if not LINUX:
        return None
    user, nice, system, _, _, *rest = map(int, (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def describe() -> dict[str, str | int]:
    """What a report says of where its figures are from."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in (PROC / "cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": cores().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def shortcomings(cores: Cores, measured: str) -> list[str]:
    """What this machine does not let us tell, or keep apart, of the `measured` process."""
    said = []
    if not LINUX:
        said.append("CPU time and memory of processes are read from /proc, which only Linux has: not known here")
    if not cores.proxy:
        said.append("processes cannot be kept on chosen cores here: rates are those of all cores")
    elif cores.total == 1:
        said.append(f"there is one core for everything: rates and latencies are those of {measured} and load together")
    return said
