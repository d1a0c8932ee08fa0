"""`tracegrad bench transitions`: what it makes is what it says, and a small run finds all that was promised."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from tracegrad.bench.transitions_beside import row_by_row, stored_columns
from tracegrad.bench.transitions_reader import Order, carry_out
from tracegrad.bench.transitions_store import POLICY, Filled
from tracegrad.settings import Settings
from trainer.backlog import Sought
from trainer.rollout import Rollout
from trainer.since import LATEST_NS, Since
from trainer.store import Store

PROMISED = {
    *("tokens_per_s_per_core", "tokens_per_s", "growth_10x", "growth_10x_by_the_clock", "peak_rss", "peak_rss_growth"),
    *("trained_tokens_per_s_per_core", "transitions_per_s_per_core", "tokens_per_s_two_cores", "plan_s"),
    *("whole_prompts_tokens_per_s_per_core", "ratio_to_rows", "columns_limit_ratio", "stored_bytes_per_token"),
}
"""Names that other programs rely on."""
ROLLOUTS = 16


def nothing_said(_: str) -> None:
    """Nobody watches."""


@pytest.fixture(scope="module", params=[False, True], ids=["what is new", "whole prompts"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store of the bench's, as an address."""
    place = tmp_path_factory.mktemp("bench")
    filled = Filled("few", ROLLOUTS, whole=request.param)
    filled.fill(place, (), Settings(), nothing_said)
    with filled.served(place, (), Settings()) as tested:
        yield f"http://127.0.0.1:{tested.sql_port}"


@pytest.fixture
def rollouts(served: str) -> list[Rollout]:
    store = Store(served)
    found = store.filled(store.untrained(Sought(POLICY, Since(0, untrained_only=True), LATEST_NS)))
    store.close()
    return found


def test_made_up_rollouts_are_what_figures_are_given_for(rollouts: list[Rollout]) -> None:
    assert Counter(rollout.group for rollout in rollouts) == {"task task-0": 8, "task task-1": 8}
    assert {rollout.reward for rollout in rollouts} == {0, 1}
    for rollout in rollouts:
        calls = sorted(rollout.calls, key=lambda call: call.started_ns)
        assert len(calls) == 10
        assert {(call.agent, call.policy_version, call.trainable) for call in calls} == {("analyst", 0, True)}
        sizes = [(len(call.prompt_token_ids), len(call.response_token_ids), len(call.logprobs)) for call in calls]
        assert sizes == [(755 + 250 * turn, 120, 120) for turn in range(10)]
        assert sum(prompt + response for prompt, response, _ in sizes) == 20_000
        for call, following in pairwise(calls):
            whole = [*call.prompt_token_ids, *call.response_token_ids]
            assert following.prompt_token_ids[: len(whole)].tolist() == whole
        assert all((call.logprobs <= 0).all() for call in calls)
        asked = [identifier for call in calls[:9] for identifier in call.tool_call_ids]
        tools = {span.tool_call_id: span for span in rollout.spans if span.is_tool}
        assert len(rollout.spans) == 21
        assert set(asked) == set(tools)
        assert len(tools) == 9


def test_rollouts_of_a_task_begin_alike_and_go_on_differently(rollouts: list[Rollout]) -> None:
    firsts = {rollout.key: min(rollout.calls, key=lambda call: call.started_ns) for rollout in rollouts}
    assert len({(rollout.group, firsts[rollout.key].prompt_token_ids.tobytes()) for rollout in rollouts}) == 2
    assert len({first.response_token_ids.tobytes() for first in firsts.values()}) == ROLLOUTS


def test_all_ways_read_the_same_calls(served: str, rollouts: list[Rollout]) -> None:
    ids = [rollout.rollout_id for rollout in rollouts]
    assert row_by_row(served, ids) == stored_columns(served, ids) == (10 * ROLLOUTS, 20_000 * ROLLOUTS)


def test_a_job_reads_every_batch_and_trains_each_response_once(served: str, tmp_path: Path) -> None:
    read = carry_out(asdict(Order("job", served, POLICY, 8, str(tmp_path))))
    assert (read["rollouts"], read["transitions"], read["batches"]) == (ROLLOUTS, 10 * ROLLOUTS, 2)
    assert read["tokens"] == 20_000 * ROLLOUTS
    assert read["trained"] == 1_200 * ROLLOUTS
    assert read["packed"] == ROLLOUTS * (3_005 + 120), "one row for each rollout, shared tokens once"
    assert 0 < read["plan_s"] < read["seconds"]


def test_a_small_run_finds_all_that_was_promised(tmp_path: Path) -> None:
    """It takes some seconds, as it starts seven collectors."""
    done = subprocess.run(
        [sys.executable, "-m", "tracegrad", "bench", "transitions", "--quick", "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) >= PROMISED
    assert {name for name in PROMISED if not (found[name] or 0) > 0} == set()
    assert "less than 1,000 rollouts" in done.stderr
