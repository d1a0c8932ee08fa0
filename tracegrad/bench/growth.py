"""How the bytes of a rollout grow with its turns: each prompt repeats all of the conversation, its record must not."""

from tracegrad.bench import payload, processes
from tracegrad.bench.phases import Harness, Target
from tracegrad.errors import TracegradError


def rollout_bytes(harness: Harness, target: Target, rollout: str, turns: int) -> int:
    """What is delivered over OTLP of one rollout, turn after turn. Raises TracegradError where spans are missing."""
    if harness.wait_for_spans() < harness.expected_spans:
        raise TracegradError("spans of earlier calls are missing, so those of a rollout cannot be told apart")
    before = harness.counts()
    for turn in range(turns):
        body = payload.request(turn=turn)
        path = f"/rollout/{rollout}/v1/chat/completions"
        status, answer = processes.ask(target.port, "POST", path, body)
        if status != 200:
            raise TracegradError(f"turn {turn} of a rollout was answered with status {status}: {answer[:300]!r}")
        harness.expected_spans += 1
    if harness.wait_for_spans() < harness.expected_spans:
        raise TracegradError(f"not every span of a rollout of {turns} turns arrived")
    return harness.counts().export_bytes - before.export_bytes


def ratio(harness: Harness, target: Target) -> tuple[float, int]:
    """Bytes of 32 turns to bytes of 16, and bytes of 32 turns."""
    shorter = rollout_bytes(harness, target, "bench-16", 16)
    longer = rollout_bytes(harness, target, "bench-32", 32)
    return longer / shorter, longer
