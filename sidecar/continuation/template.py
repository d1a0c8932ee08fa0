"""Whether an engine's template is append-only: does it write a turn once, and never otherwise when others follow?

A small conversation with thinking and a tool is rendered turn by turn. Append-only means that each prompt begins with
the one before, and that thinking which stands in the text stays there. With such a template, exact continuation
changes how history is tokenised and nothing else; with another one it also keeps what the template would take away.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sidecar.continuation.bridge import bridge, common_end, common_start, marked, starts_with
from sidecar.continuation.render import Renderer, RenderError

Json = dict[str, Any]

TOOL: Json = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
THOUGHT = "They want it short."
ARGUMENTS = orjson.dumps({"word": "tide"}).decode()
CALL: Json = {"id": "probe0001", "type": "function", "function": {"name": "look_up", "arguments": ARGUMENTS}}
SYSTEM: Json = {"role": "system", "content": "Be brief."}
ASKED: Json = {"role": "user", "content": "What is a tide?"}
ANSWER: Json = {"role": "assistant", "content": "The sea's rise and fall.", "reasoning": THOUGHT}
AGAIN: Json = {"role": "user", "content": "And a neap tide?"}
CALLED: Json = {"role": "assistant", "content": "", "reasoning": THOUGHT, "tool_calls": [CALL]}
FOUND: Json = {"role": "tool", "tool_call_id": "probe0001", "content": "The weakest tide."}
LAST: Json = {"role": "assistant", "content": "The weakest one.", "reasoning": THOUGHT}
THANKS: Json = {"role": "user", "content": "Thank you."}


@dataclass(frozen=True)
class Template:
    """What was found out about a template."""

    append_only: bool
    why: str
    """In one clause; for people."""
    end: int | None
    """The token that ends an assistant's turn; None where more than one does, so that nothing can be continued."""
    writes_thinking: bool
    """Whether the thinking of a message is in its prompt."""
    tools: bool
    """Whether it was tried with tools; False: it does not take them."""


async def examine(renderer: Renderer, chat: Mapping[str, Any]) -> Template:
    """Render the small conversation with a request's model and template variables. Raises RenderError."""
    plain = {name: value for name, value in chat.items() if name != "tools"}
    for system, tools in (([SYSTEM], True), ([], True), ([SYSTEM], False), ([], False)):
        try:
            return await _examine(renderer, {**plain, "tools": [TOOL]} if tools else plain, system, tools=tools)
        except RenderError as error:
            if not error.refused:
                raise
            refusal = error
    raise refusal


async def _examine(renderer: Renderer, chat: Json, system: list[Json], *, tools: bool) -> Template:
    first = [*system, ASKED]
    second = [*first, ANSWER, AGAIN]
    turns = [first, second]
    if tools:
        turns += [[*second, CALLED, FOUND], [*second, CALLED, FOUND, LAST, THANKS]]
    else:
        turns += [[*second, LAST, THANKS]]
    text = str(ANSWER["content"])
    variants = [
        [*first, marked(ANSWER) or {}, AGAIN],
        [*first, {"role": "assistant", "content": text}, AGAIN],
        [*first, {"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>\n\n{text}"}, AGAIN],
    ]
    if tools:
        variants += [
            [*second, marked(CALLED) or {}, FOUND],
            [*second, {**CALLED, "reasoning": None}, FOUND],
            [*second, CALLED, {**FOUND, "content": "Nothing."}],
        ]
    found = [one.ids for one in await renderer.all(chat, *turns, *variants)]
    prompts, (other, thoughtless, aloud, *called) = found[: len(turns)], found[len(turns) :]
    tail = common_end(prompts[1], other)
    end = tail[0] if tail else None
    writes_thinking = prompts[1] != thoughtless
    # Thinking is written while a tool is used, and not once a question follows.
    forgets = bool(called) and not writes_thinking and prompts[2] != called[1]
    if end is not None and called:
        ends = prompts[1].count(end)
        closes = common_start(prompts[2], called[2]).count(end) == ends + 1
        if not closes or bridge(prompts[2], called[0], end, turns=ends, closed=True) is None:
            end = None
    broken = next((place for place in range(1, len(turns)) if not starts_with(prompts[place], prompts[place - 1])), 0)
    if end is None:
        why = "it ends an answer in different ways"
    elif broken:
        why = f"it writes earlier turns differently once {_what(turns[broken][-1])} follows"
    elif forgets or thoughtless == aloud:
        why = "it takes thinking out of earlier answers"
    else:
        why = "it writes every turn once"
    append_only = end is not None and not broken and not forgets and thoughtless != aloud
    return Template(append_only, why, end, writes_thinking=writes_thinking, tools=tools)


def _what(message: Json) -> str:
    return {"tool": "a tool's answer"}.get(message["role"], "a question")
