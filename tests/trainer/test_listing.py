"""`tracegrad transitions`: the contract's fields, in its order, with the numbers that training used."""

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from recorded_agents import Collector, RecordedAgents
from training_doubles import CountingLearner
from typer.testing import CliRunner

from tracegrad.cli import app
from tracegrad.errors import SettingsError
from trainer import listing, run
from trainer.batch_choices import Choices
from trainer.config import DataConfig, TrainConfig
from trainer.listing import Wanted, iso_time, judge
from trainer.portions import CHARACTERS
from trainer.reward_sets import Given
from trainer.rollout import Rollout
from trainer.since import Since, parse_since
from trainer.store import Recorded, Store
from trainer.transitions import Call

MakeCall = Callable[..., Call]
FIELDS = (
    "rollout_id attempt task_id agent trace_id span_id index prompt_token_ids response_token_ids logprobs reward "
    "credit advantage next_span_id next_prompt_token_ids terminal policy policy_version started_at used drop_reason"
)


def command(collector: Collector, *arguments: str) -> str:
    done = CliRunner().invoke(
        app, ["transitions", *arguments], env={"TRACEGRAD_CLICKHOUSE": collector.clickhouse}, catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def listed(collector: Collector, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in command(collector, "--json", *arguments).splitlines()]


def test_one_object_a_line_with_the_contracts_fields(agents: RecordedAgents) -> None:
    with agents.together():
        good = agents.run("one", 1.0, n_calls=2, **{"tracegrad.task.id": "what a call says"})
        bad = agents.run("one", 0.0, n_calls=1)
    lines = listed(agents.collector, "--policy", agents.policy)
    assert [" ".join(line) for line in lines] == [FIELDS] * 3
    assert [line["rollout_id"] for line in lines] == sorted([good, good, bad])
    assert {line["task_id"] for line in lines} == {f"{agents.policy}.one"}
    assert lines == sorted(lines, key=lambda line: (line["rollout_id"], line["started_at"], line["span_id"]))

    first, last = (line for line in lines if line["rollout_id"] == good)
    assert (first["index"], last["index"]) == (0, 1)
    assert (first["terminal"], last["terminal"]) == (False, True)
    assert (first["next_span_id"], last["next_span_id"]) == (last["span_id"], None)
    assert (first["next_prompt_token_ids"], last["next_prompt_token_ids"]) == ([1, 2, 1], None)
    assert first["prompt_token_ids"] == [1, 2, 0]
    assert first["logprobs"] == [-0.5, -0.25]
    assert (first["reward"], first["credit"]) == (0.0, 1.0)
    assert first["advantage"] == pytest.approx(0.7071, abs=1e-4)
    assert (first["policy"], first["policy_version"]) == (agents.policy, 0)
    assert (first["used"], first["drop_reason"]) == (True, None)


def test_filters_do_not_change_advantages(agents: RecordedAgents) -> None:
    with agents.together():
        good, _ = agents.pair("one")
        agents.run("two", 1.0)
    alone = listed(agents.collector, "--rollout", good)
    assert {line["rollout_id"] for line in alone} == {good}
    assert [line["advantage"] for line in alone] == pytest.approx([0.7071, 0.7071], abs=1e-4)
    of_task = listed(agents.collector, "--task", f"{agents.policy}.one", "--no-advantage")
    assert len(of_task) == 4
    assert {line["advantage"] for line in of_task} == {None}
    assert listed(agents.collector, "--task", "unheard of") == []
    assert listed(agents.collector, "--policy", agents.policy, "--agent", "nobody") == []
    assert listed(agents.collector, "--policy", agents.policy, "--since", "2999-01-01") == []
    assert len(listed(agents.collector, "--policy", agents.policy, "--since", "1h")) == 6


def test_what_no_step_would_look_at_says_why(agents: RecordedAgents) -> None:
    with agents.together():
        agents.pair("one")
        reasons = {
            agents.run("one", 1.0, n_calls=1, split="eval"): "eval",
            agents.run("one", None, n_calls=1): "no_reward",
            agents.run("one", None, n_calls=1, finished=False): "running",
        }
    lines = listed(agents.collector, "--policy", agents.policy)
    others = {line["rollout_id"]: line for line in lines if line["rollout_id"] in reasons}
    assert {name: line["drop_reason"] for name, line in others.items()} == reasons
    assert not any(line["used"] for line in others.values())
    assert {line["advantage"] for line in others.values()} == {None}
    assert sorted({round(line["advantage"], 4) for line in lines if line["used"]}) == [-0.7071, 0.7071]


def test_a_trained_transition_keeps_its_batch_and_verdict(agents: RecordedAgents, config: TrainConfig) -> None:
    with agents.together():
        agents.pair("one")
        agents.run("one", 0.5, version=7)
        agents.run("one", 0.0, n_calls=0)
    before = listed(agents.collector, "--policy", agents.policy)
    with run.opened_job(config, agents.collector.clickhouse, start_learner=CountingLearner.start) as job:
        run.train_once(job, config, 1, lambda step: None)
    agents.run("one", 5.0)
    after = listed(agents.collector, "--policy", agents.policy)
    new = listed(agents.collector, "--policy", agents.policy, "--since", "last")
    assert {line["drop_reason"] for line in new} == {"singleton_group"}
    old = [line for line in after if line["span_id"] in {line["span_id"] for line in before}]
    assert len(after) == len(old) + len(new)
    assert [line["advantage"] for line in old] == [line["advantage"] for line in before]
    assert {line["drop_reason"] for line in before} == {None}
    assert {line["drop_reason"] for line in old} == {None, "unknown_version"}


def test_of_two_steps_the_later_is_a_rollouts_batch_whatever_their_ids_are(make_call: MakeCall) -> None:
    def rollout(name: str, reward: float, *calls: str) -> Rollout:
        made = [make_call(span, at, rollout_id=name) for at, span in enumerate(calls)]
        root = f"{name}.root"
        given = [Given(root, "answer", reward)]
        return Rollout(name, 0, "t", "ab" * 16, root, "succeeded", "", "train", reward, calls=made, given=given)

    early, late = (Recorded(step, True, "", at) for step, at in (("ff", 1), ("00", 2)))
    twice = rollout("twice", 1.0, "a", "b")
    beside, before = rollout("beside", 0.0, "c"), rollout("before", 0.5, "d")
    recorded = {("policy", span): step for span, step in (("a", early), ("b", late), ("c", late), ("d", early))}
    found = judge(
        [twice, beside, before], recorded, Wanted(Since(0, untrained_only=False), Choices(estimator="dr_grpo"))
    )
    assert [found["twice", 0]["policy", span].advantage for span in ("a", "b")] == [0.5, 0.5]
    assert found["beside", 0]["policy", "c"].advantage == -0.5


def test_many_tasks_are_asked_for_in_parts(agents: RecordedAgents, monkeypatch: pytest.MonkeyPatch) -> None:
    agents.pair("one")
    store = Store(agents.collector.clickhouse)
    tasks = [f"{agents.policy}.one", *(f"{agents.policy}.{number:050}" for number in range(500))]
    asked: list[list[str]] = []
    blocks = store._blocks
    monkeypatch.setattr(
        store, "_blocks", lambda name, **values: (asked.append(values["task_ids"]), blocks(name, **values))[1]
    )
    assert len(store.rollouts(Since(0, untrained_only=False), task_ids=tasks)) == 2
    assert sorted(task for part in asked for task in part) == sorted(tasks)
    assert max(len("".join(part)) for part in asked) <= CHARACTERS
    store.close()


def test_gamma_discounts_all_but_identical_credit(agents: RecordedAgents) -> None:
    good, _ = agents.pair("one")

    def credits(*arguments: str) -> list[float]:
        lines = listed(agents.collector, "--policy", agents.policy, *arguments)
        return [line["credit"] for line in lines if line["rollout_id"] == good]

    assert credits("--gamma", "0.5") == [0.5, 1.0]
    assert credits("--gamma", "0.5", "--credit", "discounted") == [0.5, 1.0]
    assert credits("--gamma", "0.5", "--credit", "identical") == [1.0, 1.0]
    assert credits("--credit", "step") == [0.0, 0.0]


def test_parts_of_a_store_are_judged_as_the_whole_is(agents: RecordedAgents, monkeypatch: pytest.MonkeyPatch) -> None:
    with agents.together():
        tasks = [{*agents.pair(task), agents.run(task, 0.25)} for task in ("one", "two")]
        tasks.append({agents.run("alone", 1.0)})
    own = set.union(*tasks)
    read: dict[tuple[str, ...], list[Rollout]] = {}
    filled = Store.filled

    def once(store: Store, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Rollouts read together look the same to every estimator."""
        key = tuple(sorted(rollout.rollout_id for rollout in rollouts))
        if key not in read:
            read[key] = filled(store, rollouts)
        found = {rollout.key: rollout for rollout in read[key]}
        return [found[rollout.key] for rollout in rollouts]

    monkeypatch.setattr(Store, "filled", once)
    estimators = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "gigpo")
    arguments = {estimator: ["--policy", agents.policy, "--advantage", estimator] for estimator in estimators}
    whole = {estimator: listed(agents.collector, *arguments[estimator]) for estimator in estimators}
    assert {len(own & set(key)) for key in read} == {7}
    monkeypatch.setattr(listing, "ROLLOUTS_AT_ONCE", 4)
    for estimator in estimators:
        assert listed(agents.collector, *arguments[estimator]) == whole[estimator]
        assert len(whole[estimator]) == 14
        assert len({line["advantage"] for line in whole[estimator]}) >= 3
    assert any(own & set(key) in tasks for key in read), "of two parts, the second is a group alone"


def test_another_policys_rollouts_are_not_read(agents: RecordedAgents, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout without any call is of everybody, since it may have died before it made one."""
    agents.pair("one")
    with agents.together():
        own = agents.pair("one", **{"tracegrad.policy.name": f"{agents.policy}-b"})
        died = agents.run("one", 0.0, n_calls=0)
        mixed = agents.run("one", 1.0, **{"tracegrad.policy.name": [f"{agents.policy}-b", agents.policy]})
    asked: list[str] = []
    filled = Store.filled

    def noted(store: Store, rollouts: Sequence[Rollout]) -> list[Rollout]:
        asked.extend(rollout.rollout_id for rollout in rollouts)
        return filled(store, rollouts)

    monkeypatch.setattr(Store, "filled", noted)
    task = f"{agents.policy}.one"
    lines = listed(agents.collector, "--policy", f"{agents.policy}-b", "--task", task)
    assert sorted(asked) == sorted([*own, died, mixed])
    everybody = [line for line in listed(agents.collector, "--task", task) if line["policy"] == f"{agents.policy}-b"]
    assert lines == everybody
    assert len(lines) == 5


def test_a_table_for_people(agents: RecordedAgents) -> None:
    agents.pair("one")
    header, *rows = command(agents.collector, "--policy", agents.policy).splitlines()
    assert header.split()[:3] == ["ROLLOUT", "TASK", "AGENT"]
    assert header.split()[-1] == "USABLE"
    assert len(rows) == 4
    assert all(f"{agents.policy}@0" in row and row.endswith("yes") for row in rows)


def test_the_table_keeps_no_tokens(agents: RecordedAgents, monkeypatch: pytest.MonkeyPatch) -> None:
    agents.pair("one")
    line = listed(agents.collector, "--policy", agents.policy)[0]
    kept: list[weakref.ref[Any]] = []
    at_once: list[int] = []

    def many(*_: Any) -> Iterator[dict[str, Any]]:
        for _place in range(5):
            tokens = np.arange(10)
            kept.append(weakref.ref(tokens))
            yield line | {"prompt_token_ids": tokens}
            del tokens
            at_once.append(sum(one() is not None for one in kept))

    monkeypatch.setattr("trainer.listing.list_transitions", many)
    assert len(command(agents.collector, "--policy", agents.policy).splitlines()) == 6
    assert max(at_once) <= 1


def test_it_needs_a_store_and_no_torch(free_port: Any) -> None:
    environment = os.environ | {"TRACEGRAD_CLICKHOUSE": f"http://127.0.0.1:{free_port()}"}
    program = (
        "import sys; from tracegrad.cli import main; sys.argv = ['tracegrad', 'transitions']\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'verl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == "[]\n"
    assert done.stderr.startswith("tracegrad: no store at http://127.0.0.1:")
    assert done.stderr.count("\n") == 1


def test_since() -> None:
    now_ns = 10**18
    assert parse_since("last", now_ns).untrained_only
    assert parse_since("500ms", now_ns).from_ns == now_ns - 5 * 10**8
    assert parse_since("7d", now_ns).from_ns == now_ns - 7 * 86400 * 10**9
    assert parse_since("2001-09-09T01:46:40", now_ns).from_ns == 10**18
    assert parse_since("2001-09-09T03:46:40+02:00", now_ns).from_ns == 10**18
    with pytest.raises(SettingsError, match="bad since 'yesterday'"):
        parse_since("yesterday", now_ns)
    with pytest.raises(SettingsError, match="bad since 'yesterday'"):
        DataConfig(since="yesterday")


def test_times_keep_their_nanoseconds() -> None:
    assert iso_time(10**18 + 7) == "2001-09-09T01:46:40.000000007Z"
