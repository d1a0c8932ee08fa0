"""Keys taken out of what is recorded. An upstream that refuses a key likes to repeat it ("Incorrect API key: sk-...").

Invariant: no text that an upstream wrote reaches a span or a log with a key that we sent there or that the client
presented. What the client gets is the upstream's own.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

HIDDEN = "***"
MIN_LENGTH = 6
"""Shorter "keys" (`EMPTY`) are placeholders, and would be found inside of words."""
_NAMED = frozenset(("authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key"))
_KEY = re.compile(r"\bsk-[\w.-]+")


def redacted(text: str, keys: Iterable[str]) -> str:
    """`text` with each key in it replaced."""
    for key in sorted(set(keys), key=len, reverse=True):
        if len(key) >= MIN_LENGTH:
            text = text.replace(key, HIDDEN)
    return text


def keys_in(headers: Mapping[str, str], authorization: str | None = None) -> Iterator[str]:
    """The keys that a request's headers hold, and one that replaces them."""
    for name, value in headers.items():
        if name.lower() in _NAMED:
            yield from _bare(value)
        yield from _KEY.findall(value)
    yield from _bare(authorization or "")


def _bare(credentials: str) -> Iterator[str]:
    """A header's value with and without its scheme."""
    yield credentials
    yield credentials.rpartition(" ")[2]
