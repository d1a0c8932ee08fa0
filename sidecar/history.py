"""Linear growth: the earlier calls of each rollout, so that a call that extends one is recorded as what is new in it.

A call extends an earlier one where its messages begin with all of that call's, and its prompt with some of that call's
prompt and response ids (a call without ids: the messages alone; changed messages: the ids alone). Of the calls that fit
it is the one in whose own part the sharing ends, so that along every path the shared beginnings grow. A *line* is a
path: the first call that extends another goes on in its line, each further one begins a line of its own. The views of
the collector's schema put calls together again, and show a prompt only where its length and checksum are those stamped
on the call's span.

Invariants: only what was queued for delivery is extended (`Growth.shipped`); one tenant's calls extend only its own; a
call that nobody can extend, because neither a rollout nor a caller's trace names it, costs nothing; memory is bounded
by `max_bytes`, and the rollouts that were quiet longest go first. What is not found is recorded whole, which is correct
and only larger: after an eviction, after a restart, and where a rollout's next call reaches another worker process,
since each has a history of its own.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from zlib import crc32

import orjson

from sidecar import shared_ids
from sidecar.chat_answer import Answer, Numbers
from sidecar.earlier import Earlier, Extension, extension_at
from sidecar.identity import Identity
from sidecar.messages import input_messages
from tracegrad import names
from tracegrad.otlp import SpanContext
from tracegrad.otlp_span import Value

MAX_BYTES = 64 << 20
LEAST_TOKENS = 32
"""Fewer shared ids are not worth the attributes that tell of them."""
LEAST_BYTES = 512
"""The same for the messages of calls without ids."""
MOST_TRIED = 4
"""How many earlier states a call is compared with, beyond a glance."""
MOST_CHOICES = 16
"""How many choices of one state."""

LARGEST_SHARE = 8
"""A rollout that takes more than this part of the memory is forgotten, not all the others: it may never end."""

Key = tuple[str, str, int]
"""A tenant, a rollout, and its attempt."""


class Growth:
    """How the spans of one call are written, and what is remembered of them once they are on their way."""

    def __init__(self, history: "History", key: Key, given: "_Given", entries: list[Earlier]) -> None:
        self._history = history
        self._key = key
        self._given = given
        self._entries = entries

    @property
    def left_out(self) -> int:
        """How many input messages the record of the call leaves out."""
        return self._entries[0].left_out

    @property
    def same_tools(self) -> bool:
        """Whether it leaves the tool definitions out."""
        extends = self._entries[0].extends
        return extends is not None and bool(self._given.tools) and extends.tools == self._given.tools

    def context(self, place: int, trace_id: bytes) -> SpanContext:
        """Where the span of a choice stands."""
        return SpanContext(trace_id, bytes.fromhex(self._entries[place].span_id))

    def values(self, place: int = 0) -> dict[str, Value]:
        """What replaces or joins the attributes of the span that holds a choice's tokens."""
        entry = self._entries[place]
        values = self._extends(entry)
        if entry.n_shared:
            values[names.PROMPT_TOKEN_IDS] = f"[{entry.new_ids}]"
        if place:
            values[names.INPUT_MESSAGES] = input_messages(self._given.messages[entry.left_out :])
        return values

    def call_values(self) -> dict[str, Value]:
        """The same for the span of a call whose choices have spans of their own."""
        return self._extends(self._entries[0])

    def _extends(self, entry: Earlier) -> dict[str, Value]:
        if entry.extends is None:
            return {}
        above = entry.forks[:-1] if entry.begins_line else ()
        return {
            names.EXTENDS_SPAN_ID: entry.extends.span_id,
            names.EXTENDS_ROOT: entry.root,
            names.EXTENDS_DEPTH: entry.depth,
            names.EXTENDS_TOKENS: entry.n_shared,
            names.EXTENDS_MESSAGES: entry.left_out,
            names.EXTENDS_TOOLS: True if entry is self._entries[0] and self.same_tools else None,
            names.EXTENDS_LINE: entry.line if entry.forks else None,
            names.EXTENDS_PATH: orjson.dumps(above).decode() if above else None,
            **self._given.proof,
        }

    def shipped(self) -> None:
        """The spans are queued: later calls may extend them."""
        self._history.remember(self._key, self._given, self._entries)


class _Given:
    """What a call was asked. `marks`: of each beginning of its messages, from none to all; `sizes` in bytes.

    Python's own hash is keyed and has 64 bits; and messages decide what is shown, token ids what is learned.
    """

    def __init__(self, messages: list[Any], tools: Any, kind: str, ids: Numbers | None) -> None:
        self.messages = messages
        self.tools = hash(orjson.dumps(tools)) if tools else 0
        self.kind = kind
        self.ids, self.n_ids = shared_ids.inner(ids), 0 if ids is None else ids.count
        self.marks, self.sizes = [0], [0]
        for message in messages:
            content = orjson.dumps(message)
            self.marks.append(hash((self.marks[-1], content)))
            self.sizes.append(self.sizes[-1] + len(content))

    @cached_property
    def proof(self) -> dict[str, Value]:
        """What a prompt that was put together is compared with."""
        if not self.ids:
            return {}
        return {names.PROMPT_LENGTH: self.n_ids, names.PROMPT_CRC32: crc32(f"[{self.ids}]".encode())}


