"""The launcher: runs an untouched agent over a task set, each run its own trace with a root span.

Invariants: every run that was begun ends as exactly one root span, whatever became of its process; no process of a run
outlives it; nothing is started before the tasks, the command, the collector and the sidecar are known to be good.
"""

from tracegrad.rollout.launcher import Launcher, run_rollouts
from tracegrad.rollout.results import RunResult, Summary
from tracegrad.rollout.tasks import Task, read_tasks

__all__ = ["Launcher", "RunResult", "Summary", "Task", "read_tasks", "run_rollouts"]
