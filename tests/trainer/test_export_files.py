"""Files for others: Parquet has the listing's types and values, verl loads its batch and computes our numbers."""

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tracegrad.errors import InputError
from trainer import export_parquet
from trainer.advantage import Measured, Options, advantages, estimator_named
from trainer.chat_messages import chat_messages, chat_tools
from trainer.export_parquet import write_parquet
from trainer.export_verl import write_verl
from trainer.finished_file import finished_file

MADE = {"tracegrad.credit.scheme": "hierarchical", "tracegrad.credit.gamma": "1.0"}


def lines(n_tasks: int = 3, n: int = 4, seed: int = 0, estimator: str = "grpo") -> list[dict[str, Any]]:
    """Rollouts of one call each, with random tokens and rewards, and the advantages that we give them."""
    chance = random.Random(seed)
    found: list[dict[str, Any]] = []
    for task in range(n_tasks):
        for place in range(n):
            n_prompt, n_response = chance.randint(1, 9), chance.randint(1, 7)
            line = {
                "rollout_id": f"r{task}-{place}",
                "attempt": 0,
                "task_id": f"t{task}",
                "agent": "" if place % 2 else "writer",
                "trace_id": f"{task:032x}",
                "span_id": f"{len(found):016x}",
                "index": 0,
                "prompt_token_ids": np.array([chance.randint(1, 2**32 - 1) for _ in range(n_prompt)], np.int64),
                "response_token_ids": np.array([chance.randint(1, 150_000) for _ in range(n_response)], np.int64),
                "logprobs": np.array([-chance.random() for _ in range(n_response)], np.float32),
                "reward": 0.0,
                "credit": chance.random(),
                "advantage": None,
                "next_span_id": None,
                "next_prompt_token_ids": None if place else np.array([1, 2], np.int64),
                "terminal": True,
                "policy": "policy",
                "policy_version": None if place == 1 else 2**63,
                "started_at": f"2026-01-31T12:00:0{place}.123456789Z",
                "used": True,
                "drop_reason": None,
            }
            found.append(line)
    measured = [
        Measured(
            group=line["task_id"],
            credits=np.array([line["credit"]]),
            ret=line["credit"],
            states=(b"",),
            n_tokens=np.array([len(line["response_token_ids"])]),
            values=None,
        )
        for line in found
    ]
    per_call = advantages(measured, estimator_named(estimator), Options()).per_call
    for line, (of_call,) in zip(found, per_call, strict=True):
        line["advantage"] = float(np.mean(of_call))
    return found


def plain(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in line.items()}


