"""Which upstream serves a call: the `[[model]]` entries, tried in one order, and the first that holds.

The order: entries with an exact name, then names with `*` in them, then `*` itself; among these, entries with a `match`
before those without; then as they stand in the file. An entry holds when its name fits the model that the call asks
for, and every part of its `match` holds. A call that names no model fits `*`, or the only name that there is.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sidecar.board import Board
from sidecar.continuation.road import Continuation
from sidecar.facts import Facts
from sidecar.identity import Identity
from sidecar.matcher import STAR, Matcher, ModelName, matcher
from sidecar.policy import Policy, Replica
from tracegrad.errors import InputError, SettingsError
from tracegrad.settings import ModelRoute, Settings

EVAL = "eval"
NO_PINS: Mapping[str, Any] = {}
REMEMBERED_NAMES = 1000
"""Agents may ask for any name: what was looked up for so many is kept."""


@dataclass(frozen=True)
class Route:
    """One entry. `policy` None: calls pass through, are recorded, and never train."""

    name: str
    upstreams: tuple[str, ...]
    policy: Policy | None
    authorization: str | None
    """Replaces the caller's key; a secret. Empty: the caller's key goes no further. None: it is passed on."""
    served: str | None = None
    """The model name the upstream knows; None: the one asked for."""
    pins: Mapping[str, Any] = field(default_factory=dict)
    """Sampling settings of a policy, set whatever the client asked for; see `pins_of`."""
    pins_all: bool = False
    """They are set on all calls, not only on training traffic."""
    match: Matcher | None = None
    """Which of the calls for this name it takes; None: all."""
    continuation: Continuation | None = None
    """Of a policy: how its calls go on where earlier ones ended. The same for all entries of the policy."""

    def pins_of(self, identity: Identity) -> Mapping[str, Any]:
        """The pins of one call: those of calls that are no training traffic are empty."""
        if self.pins and (self.pins_all or (identity.named is not None and identity.split != EVAL)):
            return self.pins
        return NO_PINS

    def __repr__(self) -> str:
        return f"Route({self.name!r}, {self.upstreams!r})"


class Routes:
    """The routing table and the policies it names."""

    def __init__(self, entries: Sequence[Route]) -> None:
        """Raises InputError where a name cannot be one."""
        self.entries = tuple(entries)
        self.policies = {route.policy.name: route.policy for route in entries if route.policy}
        self.names = tuple(dict.fromkeys(route.name for route in entries))
        """The configured model names, each once."""
        names = {name: ModelName.of(name) for name in self.names}
        ranked = sorted(self.entries, key=lambda route: (names[route.name].rank, route.match is None))
        self._in_order = tuple((names[route.name], route) for route in ranked)
        self._by_model: dict[str | None, tuple[Route, ...]] = {}

    def choose(self, facts: Facts) -> Route | None:
        """The route of a call; None when no entry holds."""
        for route in self.candidates(facts.model):
            if route.match is None or route.match.holds(facts):
                return route
        return None

    def candidates(self, model: str | None) -> tuple[Route, ...]:
        """The entries that a call for this model may reach, in the order in which they are tried."""
        found = self._by_model.get(model)
        if found is None:
            if len(self._by_model) >= REMEMBERED_NAMES:
                self._by_model.clear()
            found = self._by_model[model] = self._look_up(model)
        return found

    def _look_up(self, model: str | None) -> tuple[Route, ...]:
        if model is None:
            only = len(self.names) == 1
            fitting = [route for _, route in self._in_order if only or route.name == STAR]
        else:
            fitting = [route for name, route in self._in_order if name.fits(model)]
        last = next((place for place, route in enumerate(fitting) if route.match is None), len(fitting))
        return tuple(fitting[: last + 1])

    def refusal(self, model: str) -> str:
        """What to tell a caller whose call no entry takes."""
        known = ", ".join(self.names)
        if self.candidates(model):
            return f"The model `{model}` is not served for this call: no `match` of its [[model]] entries holds."
        return f"The model `{model}` does not exist. Known here: {known}"

    @property
    def default(self) -> Route:
        """Where requests that name no model go: `*` where there is one without a `match`, else the first entry."""
        unmatched = [route for route in self.entries if route.match is None]
        rest = [route for route in unmatched if route.name == STAR]
        return next(iter((*rest, *unmatched, *self.entries)))

    @property
    def continued(self) -> dict[str, Route]:
        """One entry of each policy, by the policy's name."""
        return {route.policy.name: route for route in self.entries if route.policy}

    @property
    def upstreams(self) -> tuple[str, ...]:
        """Every upstream, once."""
        return tuple(dict.fromkeys(url for route in self.entries for url in route.upstreams))


