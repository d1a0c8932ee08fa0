"""What routing and prompt overrides may look at in a call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sidecar.dialect import Dialect, Json


@dataclass(frozen=True)
class Facts:
    """One call before it is routed."""

    dialect: Dialect
    body: Json
    model: str | None
    """The model name asked for; None without one."""
    rollout_id: str | None
    """The rollout that path, header or baggage name; None where the id is only that of the trace."""
    agent: str | None
    """The `x-tracegrad-agent` header."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The request's headers; names are looked up in any case."""

    @cached_property
    def system(self) -> str:
        """The system prompt's text, before any override; empty where there is none."""
        return self.dialect.system(self.body)
