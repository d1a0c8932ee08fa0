"""How a process ends without losing spans, and without waiting for a dead collector.

All waiting at the end of a process shares one budget. A flush runs in a daemon thread, since the SDK's own takes no
timeout, and since a signal may come while the thread it interrupts holds the SDK's locks. The SDK's shutdown, which an
exit handler calls, takes one: from Python 3.12 on, no thread can be started that late.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from opentelemetry import _logs, trace

from tracegrad_otel import quiet

log = logging.getLogger(quiet.LOST)

BUDGET_S = 2.0
SIGTERM_BUDGET_S = 1.5
"""Below the two seconds that `tracegrad rollout` leaves between SIGTERM and SIGKILL."""

_deadlines: dict[int, float] = {}
"""Process id -> when its budget is used up (monotonic); a forked child has a budget of its own."""

_before_ending: list[tuple[int, Callable[[], None]]] = []
"""(process id, what to do before the last flush)."""


def before_ending(action: Callable[[], None]) -> None:
    """Have `action` done once, before the last flush, when this process ends by SIGTERM or os._exit."""
    _before_ending.append((os.getpid(), action))


def remaining_s(budget_s: float = BUDGET_S) -> float:
    """What this process may still spend on its end, which begins with the first call."""
    deadline = _deadlines.setdefault(os.getpid(), time.monotonic() + budget_s)
    return max(0.0, deadline - time.monotonic())


def flush(budget_s: float = BUDGET_S) -> None:
    """Export what has ended so far."""
    while _before_ending:
        pid, action = _before_ending.pop()
        if pid == os.getpid():
            action()
    timeout_s = remaining_s(budget_s)
    thread = threading.Thread(target=_flush_providers, name="tracegrad-otel-end", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # exit handlers run already, and the SDK's comes at their end
        return
    thread.join(timeout_s)
    say_lost(thread)


def say_lost(exporting: threading.Thread) -> None:
    """Called when the time is up: what `exporting` has not sent by now is lost."""
    if exporting.is_alive():
        log.warning("the collector did not take all spans before the process ended")


def _flush_providers() -> None:
    for provider in (trace.get_tracer_provider(), _logs.get_logger_provider()):
        force_flush = getattr(provider, "force_flush", None)  # a proxy before the SDK stands has none
        if force_flush is not None:
            force_flush()


def flush_before_os_exit() -> None:
    """Make os._exit flush first: children of fork and multiprocessing end by it, and it skips all exit handlers."""
    leave = os._exit
    if getattr(leave, "flushes_spans", False):
        return

    def _exit(status: int) -> NoReturn:
        try:
            flush()
        finally:
            leave(status)

    vars(_exit)["flushes_spans"] = True
    vars(os)["_exit"] = _exit


def flush_on_sigterm() -> None:
    """Flush on SIGTERM, then die of it as before. An agent that handles SIGTERM itself replaces this."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _flush_and_die)


def _flush_and_die(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    try:
        flush(SIGTERM_BUDGET_S)
    finally:
        os.kill(os.getpid(), number)
