"""Rules over a real collector, again: who is judged, what is written, replaced and withdrawn, and what is not."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from recorded_rollout import Recorder
from reward_collector import apply, given, scores, written

import reward
from tracegrad import otlp
from tracegrad.delivered import wait_until_delivered
from tracegrad.errors import UnreachableError
from tracegrad.settings import Settings

SECOND = 1_000_000_000
ONE_RULE = "[rules.answer_truncated]\nweight = -0.5\n"


async def test_running_again_writes_nothing_and_changed_weights_what_changed(
    settings: Settings, recorder: Recorder, rules: Any
) -> None:
    cut = recorder.call(FINISH_REASONS=["length"])
    recorder.send(cut, recorder.root_span())
    key = (cut.span_id.hex(), "rule.answer_truncated")

    assert (await apply(settings, recorder, rules(ONE_RULE), dry_run=True)).written == 1
    assert scores(settings, recorder) == {}
    assert (await apply(settings, recorder, rules(ONE_RULE))).written == 1
    assert (await apply(settings, recorder, rules(ONE_RULE))).written == 0
    assert written(settings, recorder) == 1

    heavier = rules(ONE_RULE.replace("0.5", "0.75"))
    assert (await apply(settings, recorder, heavier)).rules["rule.answer_truncated"].written == 1
    assert scores(settings, recorder) == {key: -0.75}
    assert written(settings, recorder) == 2

    # The same score by another version is on record, too.
    assert (
        await apply(settings, recorder, rules(f'[rules]\nversion = "2"\n{ONE_RULE.replace("0.5", "0.75")}'))
    ).written == 1
    assert scores(settings, recorder) == {key: -0.75}


async def test_what_no_longer_holds_is_withdrawn_and_can_come_back(
    settings: Settings, recorder: Recorder, rules: Any
) -> None:
    cut = recorder.call(FINISH_REASONS=["length"])
    recorder.send(cut, recorder.root_span())
    reward.emit("rule.by_hand", 0.25, rollout_id=recorder.rollout_id, endpoint=settings.otlp)
    key = (cut.span_id.hex(), "rule.answer_truncated")
    await apply(settings, recorder, rules(ONE_RULE))

    gone = await apply(settings, recorder, rules("[rules]"))
    assert gone.as_json()["rules"] == {"rule.answer_truncated": {"times": 0, "sum": 0.0, "written": 0, "withdrawn": 1}}
    found = given(settings, recorder.rollout_id)
    assert (found[key]["score"], found[key]["label"]) == (0.0, "withdrawn")
    assert found[key]["explanation"] == "there is no rule answer_truncated any more; it was -0.5 before"
    assert found[recorder.root.span_id.hex(), "rule.by_hand"]["score"] == 0.25
    assert (await apply(settings, recorder, rules("[rules]"))).written == 0

    await apply(settings, recorder, rules(ONE_RULE))
    assert scores(settings, recorder)[key] == -0.5
    await apply(settings, recorder, rules(ONE_RULE + 'agents = ["nobody"]'))
    found = given(settings, recorder.rollout_id)
    assert (found[key]["score"], found[key]["label"]) == (0.0, "withdrawn")
    assert found[key]["explanation"] == "nothing of it is found any more; it was -0.5 before"


async def test_what_is_written_is_newer_than_what_it_follows_whoevers_clock_that_was_by(
    settings: Settings, recorder: Recorder, rules: Any
) -> None:
    cut = recorder.call(FINISH_REASONS=["length"])
    context = otlp.SpanContext(cut.trace_id, cut.span_id)
    ahead = recorder.reward(-9.0, time.time_ns() + 3600 * SECOND, "rule.answer_truncated", context)
    recorder.send(cut, recorder.root_span())
    recorder.send(ahead, service="tracegrad.reward.rules")
    await apply(settings, recorder, rules(ONE_RULE))
    assert scores(settings, recorder) == {(cut.span_id.hex(), "rule.answer_truncated"): -0.5}
    assert (await apply(settings, recorder, rules(ONE_RULE))).written == 0


async def test_late_spans_are_found_by_the_next_run(settings: Settings, recorder: Recorder, rules: Any) -> None:
    recorder.send(recorder.root_span())
    assert (await apply(settings, recorder, rules(ONE_RULE))).written == 0
    late = recorder.call(FINISH_REASONS=["length"])
    recorder.send(late, late)  # delivered twice
    assert (await apply(settings, recorder, rules(ONE_RULE))).written == 1
    assert scores(settings, recorder) == {(late.span_id.hex(), "rule.answer_truncated"): -0.5}


async def test_who_is_judged(settings: Settings, recorder: Recorder, rules: Any) -> None:
    """What runs, what was interrupted, and what nobody has rewarded and no root span ends, gets nothing."""
    recorder.send(recorder.call(FINISH_REASONS=["length"]))
    running = await apply(settings, recorder, rules(ONE_RULE))
    assert running.as_json()["skipped"] == {"not_the_policys_fault": 0, "unfinished": 1}
    assert running.written == 0

    reward.emit("exact", 1.0, rollout_id=recorder.rollout_id, endpoint=settings.otlp)
    assert (await apply(settings, recorder, rules(ONE_RULE), quiet_s=3600.0)).unfinished == 1
    slow = rules(f"{ONE_RULE}[rules.latency]\nweight = -1\n")
    assert (await apply(settings, recorder, slow)).written == 2
    (seconds,) = [
        row for (span_id, name), row in given(settings, recorder.rollout_id).items() if name == "rule.latency"
    ]
    assert seconds["span_id"] == ""

    # Once the root span is there, what was said of the rollout as a whole is said of it.
    root = recorder.root_span()
    root.end_time_unix_nano = recorder.start + 2 * SECOND
    recorder.send(root)
    assert (await apply(settings, recorder, slow)).rules["rule.latency"].written == 1
    assert scores(settings, recorder)[recorder.root.span_id.hex(), "rule.latency"] == pytest.approx(-2.0)
    assert (await apply(settings, recorder, slow)).written == 0

    other = Recorder(recorder.collector, start=recorder.start)
    other.send(other.call(FINISH_REASONS=["length"]), other.root_span("failed", ERROR_TYPE="interrupted"))
    assert (await apply(settings, other, rules(ONE_RULE))).as_json()["skipped"]["not_the_policys_fault"] == 1


async def test_nothing_is_lost_where_nobody_takes_it(
    settings: Settings, recorder: Recorder, rules: Any, free_port: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reward.sending.STORE_TIMEOUT_S", 1.0)
    recorder.send(recorder.call(FINISH_REASONS=["length"]), recorder.root_span())
    assert await wait_until_delivered(settings)
    deaf = settings.model_copy(update={"otlp": f"http://127.0.0.1:{free_port()}"})
    with pytest.raises(UnreachableError, match=f"the collector at {deaf.otlp} did not take all rewards"):
        await apply(deaf, recorder, rules(ONE_RULE))
    absent = settings.model_copy(update={"clickhouse": deaf.otlp})
    with pytest.raises(UnreachableError, match="no store at"):
        await apply(absent, recorder, rules(ONE_RULE))
    assert (await apply(settings, recorder, rules(ONE_RULE))).written == 1


async def test_the_command(settings: Settings, recorder: Recorder, tmp_path: Path) -> None:
    recorder.send(recorder.call(FINISH_REASONS=["length"]), recorder.root_span())
    assert await wait_until_delivered(settings)
    file = tmp_path / "rules.toml"
    file.write_text(ONE_RULE)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tracegrad", "reward", *arguments],
            cwd=tmp_path,
            env=os.environ | {"TRACEGRAD_OTLP": settings.otlp, "TRACEGRAD_CLICKHOUSE": settings.clickhouse},
            capture_output=True,
            text=True,
            check=False,
        )

    only = ("rules", str(file), "--rollout", recorder.rollout_id)
    dry = run(*only, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert dry.stdout.splitlines() == [
        "RULE                   TIMES  SUM   TO WRITE  WITHDRAWN",
        "rule.answer_truncated  1      -0.5  1         0",
        "1 rollouts judged, 1 rewards would be written",
    ]
    assert json.loads(run(*only, "--since", "1d", "--json").stdout)["written"] == 1
    assert run(*only).stdout.splitlines()[-1] == "1 rollouts judged, 0 rewards written"
    assert run(*only, "--since", "2100-01-01").stdout.splitlines()[-1] == "0 rollouts judged, 0 rewards written"

    file.write_text("[rules.tool_faild]\nweight = 1")
    for arguments, words in (
        (only, "did you mean tool_failed?"),
        (("rules", "absent.toml"), "no rules at absent.toml"),
    ):
        bad = run(*arguments)
        assert (bad.returncode, bad.stdout) == (2, "")
        (line,) = bad.stderr.splitlines()
        assert words in line
    file.write_text(ONE_RULE)
    assert "bad --since 'last'" in run(*only, "--since", "last").stderr
