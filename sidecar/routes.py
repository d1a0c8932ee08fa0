"""Which upstream serves a model name: the `[[model]]` entries, exact names first, then `*`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sidecar.facts import Facts
from sidecar.policy import Policy, Replica
from tracegrad.errors import SettingsError
from tracegrad.settings import ModelRoute, Settings

WILDCARD = "*"


@dataclass(frozen=True)
class Route:
    """One entry. `policy` None: calls pass through, are recorded, and never train."""

    name: str
    upstreams: tuple[str, ...]
    policy: Policy | None
    authorization: str | None
    """Replaces the caller's Authorization header; a secret."""
    served: str | None = None
    """The model name the upstream knows; None: the one asked for."""
    pins: Mapping[str, Any] = field(default_factory=dict)
    """Sampling settings of a policy, set whatever the client asked for."""

    def __repr__(self) -> str:
        return f"Route({self.name!r}, {self.upstreams!r})"


class Routes:
    """The routing table and the policies it names."""

    def __init__(self, entries: Sequence[Route]) -> None:
        self.entries = tuple(entries)
        self.policies = {route.policy.name: route.policy for route in entries if route.policy}
        self._by_name = {route.name: route for route in entries}

    def choose(self, facts: Facts) -> Route | None:
        """The route of a call; None when no entry matches."""
        return self.for_model(facts.model)

    def for_model(self, model: str | None) -> Route | None:
        """The route of a model name; None when no entry matches. Without a name: `*`, or the only entry."""
        if model is not None and model in self._by_name and model != WILDCARD:
            return self._by_name[model]
        if model is None and len(self.entries) == 1:
            return self.entries[0]
        return self._by_name.get(WILDCARD)

    @property
    def default(self) -> Route:
        """Where requests that name no model go: `*` where there is one, else the first entry."""
        return self._by_name.get(WILDCARD, self.entries[0])

    @property
    def names(self) -> tuple[str, ...]:
        """The configured model names."""
        return tuple(self._by_name)

    @property
    def upstreams(self) -> tuple[str, ...]:
        """Every upstream, once."""
        return tuple(dict.fromkeys(url for route in self.entries for url in route.upstreams))


def build_routes(settings: Settings) -> Routes:
    """The table from settings. Raises SettingsError where names repeat or an engine would serve two policies."""
    given = settings.routes
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
        engines.update({url: Replica(url) for url in urls})
        policies[name] = Policy(name, entries[0].name, tuple(engines[url] for url in urls))
    routes = Routes([_route(entry, policies) for entry in given])
    if len(routes.names) < len(given):
        raise SettingsError("two [[model]] entries have the same name: names must differ")
    return routes


def _route(entry: ModelRoute, policies: dict[str, Policy]) -> Route:
    secret = entry.api_key.get_secret_value() if entry.api_key else None
    policy = policies[entry.policy] if entry.policy else None
    return Route(entry.name, entry.upstreams, policy, f"Bearer {secret}" if secret else None)
