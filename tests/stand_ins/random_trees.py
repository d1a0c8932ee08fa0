"""Attempts whose spans form any tree, as agents, tools, sidecars, graders and lossy networks make them."""

import json
import random
import secrets
from typing import Any

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from recorded_rollout import ANONYMOUS, FAR_AHEAD, Recorder

from tracegrad import names
from tracegrad.otlp import SpanContext

SCORES = (0.0, 0.1, 0.7, 1.0, 1.0, -0.25, 3.0)
"""No sum of them is 0 but for rounding: whether that is a signal would depend on the order of adding."""
TOOL_CALL_IDS = ("call_0", "call_1")
"""So few that they are not unique, as with engines that count from 0."""


class RandomTrees:
    """Spans and rewards of many attempts, sent as one; policies, tasks and rollouts are new ones."""

    def __init__(self, collector: Any, seed: int) -> None:
        self.random = random.Random(seed)
        self.policies = [f"policy-{secrets.token_hex(4)}" for _ in range(2)]
        self.spans: list[Span] = []
        self.rewards: list[LogRecord] = []
        self._collector = collector
        self._shared: bytes | None = None

    def task(self, attempts: int) -> None:
        """A task with so many attempts, sometimes of one rollout."""
        task = self.random.choice([f"task-{secrets.token_hex(4)}"] * 5 + [""])
        rollout_id: str | None = None
        for number in range(attempts):
            again = rollout_id is not None and self.random.random() < 0.2
            recorder = Recorder(self._collector, rollout_id if again else None, start=FAR_AHEAD)
            rollout_id = recorder.rollout_id
            self._attempt(recorder, task, number if again else 0)

    def send(self) -> None:
        """Export all of it, in no order."""
        self.random.shuffle(self.spans)
        Recorder(self._collector).send(*self.spans, *self.rewards)

    def _attempt(self, recorder: Recorder, task: str, attempt: int) -> None:
        chance = self.random
        if self._shared is not None and chance.random() < 0.35:
            recorder.root = SpanContext.new(self._shared)
        self._shared = recorder.root.trace_id
        parents = [recorder.root.span_id, secrets.token_bytes(8)]  # the second is never delivered
        contexts = [recorder.root, SpanContext(recorder.root.trace_id, parents[1])]
        if chance.random() < 0.5:
            parents.append(bytes(8))
        made: list[Span] = []
        for _ in range(chance.choice([0, 1, 4, 9, 16])):
            for span in self._spans(recorder, task, attempt, chance.choice(parents[-6:] + parents[:2])):
                parents.append(span.span_id)
                made.append(span)
        if len(made) > 3 and chance.random() < 0.15:
            made[0].parent_span_id = made[-1].span_id  # which may well be below it
        if made and chance.random() < 0.2:
            made[-1].trace_id = secrets.token_bytes(16)  # somebody lost the trace on the way
        contexts += [SpanContext(span.trace_id, span.span_id) for span in made]
        tools = [context for context, span in zip(contexts[2:], made, strict=True) if "tool" in span.name]
        if chance.random() < 0.85:
            status = chance.choice(["succeeded", "succeeded", "failed", "timeout"])
            split = chance.choice(["train"] * 6 + ["eval"])
            told = {"OPERATION_NAME": "invoke_agent", "AGENT_NAME": "writer"} if chance.random() < 0.2 else {}
            root = recorder.root_span(status, attempt, TASK_ID=task or None, ROLLOUT_SPLIT=split, **told)
            if chance.random() < 0.2:
                root.parent_span_id = parents[1]
            made.append(root)
        self.spans += [span for span in made if chance.random() < 0.97]
        self.spans += [span for span in made if chance.random() < 0.05]
        for number in range(chance.choice([0, 1, 1, 2, 4, 7])):
            context = chance.choice([recorder.root, SpanContext(b"", b""), *contexts, *contexts, *tools * 3])
            named: dict[str, Any] = {} if not context.span_id or chance.random() < 0.7 else ANONYMOUS
            values = {names.ROLLOUT_ATTEMPT: attempt} | named
            score = chance.choice(SCORES)
            self.rewards.append(recorder.reward(score, FAR_AHEAD + number, f"name {number % 3}", context, **values))

    def _spans(self, recorder: Recorder, task: str, attempt: int, parent: bytes) -> list[Span]:
        chance = self.random
        at = range(chance.randrange(12), 20)
        kind = chance.choice(["agent", "tool", "tool", "step", "call", "call", "call"])
        if kind == "agent":
            return [recorder.agent(chance.choice(["writer", "critic"]), parent, at)]
        if kind == "step":
            return [recorder.plain("step", parent, at=at)]
        if kind == "tool":
            told: dict[str, Any] = {names.OPERATION_NAME: "execute_tool"}
            if chance.random() < 0.6:
                told["gen_ai.tool.call.id"] = chance.choice([*TOOL_CALL_IDS, "nobody's"])
            return [recorder.plain("execute_tool x", parent, told, at=at)]
        response_id = chance.choice(["", secrets.token_hex(4)])
        request = self._request(task)
        choices = []
        for choice in range(chance.choice([1, 1, 3]) if response_id else 1):
            call = recorder.call(
                parent, attempt, RESPONSE_ID=response_id or None, CHOICE_INDEX=choice, **request | self._response()
            )
            call.start_time_unix_nano = recorder.start + at.start
            call.end_time_unix_nano = recorder.start + at.stop
            choices.append(call)
        return choices

    def _request(self, task: str) -> dict[str, Any]:
        prompt = self.random.choice(["[1]", "[2,3]", "[4,5,6]"])
        return {
            "TASK_ID": task or None,
            "POLICY_NAME": self.random.choice([*self.policies, *self.policies[:1] * 2, None]),
            "PROMPT_TOKEN_IDS": prompt,
            "INPUT_MESSAGES": prompt,
            "RETRY_COUNT": self.random.choice([0, 0, 0, 1, 2]),
        }

    def _response(self) -> dict[str, Any]:
        reason = self.random.choice(["stop"] * 5 + ["aborted", "error", "no_logprobs"])
        asked_for = self.random.sample(TOOL_CALL_IDS, self.random.choice([0, 0, 1, 2]))
        parts = [{"type": "tool_call", "id": id_, "name": "x", "arguments": {}} for id_ in asked_for]
        return {
            "TRAINABLE": reason == "stop",
            "UNTRAINABLE_REASON": None if reason == "stop" else reason,
            "OUTPUT_MESSAGES": json.dumps([{"role": "assistant", "parts": parts}]),
        }
