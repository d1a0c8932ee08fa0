"""A job merges what continues, and its step records what did not, and why."""

import json
import logging

import pytest
from training_world import World, changed

from tracegrad import names
from tracegrad.errors import SettingsError

O1, A1, O2, A2, O3, A3 = [1, 2], [3], [4, 5], [6, 7], [8], [9]


def message(role: str, text: str) -> dict[str, object]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


ASKED = [[message("user", "a")], [message("user", "a"), message("assistant", "b"), message("user", "c")]]
CALLS = {
    names.PROMPT_TOKEN_IDS: [json.dumps(ids) for ids in (O1, O1 + A1 + O2, O3)],
    names.RESPONSE_TOKEN_IDS: [json.dumps(ids) for ids in (A1, A2, A3)],
    names.RESPONSE_LOGPROBS: [json.dumps([-0.5] * len(ids)) for ids in (A1, A2, A3)],
    names.INPUT_MESSAGES: [json.dumps(asked) for asked in (*ASKED, [message("user", "shorter")])],
    names.OUTPUT_MESSAGES: [json.dumps([message("assistant", text)]) for text in "bde"],
}


def test_worked_example_5_in_a_job(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with world.agents.together(), caplog.at_level(logging.INFO):
        for reward in (1.0, 0.0):
            world.agents.run("one", reward, n_calls=3, **CALLS)
    with caplog.at_level(logging.INFO, "trainer"):
        (step,) = world.train()
    assert world.learners.seen == [O1 + A1 + O2 + A2, O3 + A3] * 2
    metrics = step.metrics
    assert (metrics["merge_pairs"], metrics["merge_rate"], metrics["merge_break_rewritten"]) == (4, 0.5, 2)
    assert (metrics["n_rows"], metrics["row_tokens"], metrics["tokens"]) == (4, 18, 8)
    assert metrics["merge_saved_share"] == pytest.approx(1 - 9 / 12)
    (recorded,) = world.sql("SELECT metrics FROM train_steps FINAL WHERE policy = {p:String}", p=world.agents.policy)
    assert json.loads(recorded["metrics"])["merge_rate"] == 0.5
    (told,) = [line.message for line in caplog.records if line.message.startswith("calls do not merge")]
    assert "class=rewritten" in told
    assert "message 0 of the history, from user, is another" in told
    assert [row["used"] for row in world.samples()] == [1] * 6


def test_a_job_that_does_not_merge(world: World) -> None:
    with world.agents.together():
        for reward in (1.0, 0.0):
            world.agents.run("one", reward, n_calls=3, **CALLS)
    (step,) = world.train(changed(world.config, "engine", merge_prefixes=False))
    assert world.learners.seen == [O1 + A1, O1 + A1 + O2 + A2, O3 + A3] * 2
    assert (step.metrics["n_rows"], step.metrics["merge_pairs"], step.metrics["merge_saved_share"]) == (6, 0, 0)


def test_merging_what_a_loss_takes_for_sequences_is_refused_before_anything_is_trained(world: World) -> None:
    with world.agents.together():
        world.agents.pair("one")
    asked = changed(world.config, "engine", merge_prefixes=True)
    with pytest.raises(SettingsError, match='aggregation = "seq-mean-token-sum" looks at whole sequences'):
        world.train(changed(asked, "algorithm", aggregation="seq-mean-token-sum"))
    assert world.samples() == []
