"""What routing and prompt overrides may look at in a call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.dialect import Dialect


@dataclass(frozen=True)
class Facts:
    """One call before it is routed."""

    dialect: Dialect
    body: Mapping[str, Any]
    model: str | None
    """The model name asked for; None without one."""
    rollout_id: str | None
    """The rollout that path, header or baggage name; None where the id is only that of the trace."""
    agent: str | None
    """The `x-tracegrad-agent` header."""

    @property
    def system(self) -> str:
        """The system prompt's text; empty where there is none."""
        return self.dialect.system(dict(self.body))
