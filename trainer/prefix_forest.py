"""Which calls continue which: the forest of calls under "the prompt begins with that call's prompt and response".

All is compared as exact token ids. The work is a sort of the calls and one pass over them, in which every call is
compared with a bounded number of others: no pair of calls is looked at for being a pair.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(eq=False)
class Prompt:
    """One prompt, and the calls that were made with exactly it (n > 1, repeated questions), by number, ascending.

    `parent`: the call that it continues, the one with the longest prompt and response where there are several.
    """

    calls: list[int]
    parent: int | None


@dataclass(frozen=True, eq=False)
class Forest:
    """`roots`: the prompts that continue no call. `continuing[k]`: those that continue call k. `of_call[k]`: its own.

    All in the order of their first calls.
    """

    roots: list[Prompt] = field(default_factory=list)
    continuing: dict[int, list[Prompt]] = field(default_factory=dict)
    of_call: dict[int, Prompt] = field(default_factory=dict)


def prefix_forest(prompts: Mapping[int, bytes], wholes: Mapping[int, bytes]) -> Forest:
    """The forest of calls: by their number the prompt, and prompt and response, as bytes of ids of one size.

    In sorted order whatever begins with a text follows it without anything else in between, so the texts that the
    present one begins with are a stack.
    """
    texts = [(text, 0, call) for call, text in wholes.items()] + [(text, 1, call) for call, text in prompts.items()]
    texts.sort()
    found: list[Prompt] = []
    begun: list[tuple[bytes, int]] = []
    last = b""
    for text, is_prompt, call in texts:
        while begun and not text.startswith(begun[-1][0]):
            begun.pop()
        if not is_prompt:
            if not (begun and len(begun[-1][0]) == len(text)):  # of equal texts the first call's is continued
                begun.append((text, call))
        elif found and last == text:
            found[-1].calls.append(call)
        else:
            found.append(Prompt([call], begun[-1][1] if begun else None))
            last = text
    return _ordered(found)


def _ordered(prompts: list[Prompt]) -> Forest:
    forest = Forest()
    for prompt in sorted(prompts, key=lambda prompt: prompt.calls[0]):
        siblings = forest.roots if prompt.parent is None else forest.continuing.setdefault(prompt.parent, [])
        siblings.append(prompt)
        forest.of_call.update(dict.fromkeys(prompt.calls, prompt))
    return forest
