"""Ids of responses and their items. An item's id names the response it belongs to, so that it can be found again."""

import os
import re
from dataclasses import dataclass

PREFIXES = {
    **{"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"},
    "item_reference": "ref",
}
_ITEM = re.compile(r"[a-z]+_([0-9a-f]{32})([0-9a-f]{4,})")


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of one response, whose own input items come before its output items."""

    stamp: str

    @staticmethod
    def new() -> "Ids":
        """Ids that nobody can guess."""
        return Ids(os.urandom(16).hex())

    @property
    def response(self) -> str:
        """The response's id."""
        return f"resp_{self.stamp}"

    def item(self, kind: object, place: int) -> str:
        """The id of the item of type `kind` at `place`, counted over input and output."""
        return f"{PREFIXES.get(str(kind), 'item')}_{self.stamp}{place:04x}"


def response_of(item_id: str) -> str | None:
    """The id of the response that an item belongs to; None where we did not give the item its id."""
    found = _ITEM.fullmatch(item_id)
    return f"resp_{found[1]}" if found else None