def build_routes(
    settings: Settings,
    board: Board | None = None,
    places: Mapping[str, int] | None = None,
    known: Mapping[str, Replica] | None = None,
    continuations: Mapping[str, Continuation] | None = None,
) -> Routes:
    """The table from settings. `board`: with a place for each of `policy_engines`, in their order or as `places` says.

    `known`: engines by URL that are looked after already; `continuations`: by policy, what is remembered of rollouts.

    Raises SettingsError where an entry could never be reached, a pattern is bad or an engine would serve two policies.
    """
    given = settings.routes
    policies = _policies(given, board or Board.memory(len(policy_engines(settings))), places, known or {})
    continued = _continuations(given, continuations or {})
    # Where tenants are configured, the key that a caller sends is ours.
    routes = [_route(entry, policies, continued, keys_pass=not settings.tenant) for entry in given]
    for one, other in itertools.combinations(routes, 2):
        if one.name == other.name and one.match == other.match:
            raise SettingsError(
                f"two [[model]] entries have the same name {one.name!r} and the same match, so that the second is never"
                " reached: give one of them another"
            )
    try:
        return Routes(routes)
    except InputError as error:
        raise SettingsError(f"bad [[model]] name: {error}") from error


def policy_engines(settings: Settings) -> tuple[str, ...]:
    """The URLs of all engines that serve policies, in the order of their places on a board."""
    return _policy_engines(settings.routes)


def _policy_engines(given: Sequence[ModelRoute]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(url for entry in given if entry.policy for url in entry.upstreams))


def _policies(
    given: Sequence[ModelRoute], board: Board, places: Mapping[str, int] | None, known: Mapping[str, Replica]
) -> dict[str, Policy]:
    places = places or {url: place for place, url in enumerate(_policy_engines(given))}
    engines: dict[str, Replica] = {}
    members: dict[str, list[ModelRoute]] = {}
    for entry in given:
        if not entry.upstreams:
            raise SettingsError(f"[[model]] name {entry.name!r} has no upstream: give it one URL or a list of them")
        if entry.policy:
            members.setdefault(entry.policy, []).append(entry)
    policies = {}
    for name, entries in members.items():
        urls = list(dict.fromkeys(url for entry in entries for url in entry.upstreams))
        if taken := [url for url in urls if url in engines]:
            raise SettingsError(f"upstream {taken[0]} serves two policies: one engine holds one policy's weights")
        engines.update({url: known.get(url) or Replica(url, board, places[url]) for url in urls})
        modes = {entry.pins.logprobs_mode for entry in entries if entry.pins and entry.pins.logprobs_mode}
        if len(modes) > 1:
            raise SettingsError(f"[[model]] entries of policy {name!r} pin different logprobs_mode: give one value")
        for url in urls:
            engines[url].pin_logprobs_mode(next(iter(modes), None))
        policies[name] = Policy(name, entries[0].name, tuple(engines[url] for url in urls))
    return policies


def _continuations(given: Sequence[ModelRoute], known: Mapping[str, Continuation]) -> dict[str, Continuation]:
    found: dict[str, Continuation] = {}
    for entry in given:
        if entry.policy is None:
            if entry.continuation == "tokens":
                raise SettingsError(
                    f"[[model]] name {entry.name!r} has continuation but no policy: take one, or give one"
                )
            continue
        kept = known.get(entry.policy) or Continuation(entry.policy, entry.continuation)
        policy = found.setdefault(entry.policy, kept.under(entry.continuation))
        if policy.setting != entry.continuation:
            raise SettingsError(f"[[model]] entries of policy {entry.policy!r} differ in continuation: give one value")
    return found


def _route(
    entry: ModelRoute, policies: Mapping[str, Policy], continuations: Mapping[str, Continuation], *, keys_pass: bool
) -> Route:
    secret = entry.api_key.get_secret_value() if entry.api_key else None
    policy = policies[entry.policy] if entry.policy else None
    if entry.pins is not None and policy is None:
        raise SettingsError(f"[[model]] name {entry.name!r} has pins but no policy: take them out, or give one")
    try:
        match = matcher(**entry.match.model_dump()) if entry.match else None
    except InputError as error:
        raise SettingsError(f"bad match of [[model]] name {entry.name!r}: {error}") from error
    return Route(
        entry.name,
        entry.upstreams,
        policy,
        f"Bearer {secret}" if secret else None if keys_pass else "",
        served=entry.served,
        pins=entry.pins.sampling if entry.pins else NO_PINS,
        pins_all=entry.pin_calls == "all",
        match=None if match == Matcher() else match,
        continuation=continuations.get(entry.policy or ""),
    )
