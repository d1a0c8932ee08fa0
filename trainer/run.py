"""Runs a job: a step at a time, or watching for new rollouts until it is told to stop."""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from tracegrad.errors import NothingToTrainError, SettingsError, UnreachableError
from trainer.config import TrainConfig
from trainer.job import Job
from trainer.learner import StartLearner, start_verl
from trainer.plan import Plan, SettlingError
from trainer.publisher import Publisher
from trainer.records import JobDirectory, StepRecord
from trainer.since import LAST
from trainer.store import Store

log = logging.getLogger(__name__)

POLL_S = 1.0
Report = Callable[[StepRecord], None]
Result = TypeVar("Result")


@contextmanager
def opened_job(
    config: TrainConfig, clickhouse: str, *, exclusive: bool = True, start_learner: StartLearner = start_verl
) -> Iterator[Job]:
    """A job with its connections, and with its lock unless it only looks."""
    directory = JobDirectory(config.engine.checkpoints, config.job)
    key = config.publish.admin_key
    publisher = Publisher(config.publish.sidecar, key.get_secret_value() if key else None)
    store = Store(clickhouse)
    job = Job(config, store, publisher, directory, start_learner)
    try:
        if exclusive:
            with directory.locked():
                yield job
        else:
            yield job
    finally:
        job.close()
        store.close()


def train_once(job: Job, config: TrainConfig, max_steps: int, report: Report) -> None:
    """At most `max_steps` steps, after finishing an interrupted one.

    Raises NothingToTrainError when there was nothing to do at all. With a `since` other than `last` a finished step
    counts: its rollouts would be trained on again.
    """
    interrupted = job.start()
    if interrupted is not None:
        report(interrupted)
        if config.data.since != LAST:
            return
    for done in range(max_steps):
        try:
            report(_settled(config, lambda hurried: job.step(hurried=hurried)))
        except NothingToTrainError:
            if done or interrupted is not None:
                return
            raise


def settled_plan(job: Job, config: TrainConfig) -> Plan:
    """What `train_once` would begin with. Raises NothingToTrainError when there is too little."""
    return _settled(config, lambda hurried: job.plan(hurried=hurried))


def _settled(config: TrainConfig, act: Callable[[bool], Result]) -> Result:
    """`act(False)`, again while rollouts settle, at most for `data.settle`; then `act(True)`: with what is ready."""
    try:
        return act(False)
    except SettlingError as error:
        log.info("waiting at most data.settle=%s: %s", config.data.settle, error)
    end = time.monotonic() + config.data.settle_s
    while time.monotonic() < end:
        time.sleep(min(POLL_S, max(end - time.monotonic(), 0)))
        try:
            return act(False)
        except SettlingError:
            continue
    return act(True)


def watch(
    job: Job,
    config: TrainConfig,
    max_steps: int | None,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    report: Report,
) -> None:
    """A step whenever there is enough to learn from, until `stop`. Store and sidecar may come and go meanwhile."""
    if config.data.since != LAST:
        raise SettingsError(
            '--watch needs data.since = "last": anything else would train on the same rollouts for ever'
        )
    done = 0
    interrupted = job.start()
    if interrupted is not None:
        report(interrupted)
    job.load()
    ready()
    said: set[str] = set()
    settling_until = math.inf
    while not stop.is_set() and (max_steps is None or done < max_steps):
        try:
            report(job.finish_pending() or job.step(hurried=time.monotonic() >= settling_until))
            done += 1
            said, settling_until = set(), math.inf
            continue
        except SettlingError:
            settling_until = min(settling_until, time.monotonic() + config.data.settle_s)
            said.clear()
        except NothingToTrainError:
            settling_until = math.inf
            said.clear()
        except UnreachableError as error:
            if str(error) not in said:
                log.warning("waiting: %s", error)
            said.add(str(error))
        stop.wait(POLL_S)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; the second interrupts at once."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        log.info("finishing the step, then stopping signal=%s", signal.Signals(number).name)

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