@dataclass(eq=False, slots=True)
class _Rollout:
    states: dict[tuple[int, int], list[Earlier]] = field(default_factory=dict)
    """Calls by the number and the mark of their messages."""
    newest: list[Earlier] = field(default_factory=list)
    n_bytes: int = 0


class History:
    """The calls of the rollouts that are going on."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.n_bytes = 0
        self._max_bytes = max_bytes
        self._rollouts: OrderedDict[Key, _Rollout] = OrderedDict()

    def grow(
        self, identity: Identity, chat: Mapping[str, Any], answer: Answer, *, tenant: str, kind: str
    ) -> Growth | None:
        """How to record a call of a policy or model `kind`. None: whole, and nobody can extend it."""
        messages = chat.get("messages")
        if not identity.has_company or not isinstance(messages, list) or not messages:
            return None
        if any(choice.prompt is not None for choice in answer.choices):
            return None
        key = (tenant, identity.rollout_id, identity.attempt)
        given = _Given(messages, chat.get("tools"), kind, answer.prompt_token_ids)
        rollout = self._rollouts.get(key)
        found = None if rollout is None else _by_messages(rollout, given) or _by_ids(rollout, given)
        alone = len(answer.choices) < 2
        entries: list[Earlier] = []
        for place in range(max(len(answer.choices), 1)):
            if place and given.n_ids >= LEAST_TOKENS:
                found = extension_at(entries[0], given.ids, len(given.ids), given.n_ids, with_messages=True)
            span_id = identity.context.span_id if alone else SpanContext.new(b"-").span_id
            sampled = answer.choices[place].token_ids if answer.choices else None
            entry = Earlier(
                span_id.hex(),
                kind,
                n_messages=len(messages),
                tools=given.tools,
                prompt=given.ids,
                response=shared_ids.inner(sampled),
                n_tokens=given.n_ids + (sampled.count if sampled is not None else 0),
            )
            if found is not None:
                entry.extend(found, in_line=place == 0)
            entries.append(entry)
        return Growth(self, key, given, entries)

    def remember(self, key: Key, given: _Given, entries: list[Earlier]) -> None:
        """Later calls of the rollout may extend these."""
        rollout = self._rollouts.setdefault(key, _Rollout())
        self._rollouts.move_to_end(key)
        before = rollout.n_bytes
        rollout.n_bytes += sum(entry.n_bytes for entry in entries)
        rollout.states.setdefault((len(given.messages), given.marks[-1]), []).extend(entries)
        newest = [*rollout.newest, *entries]
        rollout.newest = newest[-MOST_TRIED:]
        for old in newest[:-MOST_TRIED]:
            rollout.n_bytes -= old.forget_whole()
        self.n_bytes += rollout.n_bytes - before
        if rollout.n_bytes > self._max_bytes // LARGEST_SHARE:
            self.n_bytes -= self._rollouts.pop(key).n_bytes
        while self.n_bytes > self._max_bytes:
            _, quiet = self._rollouts.popitem(last=False)
            self.n_bytes -= quiet.n_bytes


def _by_messages(rollout: _Rollout, given: _Given) -> Extension | None:
    """The call with the most messages that these begin with; of equal ones that with the most ids in common."""
    tried = 0
    for n in range(len(given.messages), 0, -1):
        found = rollout.states.get((n, given.marks[n]))
        if found is None:
            continue
        fits = [one for one in found[: -MOST_CHOICES - 1 : -1] if one.kind == given.kind]
        if not given.ids and fits and given.sizes[n] >= LEAST_BYTES:
            return Extension(fits[0], 0, 0, n)
        if (best := _most_shared(fits, given.ids)) is not None:
            return extension_at(*best, with_messages=True)
        tried += 1
        if tried == MOST_TRIED:
            break
    return None


def _by_ids(rollout: _Rollout, given: _Given) -> Extension | None:
    """A call just before that this prompt begins with, more than half of it, whatever the messages say."""
    fits = [one for one in rollout.newest if one.kind == given.kind]
    best = _most_shared(fits, given.ids)
    if best is None or best[2] * 2 < len(given.ids):
        return None
    return extension_at(*best, with_messages=False)


def _most_shared(fits: list[Earlier], ids: str) -> tuple[Earlier, str, int, int] | None:
    """Of some calls the one that shares the most ids with a prompt: itself, the prompt, how many characters and ids."""
    best, most, whole = None, 0, False
    for one in fits:
        if ids and one.has_ids:
            known = one.ids()
            if (characters := shared_ids.shared(known, ids)) > most:
                best, most, whole = one, characters, characters == len(known)
    if best is None:
        return None
    n_shared = best.n_tokens if whole else shared_ids.count(ids[:most])  # counting takes as long as comparing
    return (best, ids, most, n_shared) if n_shared >= LEAST_TOKENS else None
