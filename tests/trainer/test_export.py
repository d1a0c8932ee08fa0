"""`tracegrad export` from a real store: the listing's lines in every format, and conversations of every call."""

import asyncio
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result
from recorded_agents import Collector, RecordedAgents
from typer.testing import CliRunner

from tracegrad import names, otlp
from tracegrad.cli import app
from tracegrad.errors import TracegradError

Run = Callable[..., Result]
USER = {"role": "user", "parts": [{"type": "text", "content": "What colour?"}]}
TOOLS = json.dumps([{"type": "function", "name": "look", "parameters": {"type": "object"}}])
ANSWER = [{"role": "assistant", "parts": [{"type": "text", "content": "Blue."}], "finish_reason": "stop"}]
SAID = {names.INPUT_MESSAGES: json.dumps([USER]), names.OUTPUT_MESSAGES: json.dumps(ANSWER)}


@pytest.fixture
def run(collector: Collector) -> Run:
    """Runs `tracegrad` on this store."""
    environment = {"TRACEGRAD_OTLP": collector.otlp, "TRACEGRAD_CLICKHOUSE": collector.clickhouse}
    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)], env=environment)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_jsonl_and_parquet_are_the_listing(agents: RecordedAgents, run: Run, tmp_path: Path) -> None:
    with agents.together():
        agents.pair("one")
        agents.run("one", None, finished=False)
    chosen = ("--policy", agents.policy, "--credit", "discounted", "--gamma", "0.5")
    listed = run("transitions", "--json", *chosen)
    assert len(listed.stdout.splitlines()) == 6
    told = run("export", "--format", "jsonl", "--out", tmp_path / "t.jsonl", "--json", *chosen)
    assert json.loads(told.stdout) == {"out": str(tmp_path / "t.jsonl"), "format": "jsonl", "written": 6}
    assert (tmp_path / "t.jsonl").read_text() == listed.stdout
    told = run("export", "--format", "parquet", "--out", tmp_path / "t.parquet", *chosen)
    assert told.stdout == f"wrote 6 transitions to {tmp_path / 't.parquet'}\n", told.output
    table = pq.read_table(tmp_path / "t.parquet")
    expected = lines_of(tmp_path / "t.jsonl")
    for name in ("span_id", "credit", "advantage", "prompt_token_ids", "used", "drop_reason"):
        assert table.column(name).to_pylist() == [line[name] for line in expected]
    made = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    assert (made["tracegrad.credit.scheme"], made["tracegrad.credit.gamma"]) == ("discounted", "0.5")
    assert made["tracegrad.advantage.estimator"] == "grpo"


def test_verl_has_what_is_used(agents: RecordedAgents, run: Run, tmp_path: Path) -> None:
    with agents.together():
        agents.pair("one")
        agents.run("alone", 1.0)
    done = run("export", "--format", "verl", "--out", tmp_path / "b.verl", "--policy", agents.policy)
    assert done.stdout == f"wrote 4 transitions to {tmp_path / 'b.verl'}\n", done.output
    from verl import DataProto

    batch = DataProto.load_from_disk(tmp_path / "b.verl")
    assert set(batch.non_tensor_batch["uid"]) == {f"task {agents.policy}.one"}
    assert sorted(batch.batch["advantages"][:, 0].tolist()) == pytest.approx([-0.7071] * 2 + [0.7071] * 2, abs=1e-4)


@pytest.mark.parametrize("algorithm", ['name = "reinforce_plus_plus"\ngamma = 0.9', 'name = "by_token:measure"'])
def test_verl_is_given_no_mean_of_advantages_of_tokens(
    algorithm: str, agents: RecordedAgents, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.pair("one")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "by_token.py").write_text(
        "import numpy as np\n"
        "def measure(rollouts, options):\n"
        "    return [[rollout.ret - np.arange(n) for n in rollout.n_tokens] for rollout in rollouts]\n"
    )
    job, out = tmp_path / "train.toml", tmp_path / "b.verl"
    job.write_text(f'[data]\npolicy = "{agents.policy}"\n[engine]\nmodel = "m"\n[algorithm]\n{algorithm}\n')
    done = run("export", "--format", "verl", "--out", out, "--job", job)
    assert isinstance(done.exception, TracegradError)
    assert "differ from token to token" in str(done.exception)
    assert not out.exists()
    done = run("export", "--format", "verl", "--out", out, "--job", job, "--no-advantage")
    assert done.stdout == f"wrote 4 transitions to {out}\n", done.output
    assert run("export", "--format", "jsonl", "--out", tmp_path / "t.jsonl", "--job", job).exit_code == 0


