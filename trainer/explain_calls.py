"""What an explanation says of calls: which tools they asked for, what their credit consists of, what they follow."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from trainer.credit import Execution, scheme_named
from trainer.merge_breaks import CallText, classify, decoder_of_model
from trainer.prefix_forest import prefix_forest
from trainer.spans import SpanTree
from trainer.transitions import Call, Transition

ROUNDING = 1e-9

MessagesOf = Callable[[Sequence[Call]], Mapping[tuple[str, str], tuple[str, str]]]


@dataclass(frozen=True)
class Match:
    """A tool's span, and how it was found to be asked for by a call."""

    span_id: str
    how: Literal["by id", "by order"]


@dataclass(frozen=True)
class Share:
    """What a span's reward adds to the credit of a call. `reward`: all of it."""

    span_id: str
    reward: float
    amount: float


@dataclass(frozen=True)
class Following:
    """How a call's prompt begins. `call`: number of the call that it continues, repeats or breaks with.

    `how`: otherwise the class of the break, whose reason is `why`.
    """

    how: str
    call: int
    why: str = ""


def matches(tree: SpanTree, calls: Sequence[Call], requests: Mapping[str, str]) -> dict[str, tuple[Match, ...]]:
    """Span id of a call to the tools that it asked for, in the order in which they ran."""
    ids = {call.span_id: set(call.tool_call_ids) for call in calls}
    found: dict[str, list[Match]] = defaultdict(list)
    for tool in tree.tools():
        asking = requests.get(tool.span_id)
        if asking is not None:
            held = tool.tool_call_id != "" and tool.tool_call_id in ids.get(asking, ())
            found[asking].append(Match(tool.span_id, "by id" if held else "by order"))
    return {span_id: tuple(of_call) for span_id, of_call in found.items()}


def shares(execution: Execution, scheme: str) -> dict[str, tuple[Share, ...] | None]:
    """Span id of each transition's call to what its credit consists of; None where it is not a sum over spans.

    All our schemes are linear in the rewards, so what one span adds is the credit that it gives alone.
    """
    if not execution.transitions:
        return {}
    assign = scheme_named(scheme)
    credits = assign(execution)
    alone = {
        span_id: assign(replace(execution, rewards={span_id: reward}))
        for span_id, reward in execution.rewards.items()
        if reward
    }
    found: dict[str, tuple[Share, ...] | None] = {}
    for index, transition in enumerate(execution.transitions):
        of_call = tuple(
            Share(span_id, execution.rewards[span_id], float(given[index]))
            for span_id, given in alone.items()
            if given[index]
        )
        adds_up = abs(sum(share.amount for share in of_call) - credits[index]) <= ROUNDING * max(1, abs(credits[index]))
        found[transition.call.span_id] = of_call if adds_up else None
    return found


def followings(
    transitions: Sequence[Transition], numbers: Mapping[str, int], messages_of: MessagesOf, model: Path | None
) -> dict[str, Following]:
    """Span id of a call to how its prompt begins; the first of an agent, if it continues nothing, is not there.

    `numbers`: of calls, by span id.
    """
    found: dict[str, Following] = {}
    for policy in {item.call.policy for item in transitions}:
        calls = [item.call for item in transitions if item.call.policy == policy and len(item.call.prompt_token_ids)]
        found |= _of_policy(calls, numbers, messages_of, model)
    return found


def _of_policy(
    calls: Sequence[Call], numbers: Mapping[str, int], messages_of: MessagesOf, model: Path | None
) -> dict[str, Following]:
    prompts = {index: _bytes(call.prompt_token_ids) for index, call in enumerate(calls)}
    wholes = {index: prompts[index] + _bytes(call.response_token_ids) for index, call in enumerate(calls)}
    forest = prefix_forest(prompts, wholes)
    found: dict[str, Following] = {}
    breaks: list[tuple[Call, Call]] = []
    last: dict[str, Call] = {}
    for index, call in enumerate(calls):
        prompt = forest.of_call[index]
        before = last.get(call.agent)
        if index > prompt.calls[0]:
            found[call.span_id] = Following("repeats the prompt of", numbers[calls[prompt.calls[0]].span_id])
        elif prompt.parent is not None:
            found[call.span_id] = Following("continues", numbers[calls[prompt.parent].span_id])
        elif before is not None:
            breaks.append((before, call))
        last[call.agent] = call
    if breaks:
        decode = decoder_of_model(model) if model is not None else None
        messages = messages_of([call for pair in breaks for call in pair])
        for pair in breaks:
            one = classify(_text(pair[0], messages), _text(pair[1], messages), decode)
            found[pair[1].span_id] = Following(one.kind, numbers[pair[0].span_id], one.reason)
    return found


def _text(call: Call, messages: Mapping[tuple[str, str], tuple[str, str]]) -> CallText:
    asked, answered = messages.get((call.trace_id, call.span_id), ("", ""))
    return CallText(call.prompt_token_ids, call.response_token_ids, asked, answered)


def _bytes(ids: np.ndarray) -> bytes:
    return np.ascontiguousarray(ids, np.int64).tobytes()