@pytest.mark.parametrize("rows_a_group", [1, 5, 65_536])
def test_parquet_has_what_was_listed(rows_a_group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_parquet, "GROUP_ROWS", rows_a_group)
    path, told = tmp_path / "t.parquet", lines()
    assert write_parquet(iter(told), path, MADE) == 12
    file = pq.ParquetFile(path)
    assert file.num_row_groups == -(-12 // rows_a_group)
    assert {key.decode(): value.decode() for key, value in file.schema_arrow.metadata.items()} == MADE
    table = file.read()
    assert table.column_names == list(told[0])
    types = {field.name: str(field.type) for field in table.schema}
    assert types["prompt_token_ids"] == "list<element: uint32 not null>"
    assert types["logprobs"] == "list<element: float not null>"
    assert types["started_at"] == "timestamp[ns, tz=UTC]"
    assert [field.name for field in table.schema if field.nullable] == [
        "advantage", "next_span_id", "next_prompt_token_ids", "policy_version", "drop_reason",
    ]  # fmt: skip
    nanoseconds = table.column("started_at").cast("int64").to_pylist()
    assert nanoseconds[:2] == [1769860800_123_456_789, 1769860801_123_456_789]
    without_time = [{name: value for name, value in plain(line).items() if name != "started_at"} for line in told]
    assert table.drop_columns(["started_at"]).to_pylist() == without_time


def test_parquet_without_rows_has_its_columns(tmp_path: Path) -> None:
    assert write_parquet([], tmp_path / "t.parquet", MADE) == 0
    assert pq.read_table(tmp_path / "t.parquet").column_names == list(lines()[0])


@pytest.mark.parametrize(
    ("ours", "verls", "normalised"),
    [
        ("grpo", "grpo", True),
        ("dr_grpo", "grpo", False),
        ("rloo", "rloo", True),
        ("reinforce_plus_plus", "reinforce_plus_plus", True),
        ("reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline", True),
    ],
)
def test_verl_computes_our_advantages(ours: str, verls: str, normalised: bool, tmp_path: Path) -> None:
    import torch
    from verl import DataProto
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.ray_trainer import compute_advantage

    path = tmp_path / "batch.verl"
    assert write_verl(lines(estimator=ours, seed=7), path, MADE) == 12
    batch = DataProto.load_from_disk(path)
    batch.check_consistency()
    own = batch.batch["advantages"].clone()
    assert own.abs().sum() > 1
    del batch.batch["advantages"], batch.batch["returns"]
    measured = compute_advantage(
        batch, AdvantageEstimator(verls), norm_adv_by_std_in_grpo=normalised, config=AlgoConfig(gamma=1.0)
    )
    mask = batch.batch["response_mask"].bool()
    torch.testing.assert_close(measured.batch["advantages"][mask], own[mask], atol=1e-5, rtol=1e-5)
    assert not own[~mask].any()


def test_verls_batch_is_laid_out_as_its_rollouts_are(tmp_path: Path) -> None:
    import torch
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_response_mask
    from verl.trainer.ppo.reward import extract_reward

    told = lines()
    for line in told:
        line["prompt_token_ids"] %= 150_000
    dropped = told[3] | {"used": False, "drop_reason": "too_long"}
    assert write_verl([*told[:3], dropped, *told[4:]], tmp_path / "batch.verl", MADE) == 11
    batch = DataProto.load_from_disk(tmp_path / "batch.verl")
    kept = [line for line in told if line["span_id"] != dropped["span_id"]]
    assert [*batch.non_tensor_batch["span_id"]] == [line["span_id"] for line in kept]
    assert [*batch.non_tensor_batch["uid"]] == [f"task {line['task_id']}" for line in kept]
    assert batch.meta_info["tracegrad.credit.scheme"] == "hierarchical"
    tensors = batch.batch
    n_prompt = tensors["prompts"].shape[1]
    assert torch.equal(tensors["input_ids"], torch.cat([tensors["prompts"], tensors["responses"]], dim=1))
    assert torch.equal(tensors["response_mask"], compute_response_mask(batch))
    scores, _ = extract_reward(batch)
    for row, line in enumerate(kept):
        n, r = len(line["prompt_token_ids"]), len(line["response_token_ids"])
        attended = tensors["attention_mask"][row].bool()
        ids = tensors["input_ids"][row][attended].tolist()
        assert ids == [*line["prompt_token_ids"], *line["response_token_ids"]]
        assert attended[n_prompt - n : n_prompt + r].all()  # padded left of the prompt, right of the response
        assert tensors["position_ids"][row][attended].tolist() == list(range(n + r))
        assert tensors["rollout_log_probs"][row, :r].tolist() == line["logprobs"].tolist()
        assert scores[row].nonzero().flatten().tolist() == [r - 1]
        assert scores[row, r - 1].item() == pytest.approx(line["credit"])
        assert tensors["advantages"][row, :r].tolist() == pytest.approx([line["advantage"]] * r)


def test_verls_policy_loss_on_the_batch_is_ours(tmp_path: Path) -> None:
    """At the policy that sampled, the ratio is 1: the loss is minus the mean advantage of the tokens, its slope too."""
    from verl import DataProto
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.workers.config import FSDPActorConfig

    told = lines(seed=3)
    write_verl(told, tmp_path / "batch.verl", MADE)
    tensors = DataProto.load_from_disk(tmp_path / "batch.verl").batch
    log_prob = tensors["old_log_probs"].clone().requires_grad_()
    config = FSDPActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, use_torch_compile=False)
    loss, _ = compute_policy_loss_vanilla(
        tensors["old_log_probs"], log_prob, tensors["advantages"], tensors["response_mask"], "token-mean", config
    )
    loss.backward()
    each = np.concatenate([[line["advantage"]] * len(line["response_token_ids"]) for line in told])
    assert loss.item() == pytest.approx(-each.mean(), abs=1e-6)
    mask = tensors["response_mask"].bool()
    assert log_prob.grad is not None
    np.testing.assert_allclose(log_prob.grad[mask].numpy(), -each / len(each), atol=1e-6)
    assert not log_prob.grad[~mask].any()