def test_nothing_is_overwritten_unless_it_is_asked_for(agents: RecordedAgents, run: Run, tmp_path: Path) -> None:
    agents.pair("one")
    path = tmp_path / "t.jsonl"
    path.write_text("mine")
    command = ("export", "--format", "jsonl", "--out", path, "--policy", agents.policy)
    done = run(*command)
    assert (done.exit_code, path.read_text()) == (1, "mine")
    assert isinstance(done.exception, TracegradError)
    assert "--force to replace it" in str(done.exception)
    assert run(*command, "--force").exit_code == 0
    assert len(lines_of(path)) == 4


def test_conversations_of_calls_and_of_imported_ones(agents: RecordedAgents, run: Run, tmp_path: Path) -> None:
    task = f"{agents.policy}.talk"
    mine = agents.run("talk", 0.5, n_calls=1, **SAID, **{names.TOOL_DEFINITIONS: TOOLS})
    agents.run("talk", 1.0, n_calls=1, **SAID, **{names.ERROR_TYPE: "500"})
    agents.run("talk", 1.0, n_calls=1)  # nothing was recorded of what was said
    attributes = {"gen_ai.operation.name": "chat", "input": "Hi", "output": "Ho", "model": agents.policy}
    foreign = tmp_path / "foreign.json"
    foreign.write_text(json.dumps(attributes))
    assert run("import", foreign, "--task", task, "--rollout", f"{agents.policy}-x").exit_code == 0
    done = run("export", "--format", "jsonl", "--messages", "--task", task, "--out", tmp_path / "sft.jsonl")
    assert done.stdout.startswith("wrote 2 conversations"), done.output
    assert "1 calls left out, of which no question or no answer was recorded" in done.stdout
    by_rollout = {line["rollout_id"]: line for line in lines_of(tmp_path / "sft.jsonl")}
    assert by_rollout[mine]["messages"] == [
        {"role": "user", "content": "What colour?"},
        {"role": "assistant", "content": "Blue."},
    ]
    assert by_rollout[mine]["tools"] == [
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    ]
    assert (by_rollout[mine]["reward"], by_rollout[mine]["policy"]) == (0.5, agents.policy)
    imported = by_rollout[f"{agents.policy}-x"]
    assert imported["messages"] == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    assert (imported["reward"], imported["policy"]) == (None, "")
    assert "tools" not in imported


def test_tools_of_calls_that_extend_others(collector: Collector, run: Run, tmp_path: Path) -> None:
    """A call with the tools of the one before only says so; where choices have a span each, their call's span tells."""
    rollout, trace = f"r-{secrets.token_hex(4)}", secrets.token_bytes(16)
    first, second, choice, without = (otlp.SpanContext.new(trace) for _ in range(4))
    again = {names.EXTENDS_SPAN_ID: first.span_id.hex(), names.EXTENDS_TOOLS: True}
    own: list[tuple[otlp.SpanContext, bytes, dict[str, otlp.Value]]] = [
        (first, b"", {**SAID, names.TRAINABLE: False, names.TOOL_DEFINITIONS: TOOLS}),
        (second, b"", again),  # no choice itself
        (choice, second.span_id, {**SAID, names.TRAINABLE: False}),
        (without, b"", {**SAID, names.TRAINABLE: False}),
    ]
    spans = [
        otlp.span(
            "chat", context, parent_span_id=parent, start_ns=at, end_ns=at, values={names.ROLLOUT_ID: rollout} | values
        )
        for at, (context, parent, values) in enumerate(own, time.time_ns())
    ]

    async def send() -> None:
        async with otlp.OtlpSender(collector.otlp, "tracegrad.sidecar") as sender:
            assert all(sender.put(span) for span in spans)

    asyncio.run(send())
    done = run("export", "--format", "jsonl", "--messages", "--rollout", rollout, "--out", tmp_path / "sft.jsonl")
    assert done.exit_code == 0, done.output
    assert [(line["span_id"], len(line.get("tools", []))) for line in lines_of(tmp_path / "sft.jsonl")] == [
        (first.span_id.hex(), 1),
        (choice.span_id.hex(), 1),
        (without.span_id.hex(), 0),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--format", "parquet", "--messages"), "--messages goes with --format jsonl"),
        (("--format", "jsonl", "--messages", "--since", "last"), "--since last is about steps"),
        (("--format", "jsonl", "--credit", "none"), "none"),
    ],
)
def test_bad_usage(options: tuple[str, ...], said: str, run: Run, tmp_path: Path) -> None:
    done = run("export", *options, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_torch_or_verl_is_loaded_for_the_other_formats() -> None:
    """And nothing of pyarrow but for Parquet."""
    code = (
        "import sys, trainer.export, trainer.export_messages, trainer.export_parquet, tracegrad.cli;"
        "print([name for name in ('torch', 'verl', 'pyarrow.parquet') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
