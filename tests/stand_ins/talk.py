"""A client that goes on and on in one rollout, and a few things that are said in it."""

import json
from typing import Any

from chat_templates import tokenizer
from sidecar_harness import Harness
from template_engine import Said, TemplateEngine

Json = dict[str, Any]

SEA = Said("The sea rises and falls.")
MOON = Said("With the moon, twice a day.")
THOUGHT = Said("The sea.", thinking="They ask about the sea.")
LOOK = Said("", tool_calls=(("look_up", '{"word":"tide","deep":{"b":1,"a":[1,2.5]}}'),))
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
USER = {"role": "user", "content": "What is a tide?"}
MORE = {"role": "user", "content": "And when?"}


class Talk:
    """A client of one rollout that echoes answers as they came, or otherwise."""

    def __init__(self, harness: Harness, engine: TemplateEngine, rollout: str = "r1", **settings: Any) -> None:
        self.harness, self.engine, self.rollout, self.settings = harness, engine, rollout, settings
        self.messages: list[Json] = []

    async def ask(self, *messages: Json, says: Said = SEA, **settings: Any) -> Json:
        """Send what is new; gives the answer's message. It is echoed by `echo`."""
        self.messages += messages
        self.engine.says.append(says)
        body = {"messages": self.messages, **self.settings, **settings}
        answer = await self.harness.chat(body, at=f"/rollout/{self.rollout}/v1")
        assert answer.status == 200, await answer.text()
        if body.get("stream"):
            return await _streamed(answer)
        message: Json = (await answer.json())["choices"][0]["message"]
        return message

    def echo(self, message: Json, **changes: Any) -> None:
        """Put an answer into the history."""
        self.messages.append({**message, **changes})

    def branch(self) -> "Talk":
        """Another run of the same rollout with the same history."""
        other = Talk(self.harness, self.engine, self.rollout, **self.settings)
        other.messages = [*self.messages]
        return other


async def _streamed(answer: Any) -> Json:
    message: Json = {"role": "assistant", "content": ""}
    for line in (await answer.text()).splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:]).get("choices", []):
                message |= {name: value for name, value in choice["delta"].items() if value}
    return message


async def outcomes(harness: Harness, count: int) -> list[str | None]:
    """What the spans say, in the order of the calls."""
    spans = sorted(await harness.receiver.wait(count), key=lambda span: span.start_ns)
    return [span.attributes.get("tracegrad.continuation") for span in spans]


def text(ids: list[int]) -> str:
    return str(tokenizer().decode(ids))
