"""Tables that training writes."""

import secrets
from datetime import UTC, datetime
from typing import Any

STEP = {"job": "job", "policy": "", "from_version": 0, "to_version": 1, "algorithm": "grpo", "config": "{}"}
SAMPLE = {"span_id": "", "trace_id": "t", "rollout_id": "r", "attempt": 0, "agent": "", "reward": 1.0}


def test_tables_of_training_take_rows_and_replace_equal_ones(collector: Any) -> None:
    step, client = secrets.token_hex(4), collector.client()
    policy = f"policy-{step}"
    now = datetime.now(UTC)
    for sha256 in ("old", "new"):
        client.insert(
            "policies",
            [[policy, 1, sha256, "/w/1/model.safetensors", 0, step], [policy, 0, "base", "/w/0", None, ""]],
            column_names=["name", "version", "sha256", "path", "parent_version", "step_id"],
        )
    versions = client.query(
        "SELECT version, sha256, parent_version FROM policies FINAL WHERE name = {name:String} ORDER BY version",
        parameters={"name": policy},
    )
    assert versions.result_rows == [(0, "base", None), (1, "new", 0)]
    recorded = STEP | {"step_id": step, "metrics": '{"loss":0.5}', "started_at": now, "ended_at": now}
    used = SAMPLE | {
        "step_id": step,
        "span_id": "s1",
        "advantage": 0.57,
        "n_tokens": 30,
        "used": True,
        "drop_reason": "",
    }
    dropped = used | {"span_id": "s2", "reward": None, "advantage": None, "used": False, "drop_reason": "no_token_ids"}
    for _ in range(2):
        client.insert("train_steps", [list(recorded.values())], column_names=list(recorded))
        client.insert("train_samples", [list(used.values()), list(dropped.values())], column_names=list(used))
    lineage = client.query(
        "SELECT span_id, advantage, used, to_version, JSONExtractFloat(metrics, 'loss') AS loss "
        "FROM train_samples FINAL INNER JOIN train_steps FINAL USING step_id "
        "WHERE step_id = {step:String} ORDER BY span_id",
        parameters={"step": step},
    )
    assert lineage.result_rows == [("s1", 0.57, True, 1, 0.5), ("s2", None, False, 1, 0.5)]
    client.close()
