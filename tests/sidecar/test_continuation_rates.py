"""How often a call's prompt begins with the prompt and the response of the call before it, with and without.

The recorded agents' runs (`agent_runs.jsonl`: real frameworks, which echo answers each in its way) are asked again of a
sampler that gives the recorded answers in tokens of its own choice. Then a conversation with tools whose client echoes
thinking, on Qwen3's template, which takes thinking out of earlier turns once a question follows. Needs the shared data
beside the checkout, and is skipped where that is not there.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_templates import APPEND_ONLY
from sidecar_harness import Harness
from template_engine import Said, TemplateEngine

from sidecar.chat_stream import ChatStream
from sidecar.continuation.conversation import thought
from sidecar.sse import EventReader

Json = dict[str, Any]
SHARED = Path(__file__).parents[2] / "../shared"
RUNS = SHARED / "fixtures/openai_http/agent_runs.jsonl"
QWEN3 = SHARED / "data/tokenizers/qwen3"

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}

needs_runs = pytest.mark.skipif(not RUNS.exists(), reason=f"needs the recorded runs at {RUNS}")
needs_qwen3 = pytest.mark.skipif(not QWEN3.exists(), reason=f"needs Qwen3's tokeniser at {QWEN3}")


def recorded_runs() -> list[list[tuple[Json, Json]]]:
    """Each run's chat completions: request, and the message that answered it."""
    runs = []
    for line in RUNS.read_text().splitlines():
        calls = [one for one in json.loads(line)["calls"] if one["api"] == "chat/completions" and one["status"] == 200]
        if calls:
            runs.append([(one["request"], _message(one)) for one in calls])
    return runs


def _message(call: Json) -> Json:
    if call["response_kind"] == "json":
        message: Json = call["response"]["choices"][0]["message"]
        return message
    stream = ChatStream(None)
    for event in EventReader().feed(call["response"].encode()):
        stream.pass_on(event)
    return dict(stream.answer().choices[0].message)


def extends(request: Json, before: Json) -> bool:
    """Whether a request's messages begin with those of the one before and go on with an answer."""
    old, new = before["messages"], request["messages"]
    return new[: len(old)] == old and len(new) > len(old) and new[len(old)]["role"] == "assistant"


class Rate:
    """Pairs of consecutive calls, and those whose prompts merge."""

    def __init__(self) -> None:
        self.pairs = self.extending = self.merged = 0

    def add(self, engine: TemplateEngine, calls: list[tuple[Json, Said]]) -> None:
        """Count the last `len(calls)` calls of an engine."""
        prompts = engine.prompts[-len(calls) :]
        for place in range(1, len(calls)):
            known = prompts[place - 1] + engine.sampled(calls[place - 1][1])
            self.pairs += 1
            self.extending += extends(calls[place][0], calls[place - 1][0])
            self.merged += prompts[place][: len(known)] == known


def qwen3() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(QWEN3)


async def replayed(harness: Harness, engine: TemplateEngine, thinking: str) -> Rate:
    """The recorded runs, each a rollout."""
    rate = Rate()
    for number, run in enumerate(recorded_runs()):
        calls = [(request, Said.of(message, thought(message).text or thinking)) for request, message in run]
        for request, said in calls:
            engine.says += [said] * (request.get("n") or 1)
            answer = await harness.session.post(f"{harness.url}/rollout/run-{number}/v1/chat/completions", json=request)
            assert answer.status == 200, await answer.text()
            await answer.read()
        rate.add(engine, calls)
    return rate


THINKING = "The user wants this done; I look at what there is and answer."
PAIRS, EXTENDING, CONTINUABLE = 51, 33, 24
"""Of the recorded runs: consecutive calls; those whose messages extend the messages before; those of these that offer
the same tools (6 do not), hold no picture (1 does), and echo the answer that was recorded (2 do not)."""
RATES: dict[str, tuple[str, str, bool, str, int]] = {
    # tokeniser, setting, odd tokens, thinking -> merged
    "append-only, odd tokens, off": ("chatml", "off", True, "", 0),
    "append-only, odd tokens, auto": ("chatml", "auto", True, "", CONTINUABLE),
    "Qwen3, its own tokens, off": ("qwen3", "off", False, "", 8),
    "Qwen3, odd tokens, off": ("qwen3", "off", True, "", 0),
    "Qwen3, odd tokens, tokens": ("qwen3", "tokens", True, "", CONTINUABLE),
    "Qwen3, thinking, off": ("qwen3", "off", False, THINKING, 0),
    "Qwen3, thinking, auto": ("qwen3", "auto", False, THINKING, 0),
    "Qwen3, thinking, tokens": ("qwen3", "tokens", False, THINKING, CONTINUABLE),
    "Qwen3, thinking, odd tokens, tokens": ("qwen3", "tokens", True, THINKING, CONTINUABLE),
}


@needs_runs
@needs_qwen3
@pytest.mark.parametrize("case", RATES)
async def test_recorded_runs_merge(served: Any, case: str) -> None:
    words, setting, odd, thinking, expected = RATES[case]
    chosen = qwen3() if words == "qwen3" else APPEND_ONLY
    harness, engine = await served(chosen, setting, "*", odd=odd)
    rate = await replayed(harness, engine, thinking)
    assert (rate.pairs, rate.extending, rate.merged) == (PAIRS, EXTENDING, expected)
    page = await (await harness.session.get(f"{harness.admin}/metrics")).text()
    continued = f'continuations_total{{policy="policy",outcome="tokens"}} {expected}'
    assert (continued in page) == (setting != "off" and expected > 0)


@needs_qwen3
@pytest.mark.parametrize(("setting", "odd", "merged"), [("off", False, 6), ("auto", False, 6), ("tokens", True, 8)])
async def test_three_questions_with_tools_and_thinking(served: Any, setting: str, odd: bool, merged: int) -> None:
    harness, engine = await served(qwen3(), setting, "*", odd=odd)
    calls: list[tuple[Json, Said]] = []
    messages: list[Json] = []
    for question in ("What is a tide?", "And a neap tide?", "And a spring tide?"):
        messages.append({"role": "user", "content": question})
        look = [Said("", THINKING, (("look_up", json.dumps({"word": question, "page": page})),)) for page in (1, 2)]
        for said in (*look, Said(f"Water. {question}", THINKING)):
            request = {"model": "policy", "messages": [*messages], "tools": [TOOL]}
            engine.says.append(said)
            answer = await harness.session.post(f"{harness.url}/rollout/r/v1/chat/completions", json=request)
            message = (await answer.json())["choices"][0]["message"]
            calls.append((request, said))
            messages.append(message)
            if said.tool_calls:
                messages.append({"role": "tool", "tool_call_id": "call_0", "content": "Water."})
    rate = Rate()
    rate.add(engine, calls)
    assert (rate.pairs, rate.extending, rate.merged) == (8, 8, merged)