def test_verl_needs_something_that_is_used_of_one_policy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no transition is used"):
        write_verl([line | {"used": False} for line in lines()], tmp_path / "a", MADE)
    first, *rest = lines()
    with pytest.raises(InputError, match="these are of other, policy: choose with --policy"):
        write_verl([first | {"policy": "other"}, *rest], tmp_path / "a", MADE)
    with pytest.raises(InputError, match=r"1 of 4 used transitions have no advantage .* Give that job with --job"):
        write_verl([first | {"advantage": None}, *lines()[1:4]], tmp_path / "c", MADE)
    write_verl([line | {"advantage": None} for line in rest], tmp_path / "b", MADE)
    from verl import DataProto

    assert "advantages" not in DataProto.load_from_disk(tmp_path / "b").batch


def test_a_file_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(RuntimeError), finished_file(path, force=False) as draft:
        draft.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with finished_file(path, force=False) as draft:
        draft.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    with pytest.raises(InputError, match="exists: give another --out, or --force"), finished_file(path, force=False):
        pass
    with pytest.raises(RuntimeError), finished_file(path, force=True) as draft:
        draft.write_text("half")
        raise RuntimeError
    assert path.read_text() == "whole"
    with finished_file(path, force=True) as draft:
        draft.write_text("new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    file, link, pipe = (tmp_path / name for name in ("file", "link", "pipe"))
    link.symlink_to(file)
    with finished_file(link, force=False) as draft:
        draft.write_text("through the link")
    assert (link.is_symlink(), file.read_text()) == (True, "through the link")
    with pytest.raises(InputError, match="exists: give another"), finished_file(link, force=False):
        pass
    os.mkfifo(pipe)
    for special in (pipe, Path("/dev/null")):
        with pytest.raises(InputError, match="is a device or a pipe"), finished_file(special, force=True):
            pass
    assert pipe.is_fifo()
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("out", ["missing/out", "."])
def test_where_no_file_can_be(out: str, tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"cannot be written|is a directory"),
        finished_file(tmp_path / out, force=True),
    ):
        pass


def test_chat_messages() -> None:
    call = {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"at": "sky"}}
    told = chat_messages(
        [
            {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
            {
                "role": "user",
                "parts": [{"type": "text", "content": "See?"}, {"type": "uri", "modality": "image", "uri": "u"}],
            },
            {
                "role": "assistant",
                "parts": [{"type": "reasoning", "content": "Hm."}, call],
                "finish_reason": "tool_calls",
            },
            {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": {"colour": "blue"}}]},
            {"role": "assistant", "parts": [{"type": "refusal", "content": "No."}]},
        ]
    )
    function = {"name": "look", "arguments": '{"at":"sky"}'}
    assert told == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "See?"}, {"type": "image_url", "image_url": {"url": "u"}}],
        },
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"colour":"blue"}'},
        {"role": "assistant", "content": "", "refusal": "No."},
    ]
    json.dumps(told)
    assert chat_tools([{"type": "function", "name": "look", "parameters": {}}, {"type": "web_search"}]) == [
        {"type": "function", "function": {"name": "look", "parameters": {}}}
    ]
