"""One training job: a step consumes rollouts, updates the policy, publishes the weights and records it all.

Crash safety. A step happens at one instant: when its checkpoint gets its name, or, where no weights changed, when its
record does (see `trainer.records`). Killed before, the job starts over from the checkpoint before and finds the same
rollouts; killed after, it finishes the step from the checkpoint: writes the weights, publishes and records them,
each of which may be done twice. So no sample is trained on twice and none is skipped.
"""

import json
import logging
import math
import secrets
import time
from collections.abc import Sequence
from functools import cached_property

from tracegrad.errors import TracegradError, UnreachableError
from trainer import weights
from trainer.config import TrainConfig
from trainer.gate import Gate
from trainer.gate_report import GateReport
from trainer.learner import Learner, StartLearner
from trainer.plan import Plan, make_plan, plan_metrics, sample_records
from trainer.proved_rows import proved_rows
from trainer.publisher import Publisher, Served
from trainer.records import JobDirectory, StepRecord
from trainer.rows import Row
from trainer.seconds import Seconds
from trainer.since import parse_since
from trainer.store import Store
from trainer.vocabulary import Vocabulary

log = logging.getLogger(__name__)


class Job:
    """The steps of one job. The caller holds the lock of `directory`, and calls `start` first."""

    def __init__(
        self,
        config: TrainConfig,
        store: Store,
        publisher: Publisher,
        directory: JobDirectory,
        start_learner: StartLearner,
    ) -> None:
        self._config = config
        self._store = store
        self._publisher = publisher
        self._directory = directory
        self._start_learner = start_learner
        self._learner: Learner | None = None
        self._lineage: tuple[int, ...] = ()
        self._base_sha256 = ""
        self._number = 0
        self._pending: StepRecord | None = None
        self._written: tuple[int, str] | None = None

    @cached_property
    def _vocabulary(self) -> Vocabulary | None:
        return Vocabulary.of_model(self._config.engine.model)

    @property
    def version(self) -> int:
        """The newest version of the policy: what the learner holds."""
        return self._lineage[-1]

    def start(self) -> StepRecord | None:
        """Find out where the job stands, and finish a step that was interrupted: that step, if there was one."""
        self._base_sha256 = weights.base_sha256(self._config.engine.model)
        newest = self._directory.newest()
        if newest is None:
            self._begin(self._publisher.served(self._config.data.policy).version)
            return None
        weights.check_continues(newest, self._config, self._base_sha256)
        self._number, self._lineage = newest.number, newest.lineage
        self._check_served(self._publisher.served(self._config.data.policy).version)
        if self._store.has_step(newest.step_id):
            self.publish_again_if_behind()
            return None
        log.info("finishing an interrupted step job=%s step_id=%s", newest.job, newest.step_id)
        self._pending = newest
        return self.finish_pending()

    def peek(self) -> StepRecord | None:
        """Find out where the job stands and change nothing: the step that `start` would finish, if there is one."""
        newest = self._directory.newest()
        if newest is None:
            self._lineage = (self._publisher.served(self._config.data.policy).version or 0,)
            return None
        self._number, self._lineage = newest.number, newest.lineage
        return None if self._store.has_step(newest.step_id) else newest

    def plan(self, *, hurried: bool = False) -> Plan:
        """What the next step would consume. Raises NothingToTrainError when there is too little.

        Where rollouts have yet to settle, that is a SettlingError, unless `hurried`.
        """
        since = parse_since(self._config.data.since, time.time_ns())
        return make_plan(self._config, self._store, self._gate(), since, hurried=hurried)

    def plan_metrics(self, plan: Plan) -> dict[str, float]:
        """Metrics of a plan of this job."""
        return plan_metrics(plan, self._gate())

    def gate_report(self, plan: Plan) -> GateReport:
        """The gate's verdict on a plan, as far as it can be told without the engine."""
        return GateReport.of(self._config, self._number + 1, plan, self._gate(), recomputed=False)

    def load(self) -> Learner:
        """The engine at the newest version, started when it is first needed."""
        if self._learner is None:
            self._learner = self._start_learner(self._config, self._directory.newest_checkpoint())
        return self._learner

    def close(self) -> None:
        """Stop the engine."""
        if self._learner is not None:
            self._learner.close()
            self._learner = None

    def step(self, *, hurried: bool = False) -> StepRecord:
        """Make one step. Raises NothingToTrainError when there is too little to learn from, as `plan` does."""
        self.finish_pending()
        self.publish_again_if_behind()
        started_ns, seconds = time.time_ns(), Seconds()
        with seconds("select"):
            plan = self.plan(hurried=hurried)
            newest_recorded = max(self._store.versions(self._config.data.policy), default=0)
        try:
            proved = proved_rows(
                self._config,
                plan,
                self._gate(),
                directory=self._directory,
                number=self._number + 1,
                load=self.load,
                messages_of=self._store.messages_of,
                seconds=seconds,
            )
            rows, plan = proved.rows, proved.plan
            metrics = self.plan_metrics(plan) | proved.metrics | (self._learn(rows, seconds) if rows else {})
            version = max(self.version, newest_recorded) + 1 if rows else self.version
            record = StepRecord(
                number=self._number + 1,
                step_id=secrets.token_hex(8),
                job=self._config.job,
                policy=self._config.data.policy,
                from_version=self.version,
                to_version=version,
                updated=bool(rows),
                algorithm=self._config.algorithm.name,
                config=self._config.model_dump_json(),
                metrics=metrics | seconds.metrics(),
                started_ns=started_ns,
                ended_ns=time.time_ns(),
                lineage=(*self._lineage, version) if rows else self._lineage,
                base_sha256=self._base_sha256,
                samples=sample_records(plan),
            )
            self._commit(record, seconds)
        except BaseException:
            self.close()  # it may have learned what no checkpoint holds
            raise
        finished = self.finish_pending(seconds)
        assert finished is not None  # noqa: S101 - it was committed just now
        return finished

    def finish_pending(self, seconds: Seconds | None = None) -> StepRecord | None:
        """Publish and record the step that has happened but is not in the store yet, if there is one."""
        step = self._pending
        if step is None:
            return None
        seconds = seconds or Seconds()
        try:
            if step.updated:
                self._check_not_rolled_back(self._publisher.served(step.policy))
                with seconds("publish"):
                    self._publish(step)
            done = step.model_copy(update={"metrics": step.metrics | seconds.metrics(), "ended_ns": time.time_ns()})
            self._store.record_step(done, json.dumps(done.metrics))
        except UnreachableError as error:
            raise UnreachableError(f"{error}; the step is saved, and finished as soon as that answers again") from error
        self._pending = None
        self._directory.prune(self._config.engine.keep_checkpoints)
        weights.prune(self._config.publish, step.policy, step.lineage)
        return done

    def publish_again_if_behind(self) -> None:
        """Bring engines back to the newest version: after a restart, or when they do not say what they serve."""
        served = self._publisher.served(self._config.data.policy)
        self._check_served(served.version)
        self._check_not_rolled_back(served)
        if (served.all_known and served.version == self.version) or len(self._lineage) < 2:
            return
        log.warning(
            "an engine does not serve the newest weights, publishing them again policy=%s served=%s newest=%d",
            self._config.data.policy,
            served.version if served.all_known else "unknown",
            self.version,
        )
        self._hand_over(self.version)

    def _begin(self, served: int | None) -> None:
        """First start: the engines serve the base model, under whatever version they give it."""
        policy, model = self._config.data.policy, self._config.engine.model
        if served is None:
            raise UnreachableError(
                f"no engine behind the sidecar says which version of policy {policy!r} it serves: is vLLM up?"
            )
        recorded = self._store.versions(policy)
        weights.check_is_base(policy, served, recorded.get(served), self._base_sha256, model)
        if served not in recorded:
            self._store.record_version(
                policy,
                served,
                sha256=self._base_sha256,
                path=model,
                parent=None,
                step_id="",
                at_ns=time.time_ns(),
            )
        self._lineage = (served,)

    def _check_served(self, served: int | None) -> None:
        if served is not None and served > self.version:
            raise TracegradError(
                f"the engine serves version {served} of policy {self._config.data.policy!r}, but the newest checkpoint "
                f"of job {self._config.job!r} is version {self.version}: another job publishes this policy, or "
                "checkpoints were lost; restart vLLM to publish this job's weights again"
            )

    def _check_not_rolled_back(self, served: Served) -> None:
        """An operator's way back is not undone behind the operator's back."""
        if served.rolled_back_from in self._lineage:
            policy, newer = self._config.data.policy, served.rolled_back_from
            raise TracegradError(
                f"version {newer} of policy {policy!r}, which job {self._config.job!r} published, was replaced by an "
                f"older one (version {served.version}): to go on from version {newer}, publish it again (`tracegrad "
                f"policy publish {policy} --version {newer} --weights ...`); to stay with the older one, end this job"
            )

    def _gate(self) -> Gate:
        return Gate(
            max_prompt_tokens=self._config.engine.max_prompt_tokens,
            max_response_tokens=self._config.engine.max_response_tokens,
            max_staleness=self._config.data.max_staleness,
            lineage=self._lineage,
            vocabulary=self._vocabulary,
        )

    def _learn(self, rows: Sequence[Row], seconds: Seconds) -> dict[str, float]:
        """Update the policy. Raises TracegradError where the numbers are none."""
        with seconds("update"):
            metrics = {name: float(value) for name, value in self.load().update(rows).items()}
        broken = [name for name, value in metrics.items() if not math.isfinite(value)]
        if broken:
            raise TracegradError(
                f"the update gave {broken[0]} = {metrics[broken[0]]}: nothing was saved; lower engine.lr and try again"
            )
        return metrics

    def _commit(self, record: StepRecord, seconds: Seconds) -> None:
        self._directory.write(record)
        if record.updated:
            with seconds("checkpoint"):
                try:
                    self.load().save(self._directory.checkpoint(record.number))
                except OSError as error:
                    raise TracegradError(
                        f"the checkpoint cannot be written, so nothing was trained: {error}"
                    ) from error
        self._number, self._lineage, self._pending = record.number, record.lineage, record

    def _publish(self, step: StepRecord) -> None:
        sha256 = self._hand_over(step.to_version)
        file = weights.file_of(self._config.publish, step.policy, step.to_version)
        self._store.record_version(
            step.policy,
            step.to_version,
            sha256=sha256,
            path=file.resolve(),
            parent=step.from_version,
            step_id=step.step_id,
            at_ns=time.time_ns(),
        )

    def _hand_over(self, version: int) -> str:
        """Write the learner's weights, once, and have every engine serve them; returns their sha256."""
        policy = self._config.data.policy
        file = weights.file_of(self._config.publish, policy, version)
        if self._written is None or self._written[0] != version:
            file.parent.mkdir(parents=True, exist_ok=True)
            self.load().write_weights(file)
            self._written = version, weights.sha256_of(file)
        sha256 = self._written[1]
        self._publisher.publish(policy, version, file, sha256)
        return sha256
