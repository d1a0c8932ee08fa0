"""The bench's own parts: what it sends and counts, starts and ends, and what it makes of a target that fails."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracegrad.bench import machine, otlp_spans, payload, processes
from tracegrad.bench.load import Load
from tracegrad.bench.load_requests import Rollouts
from tracegrad.bench.metric import Metric, shown
from tracegrad.bench.phases import DIRECT, Harness, Phase, Target, alternate, harness
from tracegrad.errors import TracegradError


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Harness]:
    with harness(tmp_path, machine.cores(), lambda _: None) as started:
        yield started


def test_spans_of_an_export_are_counted() -> None:
    export = ExportTraceServiceRequest()
    for count in (3, 0, 2):
        resource = export.resource_spans.add()
        resource.resource.attributes.add(key="service.name").value.string_value = "x" * 200
        for _ in range(2):
            scope = resource.scope_spans.add()
            scope.scope.name = "sidecar"
            for place in range(count):
                scope.spans.add(name=f"chat {place}", trace_id=b"t" * 16, start_time_unix_nano=1)
    assert otlp_spans.count(export.SerializeToString()) == 10
    assert otlp_spans.count(b"") == 0


@pytest.mark.parametrize("text", [b"no export at all", b"\x0a", b"\x08\x01"])
def test_what_is_no_export_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="no OTLP export"):
        otlp_spans.count(text)


def test_the_payload_has_the_size_that_figures_are_given_for() -> None:
    assert len(payload.request()) == pytest.approx(6_700, rel=0.03)
    assert len(payload.answer()) == pytest.approx(30_000, rel=0.03)
    answer = json.loads(payload.answer())
    (choice,) = answer["choices"]
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"] == 1500
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"] == 200


def test_the_streamed_answer_is_the_whole_one() -> None:
    events = payload.streamed().events
    assert len(events) == 202
    *chunks, done = events
    assert done == b"data: [DONE]\n\n"
    deltas = [json.loads(chunk.removeprefix(b"data: ")) for chunk in chunks]
    whole = json.loads(payload.answer())
    assert deltas[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    sampled = [delta["choices"][0] for delta in deltas[1:]]
    assert "".join(one["delta"]["content"] for one in sampled) == whole["choices"][0]["message"]["content"]
    assert [one["token_ids"][0] for one in sampled] == whole["choices"][0]["token_ids"]
    assert [one["finish_reason"] for one in sampled] == [None] * 199 + ["stop"]


def test_each_turn_extends_the_one_before() -> None:
    for turn in range(3):
        now, after = (json.loads(payload.answer(one)) for one in (turn, turn + 1))
        so_far = now["prompt_token_ids"] + now["choices"][0]["token_ids"]
        assert after["prompt_token_ids"][: len(so_far)] == so_far
        asked, asked_after = (json.loads(payload.request(turn=one))["messages"] for one in (turn, turn + 1))
        assert asked_after[: len(asked)] == asked
        assert asked_after[len(asked)]["content"] == now["choices"][0]["message"]["content"]


def test_what_the_load_generator_saw_is_what_the_stand_in_counted(bench: Harness) -> None:
    measured = bench.measure(bench.direct, Load(bench.port, concurrency=4, calls=60, warm=8))
    assert (measured.seen.calls, measured.seen.all_calls, bench.counts().calls) == (60, 68, 68)
    assert measured.seen.bytes_per_call > len(payload.answer())
    assert 0 < measured.seen.p50_ms <= measured.seen.p99_ms
    assert measured.seen.leaks == measured.seen.inspected > 0, "the stand-in shows ids whether or not it is asked"
    assert measured.seen.errors == 0


def test_a_load_may_be_bounded_by_time(bench: Harness) -> None:
    seen = bench.measure(bench.direct, Load(bench.port, concurrency=2, seconds=0.2, warm=5)).seen
    assert seen.seconds >= 0.2
    assert seen.calls == seen.all_calls - 5 > 0


def test_streams_have_all_their_events_at_their_pace(bench: Harness) -> None:
    bench.pace(0.01, 6)
    seen = bench.measure(bench.direct, Load(bench.port, stream=True, concurrency=3, calls=3)).seen
    assert (seen.events, seen.fewest_events, seen.unended) == (3 * 8, 8, 0)
    assert 0 < seen.first_p50_ms < 60 < seen.p50_ms, "six pauses of 10 ms come after the first event"


def test_usage_is_streamed_to_who_asks(bench: Harness) -> None:
    bench.pace(0.0, 2)
    body = payload.request(stream=True)[:-1] + b',"stream_options":{"include_usage":true}}'
    _, answer = processes.ask(bench.port, "POST", "/v1/chat/completions", body)
    assert json.loads(answer.split(b"\n\n")[3][6:])["usage"]["completion_tokens"] == 2
    assert answer.endswith(payload.DONE)
    _, answer = processes.ask(bench.port, "POST", "/v1/chat/completions", payload.request(stream=True))
    assert b"usage" not in answer


def test_a_target_that_fails_ends_the_bench_with_its_words(bench: Harness) -> None:
    with pytest.raises(TracegradError, match=r"wrong path failed \d+ of \d+ calls: status 404"):
        bench.measure(Target("wrong path", bench.port), Load(bench.port, path="/no/such/path", calls=3))


def test_ids_that_nobody_asked_for_end_the_bench(bench: Harness) -> None:
    with pytest.raises(TracegradError, match="leaky showed token ids that nobody asked for"):
        bench.measure(Target("leaky", bench.port, own=True), Load(bench.port, calls=3))


def test_the_least_proxy_asks_for_ids_and_shows_none(bench: Harness) -> None:
    with processes.our_own("minimal_proxy", (bench.url,), bench.directory, bench.cores.proxy) as (running, port):
        target = Target("minimal", port, running, own=True)
        whole = bench.measure(target, Load(port, calls=5))
        streamed = bench.measure(target, Load(port, stream=True, calls=2))
    assert bench.counts().asked_token_ids == 7
    assert (whole.seen.leaks, whole.seen.inspected, streamed.seen.fewest_events) == (0, 1, 202)
    if machine.LINUX:
        assert whole.cpu_ms is not None


def test_where_there_is_no_proc_time_is_not_known_instead_of_nothing(
    bench: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "LINUX", False)
    phase = alternate(bench, "few", [bench.direct], 1, {"calls": 3})
    assert phase.median(DIRECT, lambda one: one.cpu_ms) is None
    assert phase.median(DIRECT, lambda one: one.others_cores) is None
    assert phase.median(DIRECT, lambda one: one.seen.per_s) is not None
    assert machine.resident_bytes([os.getpid()]) is None


def test_targets_alternate_and_are_compared_within_a_repeat(bench: Harness) -> None:
    said: list[str] = []
    bench.say = said.append
    targets = [bench.direct, Target("again", bench.port)]
    phase: Phase = alternate(bench, "few", targets, 2, {"calls": 3})
    assert said == [f"few: {name}, {place} of 2" for place in (1, 2) for name in (DIRECT, "again")]
    assert phase.compared("again", DIRECT, lambda one, base: one.seen.calls - base.seen.calls) == 0


def test_a_process_ends_with_all_that_it_started(tmp_path: Path) -> None:
    script = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    with processes.started("parent", [sys.executable, "-c", script + "time.sleep(600)"], tmp_path, ()) as running:
        while len(pids := running.pids) < 2:  # it takes a moment
            time.sleep(0.02)
        used = machine.resident_bytes(pids)
        assert used is not None
        assert used > 1 << 20
    deadline = time.monotonic() + 10
    while machine.session(running.process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)  # a killed process takes a moment to be gone
    assert machine.session(running.process.pid) == []


def test_a_process_that_dies_is_told_with_its_words(tmp_path: Path) -> None:
    script = "import sys; sys.exit('no such device')"
    with processes.started("short lived", [sys.executable, "-c", script], tmp_path, ()) as running:
        (port,) = processes.free_ports(1)
        with pytest.raises(TracegradError, match="short lived ended with status 1; it said: no such device"):
            processes.wait_for(running, port, "/")


def test_processes_stay_on_their_cores(tmp_path: Path) -> None:
    chosen = machine.cores()
    if not chosen.proxy:
        pytest.skip("cores cannot be chosen on this system")
    script = "import os, sys; sys.stdout.write(repr(sorted(os.sched_getaffinity(0))))"
    with processes.started("pinned", [sys.executable, "-c", script], tmp_path, chosen.proxy, talks=True) as running:
        output, _ = running.process.communicate()
    assert json.loads(output) == sorted(chosen.proxy)
    assert chosen.total == 1 or not chosen.proxy & chosen.load
    assert os.sched_getaffinity(0) >= chosen.all


@pytest.mark.parametrize(
    ("value", "goal", "met"),
    [(0.5, "<= 0.6", True), (0.7, "<= 0.6", False), (2000, ">= 1500", True), (None, ">= 1500", None), (1.0, "", None)],
)
def test_whether_a_goal_is_met(value: float | None, goal: str, met: bool | None) -> None:
    assert Metric("some", value, "", goal).is_met is met


def test_figures_are_rounded_to_what_was_measured() -> None:
    assert (shown(0.123456), shown(12345.6), shown(None), shown(0.0)) == ("0.1235", "12,346", "not known", "0")


def test_the_load_generator_says_when_nobody_listens(tmp_path: Path) -> None:
    (port,) = processes.free_ports(1)
    given = json.dumps({"port": port, "calls": 1}).encode()
    command = [sys.executable, "-m", "tracegrad.bench.load"]
    result = subprocess.run(command, input=given, capture_output=True, check=False, timeout=30)
    assert result.returncode == 1
    assert b"Connection refused" in result.stderr


def test_rollouts_are_played_turn_by_turn_and_no_other_load_has_them() -> None:
    rollouts = Rollouts("/v1/chat/completions", 1, model=payload.MODEL, turns=3)
    one, other = rollouts.play(), rollouts.play()
    sent = [next(one) for _ in range(4)] + [next(other)]
    names = [request.split(b"/")[2] for request in sent]
    assert (names[0], len(set(names))) == (names[2], 3)
    assert [request.partition(b"\r\n\r\n")[2] for request in sent] == [
        payload.request(turn=turn) for turn in (0, 1, 2, 0, 0)
    ]


def test_the_stand_in_tokenizes_what_it_prompts_with(bench: Harness) -> None:
    for turn in (0, 1, 3):
        body = json.loads(payload.request(turn=turn))
        plain = tokenized(bench, body["messages"])
        assert plain == json.loads(payload.answer(turn))["prompt_token_ids"]
        if turn:
            body["messages"][-2]["content"] += " more"
            changed = tokenized(bench, body["messages"])
            assert [one == other for one, other in zip(plain, changed, strict=True)].count(False) == 1
            after_answer = len(plain) - payload.TOOL_TOKENS
            assert plain[after_answer - 1] == payload.END
            assert plain[after_answer - 2] != changed[after_answer - 2]


def test_other_conversations_are_written_once_and_extended(bench: Harness) -> None:
    asked = [{"role": "user", "content": "What is it?"}]
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    more = [*asked, {"role": "assistant", "content": "", "reasoning": "Hm.", "tool_calls": [call]}, *asked]
    first, second = tokenized(bench, asked), tokenized(bench, more)
    assert second[: len(first)] == first
    assert second.count(payload.END) == 3


def tokenized(bench: Harness, messages: list[dict[str, Any]]) -> list[int]:
    status, answer = processes.ask(bench.port, "POST", "/tokenize", orjson.dumps({"messages": messages}))
    assert status == 200
    found: list[int] = json.loads(answer)["tokens"]
    return found
