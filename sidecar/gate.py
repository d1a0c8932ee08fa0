"""Who may call, and how much at a time."""

import contextlib
from collections.abc import Iterator, Mapping

from sidecar.dialect import Caller


class Gate:
    """Admits calls to the agents' port."""

    max_body_bytes = 64 << 20
    timeout_s: float | None = None
    """How long one call may take, from its arrival to its last byte; None: as long as it likes."""

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who asks. Raises Refusal (401)."""
        return Caller()

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        """Hold one of the places for calls at a time. Raises Refusal (429) where none is free."""
        yield
