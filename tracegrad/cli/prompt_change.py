"""What the options of `tracegrad prompt set` change in a prompt's definition."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracegrad.errors import InputError


@dataclass(frozen=True)
class Change:
    """One change. None: as it is."""

    text: str | None
    version: int | None
    weight: float | None
    retire: tuple[int, ...]
    match: Mapping[str, Any]
    """Part of the match -> pattern; an empty one takes the part out."""
    enabled: bool | None

    def check(self, text_file: Path | None, whole_file: Path | None) -> None:
        """Raises ValueError where the options contradict each other or say nothing."""
        has_text = self.text is not None or text_file is not None
        if self.text is not None and text_file is not None:
            raise ValueError("give --text or --text-file, not both")
        if self.weight is not None and not has_text and self.version is None:
            raise ValueError("--weight is that of a variant: give --version or --text too")
        rest = (self.version, self.weight, self.enabled, *self.match.values())
        says = has_text or bool(self.retire) or any(one is not None for one in rest)
        if whole_file is not None and says:
            raise ValueError("--file holds the whole definition: give no other option with it")
        if whole_file is None and not says:
            raise ValueError("nothing to set: give --text, --file or what is to change")

    def with_text(self, text: str) -> "Change":
        """The same with a text."""
        return replace(self, text=text)

    def applied(self, name: str, known: Mapping[str, Any] | None) -> dict[str, Any]:
        """The definition to put, from the one that there is (None: none). Raises InputError."""
        now: Mapping[str, Any] = known or {"match": {}, "variants": [], "retired": [], "enabled": True}
        variants = {one["version"]: dict(one) for one in now["variants"]}
        texts = {one["version"]: one["text"] for one in (*now["variants"], *now["retired"])}
        version = self._chosen(texts)
        if version is not None:
            if self.text is None and version not in texts:
                raise InputError(f"prompt {name!r} has no version {version}: give its --text")
            before = variants.get(version, {"weight": 1.0})
            weight = before["weight"] if self.weight is None else self.weight
            text = texts[version] if self.text is None else self.text
            variants[version] = {"version": version, "text": text, "weight": weight}
        for retired in self.retire:
            if variants.pop(retired, None) is None:
                raise InputError(f"prompt {name!r} has no version {retired} to retire")
        if not variants:
            raise InputError(f"prompt {name!r} would have no variant: give a --text, or delete or --disable it")
        match = {**now["match"], **{part: one for part, one in self.match.items() if one is not None}}
        return {
            "match": {part: one for part, one in match.items() if one},
            "variants": [variants[one] for one in sorted(variants)],
            "enabled": now["enabled"] if self.enabled is None else self.enabled,
        }

    def _chosen(self, texts: Mapping[int, str]) -> int | None:
        """The version that is meant: a text that is known has one already."""
        if self.version is not None or self.text is None:
            return self.version
        return next((one for one, text in texts.items() if text == self.text), max(texts, default=0) + 1)


def header_pair(given: str) -> tuple[str, str]:
    """Name and pattern of `NAME=REGEX`. Raises ValueError."""
    name, equals, pattern = given.partition("=")
    if not name.strip() or not equals:
        raise ValueError(f"--match-header {given!r} is not NAME=REGEX")
    return name.strip(), pattern


def described(match: Mapping[str, Any]) -> str:
    """A match in words."""
    parts = [f"{part} {one}" for part, one in match.items() if part != "header"]
    parts += [f"{name} {one}" for name, one in match.get("header", {}).items()]
    return " and ".join(parts) or "every call"
