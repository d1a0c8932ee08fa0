"""The main job on real parts: an untouched agent runs, is captured to the token, is scored, trained, and serves better.

The tests run in order on one road, as a user would go it.
"""

import itertools
import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import reward
from tracegrad.demo import tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test pays for warm start and vLLM

TWICE = [{"id": "sum", "question": "Find the sum of 31 and 14.", "answer": "45"}]


@pytest.fixture(scope="module")
def tokenizer(road: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(road.model)


@pytest.fixture(scope="module")
def two_runs(road: Any) -> list[dict[str, Any]]:
    """The calls of one question asked twice, each by an agent process of its own."""
    summary = road.roll_out(road.tasks("twice", TWICE), "--n", "2", "--workers", "2")
    assert summary["succeeded"] == 2
    calls: list[dict[str, Any]] = road.sql("SELECT * FROM llm_calls ORDER BY started_at")
    assert calls, "the agent called the model"
    return calls


def test_every_call_is_exact_and_its_ids_decode_to_what_the_client_received(
    road: Any, two_runs: list[dict[str, Any]], tokenizer: Any
) -> None:
    """The client's own record is the span that the agent's OpenAI instrumentation wrote, not the sidecar's."""
    for call in two_runs:
        assert call["trainable"], call["untrainable_reason"]
        assert len(call["response_token_ids"]) == len(call["logprobs"]) > 0
        (received,) = road.sql(
            f"""SELECT SpanAttributes['gen_ai.output.messages'] AS output,
                SpanAttributes['gen_ai.input.messages'] AS input
            FROM otel_traces WHERE TraceId = '{call["trace_id"]}'
            AND SpanAttributes['gen_ai.response.id'] = '{call["response_id"]}' AND ServiceName != 'tracegrad.sidecar'"""
        )
        said = tokenizer.decode(call["response_token_ids"])
        assert said == _as_model_text(json.loads(received["output"])[0])
        prompt = tokenizer.decode(call["prompt_token_ids"])
        assert prompt == "".join(map(_as_template_text, json.loads(received["input"]))) + "<|assistant|>"


def _as_model_text(message: dict[str, Any]) -> str:
    """A received message as the model must have said it: text, then calls in hermes form, then the end token."""
    text = ""
    for part in message["parts"]:
        if part["type"] == "tool_call":
            arguments = part["arguments"]
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            text += f'<tool_call>{{"name": "{part["name"]}", "arguments": {written}}}</tool_call>'
        else:
            text += part["content"]
    return text + "<|end|>"


def _as_template_text(message: dict[str, Any]) -> str:
    """A sent message as the chat template renders it."""
    if message["role"] == "tool":
        (part,) = message["parts"]
        return f"<|tool|>{part['response']}<|end|>"
    return f"<|{message['role']}|>{_as_model_text(message)}"


def test_one_run_is_one_trace_with_the_launchers_span_as_root(road: Any, two_runs: list[dict[str, Any]]) -> None:
    rollouts = road.sql("SELECT * FROM rollouts WHERE task_id = 'sum'")
    assert len(rollouts) == 2
    assert len({rollout["trace_id"] for rollout in rollouts}) == 2
    for rollout in rollouts:
        assert rollout["status"] == "succeeded"
        spans = road.sql(
            f"""SELECT SpanId, ParentSpanId, SpanName, ServiceName FROM otel_traces
            WHERE TraceId = '{rollout["trace_id"]}'"""
        )
        parents = {span["SpanId"]: span["ParentSpanId"] for span in spans}
        roots = [span for span in spans if not span["ParentSpanId"]]
        assert [(span["SpanName"], span["SpanId"]) for span in roots] == [("rollout", rollout["root_span_id"])]
        assert all(parent in parents for parent in parents.values() if parent), "no span has lost its parent"
        calls = [call for call in two_runs if call["trace_id"] == rollout["trace_id"]]
        assert len(calls) == rollout["n_calls"] > 0
        assert {call["rollout_id"] for call in calls} == {rollout["rollout_id"]}


def test_behaviour_logprobs_equal_the_trainers(road: Any, two_runs: list[dict[str, Any]]) -> None:
    """In fp32, on the weights that sampled: vLLM's log-probs against a plain forward of transformers."""
    for call in two_runs:
        assert call["policy_version"] == 0
        expected = _logprobs(road.model, call["prompt_token_ids"], call["response_token_ids"])
        np.testing.assert_allclose(call["logprobs"], expected, atol=1e-4)


def _logprobs(model: Path, prompt: list[int], response: list[int]) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    ids = torch.tensor([prompt + response])
    with torch.no_grad():
        logits = network(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    chosen = logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]
    return chosen.numpy()


@pytest.fixture(scope="module")
def job(road: Any) -> Path:
    file: Path = road.home / "train.toml"
    file.write_text(
        f"""
job = "test"
[data]
settle = "1s"
[algorithm]
epochs = 2
[engine]
model = "{road.model}"
lr = 1e-3
"""
    )
    return file


def test_training_without_anything_new_is_one_line_and_status_1(road: Any, two_runs: Any, job: Path) -> None:
    result = road.run("train", str(job))
    assert result.returncode == 1
    assert "reward" in result.stderr.splitlines()[-1]


def test_a_step_trains_publishes_and_records(road: Any, two_runs: Any, job: Path) -> None:
    import random

    source = tasks.stream(random.Random(3))
    rows = [
        {"id": f"t{index}", "question": task.question, "answer": task.answer}
        for index, task in zip(range(6), source, strict=False)
    ]
    file = road.tasks("train", rows)
    summary = road.roll_out(file, "--n", "6", "--workers", "6", "--warm")
    assert summary["succeeded"] == 36
    scored = road.json("reward", "--tasks", str(file), "--grader", "numeric")
    assert scored["rewarded"] == 36
    # Whether this weak model ever answers right is chance; a second reward that varies makes the step certain.
    for position, rollout in enumerate(road.sql("SELECT rollout_id FROM rollouts WHERE task_id = 't0'")):
        reward.emit("style", position / 6, rollout_id=rollout["rollout_id"], endpoint=road.url("otlp_http_port"))
    plan = road.run("train", str(job), "--dry-run")
    assert plan.returncode == 0, plan.stderr
    result = road.run("train", str(job), "--json")
    assert result.returncode == 0, result.stderr
    (policy,) = road.sql("SELECT * FROM policies FINAL WHERE version = 1")
    (step,) = road.sql("SELECT * FROM train_steps FINAL WHERE job = 'test'")
    assert (step["from_version"], step["to_version"]) == (0, 1)
    assert step["step_id"] == policy["step_id"]
    metrics = json.loads(step["metrics"])
    assert metrics["logprob_max_diff"] < 1e-4
    samples = road.sql(f"SELECT * FROM train_samples FINAL WHERE step_id = '{step['step_id']}'")
    calls = road.sql("SELECT span_id FROM llm_calls WHERE task_id LIKE 't%'")
    assert {sample["span_id"] for sample in samples} == {call["span_id"] for call in calls}, (
        "every call is accounted for"
    )
    assert any(sample["used"] for sample in samples)
    assert all(sample["drop_reason"] for sample in samples if not sample["used"])


def test_after_training_greedy_output_of_vllm_equals_transformers_with_the_published_weights(
    road: Any, tokenizer: Any
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    (policy,) = road.sql("SELECT path, sha256 FROM policies FINAL WHERE version = 1")
    published = Path(policy["path"])
    file = published / "model.safetensors" if published.is_dir() else published
    network = AutoModelForCausalLM.from_pretrained(road.model, dtype=torch.float32).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.load_state_dict(load_file(file), strict=True)
    assert any(not torch.equal(before[name], value) for name, value in network.state_dict().items()), "it learned"
    for task in tasks.held_out(5, 8):
        messages = [{"role": "system", "content": "Use the calculator."}, {"role": "user", "content": task.question}]
        request = {
            "model": "policy",
            "messages": messages,
            "temperature": 0,
            "max_tokens": 40,
            "return_token_ids": True,
        }
        answer, headers = _post(road.url("port") + "/v1/chat/completions", request)
        assert headers["x-tracegrad-policy"] == "policy@1"
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert answer["prompt_token_ids"] == prompt
        with torch.no_grad():
            generated = network.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)
        assert answer["choices"][0]["token_ids"] == generated[0, len(prompt) :].tolist()


def _post(url: str, body: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response), response.headers


def test_what_was_trained_is_not_trained_again(road: Any, job: Path) -> None:
    result = road.run("train", str(job))
    assert result.returncode == 1, result.stdout
    assert "already trained" in result.stderr


def test_transitions_are_the_contracts_objects(road: Any) -> None:
    result = road.run("transitions", "--json", "--task", "sum")
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    calls = road.sql("SELECT span_id FROM llm_calls WHERE task_id = 'sum'")
    assert {row["span_id"] for row in rows} == {call["span_id"] for call in calls}
    by_rollout: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_rollout.setdefault(row["rollout_id"], []).append(row)
    for sequence in by_rollout.values():
        assert [row["index"] for row in sequence] == list(range(len(sequence)))
        assert [row["terminal"] for row in sequence] == [False] * (len(sequence) - 1) + [True]
        for row, following in itertools.pairwise(sequence):
            assert row["next_span_id"] == following["span_id"]
            assert following["prompt_token_ids"][: len(row["prompt_token_ids"])] == row["prompt_token_ids"]


def test_the_doctor_finds_nothing_broken(road: Any) -> None:
    findings = road.json("doctor")
    assert [finding for finding in findings if finding["verdict"] == "fail"] == []
    assert any(finding["what"].startswith("serves policy@1") for finding in findings)


def test_curl_can_ask_the_store(road: Any) -> None:
    with urllib.request.urlopen(road.url("clickhouse_port") + "/?query=SELECT+1", timeout=10) as response:
        assert response.read() == b"1\n"
