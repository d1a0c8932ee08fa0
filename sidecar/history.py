"""Linear growth: the earlier calls of each rollout, so that a call that extends one is recorded as what is new in it.

A call extends an earlier one where its messages begin with all of that call's, and its prompt with some of that call's
prompt and response ids (a call without ids: the messages alone; changed messages: the ids alone). Of the calls that fit
it is the one in whose own part the sharing ends, so that along every path the shared beginnings grow. A *line* is a
path: the first call that extends another goes on in its line, each further one begins a line of its own. The views of
the collector's schema put calls together again.

Invariants: only what was queued for delivery is extended (`Growth.shipped`); a call that nobody can extend, because
neither a rollout nor a caller's trace names it, costs nothing; memory is bounded by `max_bytes`, and the rollouts that
were quiet longest go first. What is not found is recorded whole, which is correct and only larger: after an eviction,
after a restart, and where a rollout's next call reaches another worker process, since each has a history of its own.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

from sidecar import shared_ids
from sidecar.chat_answer import Answer
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

Key = tuple[str, int]


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
        }

    def shipped(self) -> None:
        """The spans are queued: later calls may extend them."""
        self._history.remember(self._key, self._given, self._entries)


class _Given:
    """What a call was asked, and its digests as far as they are needed."""

    def __init__(self, messages: list[Any], tools: Any, kind: str, ids: str) -> None:
        self.messages = messages
        self.tools = blake2b(orjson.dumps(tools), digest_size=16).digest() if tools else b""
        self.kind = kind
        self.ids = ids
        self._begun, self._hasher, self.begun_bytes = 0, blake2b(digest_size=16), 0

    def message(self, place: int) -> int:
        """A quick mark of one message."""
        return hash(orjson.dumps(self.messages[place]))

    def beginning(self, n: int) -> bytes:
        """The digest of the first `n` messages."""
        content = orjson.dumps(self.messages[:n])[1:-1]
        self._begun, self._hasher, self.begun_bytes = n, blake2b(content, digest_size=16), len(content)
        return self._hasher.digest()

    def digest(self) -> bytes:
        """The digest of all messages."""
        if self._begun < len(self.messages):
            content = orjson.dumps(self.messages[self._begun :])[1:-1]
            self._hasher.update(b"," + content if self._begun else content)
            self._begun = len(self.messages)
        return self._hasher.digest()


@dataclass(eq=False, slots=True)
class _Rollout:
    states: dict[tuple[int, bytes], list[Earlier]] = field(default_factory=dict)
    """Calls by the number and the digest of their messages."""
    lasts: dict[int, set[int]] = field(default_factory=dict)
    """By that number, marks of the last message: a glance tells that none can fit."""
    newest: list[Earlier] = field(default_factory=list)
    n_bytes: int = 0


class History:
    """The calls of the rollouts that are going on."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.n_bytes = 0
        self._max_bytes = max_bytes
        self._rollouts: OrderedDict[Key, _Rollout] = OrderedDict()

    def grow(self, identity: Identity, kind: str, chat: Mapping[str, Any], answer: Answer) -> Growth | None:
        """How to record a call of a policy or model `kind`. None: whole, and nobody can extend it."""
        messages = chat.get("messages")
        if not identity.has_company or not isinstance(messages, list) or not messages:
            return None
        if any(choice.prompt is not None for choice in answer.choices):
            return None
        key = (identity.rollout_id, identity.attempt)
        given = _Given(messages, chat.get("tools"), kind, shared_ids.inner(answer.prompt_token_ids))
        rollout = self._rollouts.get(key)
        found = None if rollout is None else _by_messages(rollout, given) or _by_ids(rollout, given)
        alone = len(answer.choices) < 2
        entries: list[Earlier] = []
        for place in range(max(len(answer.choices), 1)):
            if place and shared_ids.count(given.ids) >= LEAST_TOKENS:
                found = extension_at(entries[0], given.ids, len(given.ids), with_messages=True)
            span_id = identity.context.span_id if alone else SpanContext.new(b"-").span_id
            sampled = answer.choices[place].token_ids if answer.choices else None
            entry = Earlier(
                span_id.hex(),
                kind,
                n_messages=len(messages),
                tools=given.tools,
                prompt=given.ids,
                response=shared_ids.inner(sampled),
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
        for entry in entries:
            entry.join()
            rollout.n_bytes += entry.n_bytes
        n = len(given.messages)
        rollout.states.setdefault((n, given.digest()), []).extend(entries)
        rollout.lasts.setdefault(n, set()).add(given.message(n - 1))
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
        if n not in rollout.lasts or given.message(n - 1) not in rollout.lasts[n]:
            continue
        found = rollout.states.get((n, given.beginning(n)), [])
        fits = [one for one in found[: -MOST_CHOICES - 1 : -1] if one.kind == given.kind]
        if not given.ids and fits and given.begun_bytes >= LEAST_BYTES:
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


def _most_shared(fits: list[Earlier], ids: str) -> tuple[Earlier, str, int] | None:
    """Of some calls the one that shares the most ids with a prompt: itself, the prompt, and how many characters."""
    if not ids:
        return None
    shared = [(shared_ids.shared(one.ids(), ids), place) for place, one in enumerate(fits) if one.has_ids]
    characters, place = max(shared, default=(0, 0), key=lambda pair: (pair[0], -pair[1]))
    if shared_ids.count(ids[:characters]) < LEAST_TOKENS:
        return None
    return fits[place], ids, characters
