"""`transitions`: row for row what the trainer makes of the same store, but for advantages."""

import json
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from recorded_rollout import ANONYMOUS, Recorder, read

from tracegrad.otlp import SpanContext
from trainer.config import DataConfig, EngineConfig
from trainer.gate import NEUTRAL, sampled_from_policy
from trainer.listing import Wanted, iso_time, list_transitions
from trainer.since import Since
from trainer.store import Store

EVERYTHING = Since(0, untrained_only=False)
TAKEN = ("stop", "aborted", "client_disconnected", "error", "no_logprobs")
STEP = "step_id job policy from_version to_version algorithm config metrics started_at ended_at"
SAMPLE = "step_id span_id trace_id rollout_id attempt agent reward advantage n_tokens used drop_reason"
SAMPLINGS = [
    '{"temperature":1.0}',
    '{"temperature":0.7}',
    "",
    '{"top_p":null,"stop":["x"]}',
    '{"tool_choice":"required"}',
]


@pytest.fixture(scope="module")
def own(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A collector whose store has nothing but what is here: groups are measured over all of it."""
    with start(tmp_path_factory.mktemp("transitions") / "store") as collector:
        yield collector


def of_trainer(collector: Any, policies: Sequence[str]) -> list[dict[str, Any]]:
    store = Store(collector.clickhouse)
    try:
        only = policies[0] if len(policies) == 1 else None
        listed = list_transitions(store, Wanted(EVERYTHING, advantages=False, policy=only))
        lines = [line for line in listed if line["policy"] in policies]
    finally:
        store.close()
    return [
        {name: value.tolist() if hasattr(value, "tolist") else value for name, value in line.items()} for line in lines
    ]


def of_view(collector: Any, policies: Sequence[str]) -> list[dict[str, Any]]:
    rows = read(
        collector,
        "SELECT *, toUnixTimestamp64Nano(started_at) AS started_ns FROM transitions "
        f"WHERE policy IN {tuple(policies)} ORDER BY rollout_id, started_at, span_id",
    )
    for row in rows:
        row["started_at"] = iso_time(int(row.pop("started_ns")))
        row["next_prompt_token_ids"] = None if row["terminal"] else row["next_prompt_token_ids"]
    return rows


def compare(collector: Any, *policies: str) -> list[dict[str, Any]]:
    """The rows, which must be the trainer's."""
    found, expected = of_view(collector, policies), of_trainer(collector, policies)
    assert [list(row) for row in found[:1]] == [list(line) for line in expected[:1]]
    for row, line in zip(found, expected, strict=True):
        assert row.pop("credit") == pytest.approx(line.pop("credit"), rel=1e-15)
        assert row.pop("logprobs") == pytest.approx(line.pop("logprobs"))
        assert row == line
    return found


class Runs:
    """Attempts of agents on one policy, at random: what clients, engines and graders may do."""

    def __init__(self, collector: Any, seed: int) -> None:
        self.collector = collector
        self.random = random.Random(seed)
        self.policy = f"policy-{secrets.token_hex(4)}"

    def attempt(self, task: str, n: int) -> Recorder:
        chance = self.random
        recorder, spans = Recorder(self.collector, start=4_102_444_800_000_000_000), []
        asked: list[tuple[str, int]] = []
        for at in range(n):
            prompt, count = self._request(asked)
            response_id = chance.choice(["", f"r{at}"])
            for choice in range(chance.choice([1, 1, 2]) if response_id else 1):
                call = recorder.call(**self._values(task, prompt, count, response_id, choice))
                call.start_time_unix_nano = recorder.start + at * 1000 + chance.randrange(2)
                spans.append(call)
        root = recorder.root_span(
            chance.choice(["succeeded", "failed", "timeout"]),
            TASK_ID=task,
            ROLLOUT_SPLIT=chance.choice(["train", "train", "train", "eval"]),
        )
        chance.shuffle(spans)
        rewards = [
            recorder.reward(
                0.7 if task.endswith(".d") else chance.choice([0.1, 0.2, 0.7, 1.0]),
                recorder.start + 1,
                context=chance.choice([recorder.root, *(SpanContext(span.trace_id, span.span_id) for span in spans)]),
                name=f"name {index}",
                **chance.choice([{}, ANONYMOUS]),
            )
            for index in range(1 if task.endswith(".d") else chance.choice([0, 1, 1, 3]))
        ]
        recorder.send(*spans, *([root] if chance.random() < 0.9 else []), *rewards)
        return recorder

    def _request(self, asked: list[tuple[str, int]]) -> tuple[str, int]:
        """A prompt, and which try of it this is; sometimes one that was asked before."""
        if asked and self.random.random() < 0.5:
            prompt, count = self.random.choice(asked)
            request = prompt, self.random.choice([0, count, count + 1])
        else:
            request = f"[1,{len(asked)}]", self.random.choice([0, 0, 0, 1])
        asked.append(request)
        return request

    def _values(self, task: str, prompt: str, count: int, response_id: str, choice: int) -> dict[str, Any]:
        reason = self.random.choice([*TAKEN, "stop", "stop", "stop"])
        bare = reason == "error" and self.random.random() < 0.7
        return {
            "TASK_ID": task,
            "AGENT_NAME": self.random.choice(["writer", "critic"]),
            "POLICY_NAME": self.random.choice([self.policy, self.policy, self.policy, f"{self.policy}.other", None]),
            "POLICY_VERSION": self.random.choice([0, 3, None]),
            "PROMPT_TOKEN_IDS": None if bare else prompt,
            "INPUT_MESSAGES": prompt,
            "RESPONSE_TOKEN_IDS": None if reason == "error" else "[7,8]",
            "RESPONSE_LOGPROBS": None if reason in ("error", "no_logprobs") else "[-0.5,-0.25]",
            "TRAINABLE": reason == "stop",
            "UNTRAINABLE_REASON": None if reason == "stop" else reason,
            "RESPONSE_ID": response_id or None,
            "CHOICE_INDEX": choice,
            "RETRY_COUNT": count,
            "SAMPLING": self.random.choice([SAMPLINGS[0], *SAMPLINGS]),
        }


def test_random_worlds(own: Any) -> None:
    worlds = [Runs(own, seed) for seed in range(6)]
    for runs in worlds:
        for task in ("a", "b", "c", "d", ""):
            for _ in range(runs.random.choice([1, 2, 4])):
                runs.attempt(f"{runs.policy}.{task}" if task else "", runs.random.choice([0, 3, 12, 40]))
    policies = [runs.policy for runs in worlds]
    found = compare(own, *policies, *(f"{policy}.other" for policy in policies))
    reasons = Counter(row["drop_reason"] for row in found)
    assert reasons.total() > 300
    met = {None, "eval", "no_reward", "aborted", "no_logprobs", "off_distribution", "singleton_group", "no_signal"}
    assert met <= reasons.keys(), reasons


def test_what_a_step_did_counts_more_than_what_one_would_do(own: Any) -> None:
    runs = Runs(own, 1)
    task = f"{runs.policy}.task"
    first, second, third = (Recorder(own) for _ in range(3))
    calls = {}
    for recorder, reward in ((first, 1.0), (second, 0.0), (third, 0.0)):
        call = recorder.call(TASK_ID=task, POLICY_NAME=runs.policy)
        calls[recorder.rollout_id] = call.span_id.hex()
        root = recorder.root_span(TASK_ID=task)
        recorder.send(call, root, recorder.reward(reward, recorder.start))
    died = Recorder(own)
    died.send(died.root_span("failed", TASK_ID=task), died.reward(0.0, died.start))
    assert [row["drop_reason"] for row in compare(own, runs.policy)] == [None] * 3
    client = own.client()
    now = datetime.now(UTC)
    for version, verdicts in ((1, [(first, "stale")]), (2, [(first, ""), (second, "")])):
        name = f"{runs.policy}-{version}"
        started = now.replace(year=2000 + version)
        step = [name, "job", runs.policy, version - 1, version, "grpo", "{}", "{}", started, now]
        client.insert("train_steps", [step], column_names=STEP.split())
        samples = [
            [name, calls[recorder.rollout_id], "t", recorder.rollout_id, 0, "", 1.0, 0.5, 2, not reason, reason]
            for recorder, reason in verdicts
        ]
        client.insert("train_samples", samples, column_names=SAMPLE.split())
    client.close()
    rows = {row["rollout_id"]: row for row in compare(own, runs.policy)}
    assert {rows[item.rollout_id]["drop_reason"] for item in (first, second)} == {None}
    # The one that died is measured beside it, and neither has anything to be preferred for.
    assert rows[third.rollout_id]["drop_reason"] == "no_signal"


def test_which_sampling_leaves_the_distribution_as_it_is(own: Any) -> None:
    values: list[Any] = [
        None,
        0,
        1,
        -1,
        0.0,
        1.0,
        0.5,
        "",
        "auto",
        "none",
        "required",
        "text",
        "raw_logprobs",
        [],
        [1],
        {},
    ]
    values += [False, True, {"type": "text"}, {"type": "json_object"}, {"type": "text", "x": 1}]
    samplings = ["", "[]", "{", "null", "1", '{"unheard_of": 5}', "{}"]
    samplings += [json.dumps({name: value}) for name in NEUTRAL for value in values]
    runs, recorder = Runs(own, 2), Recorder(own)
    calls = {sampling: recorder.call(POLICY_NAME=runs.policy, SAMPLING=sampling) for sampling in samplings}
    recorder.send(*calls.values(), recorder.root_span(), recorder.reward(1.0, recorder.start))
    rows = read(own, f"SELECT span_id, drop_reason FROM transitions WHERE rollout_id = '{recorder.rollout_id}'")
    reasons = {row["span_id"]: row["drop_reason"] for row in rows}
    found = {sampling: reasons[call.span_id.hex()] != "off_distribution" for sampling, call in calls.items()}
    assert found == {sampling: sampled_from_policy(sampling) for sampling in samplings}


def test_the_gate_of_the_trainer_has_the_limits_of_the_view() -> None:
    engine = EngineConfig.model_fields
    limits = (engine["max_prompt_tokens"].default, engine["max_response_tokens"].default)
    assert (*limits, DataConfig.model_fields["min_group"].default) == (4096, 2048, 2)


def test_too_long_and_without_tokens(own: Any) -> None:
    runs, recorder = Runs(own, 3), Recorder(own)
    tokens = {4096: json.dumps([1] * 4096), 4097: json.dumps([1] * 4097)}
    calls = [
        recorder.call(POLICY_NAME=runs.policy, PROMPT_TOKEN_IDS=tokens[4096]),
        recorder.call(POLICY_NAME=runs.policy, PROMPT_TOKEN_IDS=tokens[4097]),
        recorder.call(POLICY_NAME=runs.policy, RESPONSE_TOKEN_IDS=None, RESPONSE_LOGPROBS=None),
        recorder.call(POLICY_NAME=runs.policy, RESPONSE_LOGPROBS="[0.5,-1]"),
        recorder.call(POLICY_NAME=runs.policy, RESPONSE_LOGPROBS="[-0.5]"),
    ]
    recorder.send(*calls, recorder.root_span(), recorder.reward(1.0, recorder.start))
    reasons = {row["span_id"]: row["drop_reason"] for row in compare(own, runs.policy)}
    told = [reasons[call.span_id.hex()] for call in calls]
    assert told == ["singleton_group", "too_long", "no_tokens", "no_logprobs", "no_logprobs"]
