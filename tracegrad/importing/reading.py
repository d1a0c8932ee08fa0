"""Files of traces, value by value, in whichever of the formats they are."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracegrad.errors import InputError
from tracegrad.importing.foreign import ForeignScore, ForeignSpan, Found, NotThisFormatError
from tracegrad.importing.json_values import Place, json_values
from tracegrad.importing.langfuse import is_langfuse, langfuse_spans
from tracegrad.importing.openinference import is_span, openinference_spans
from tracegrad.importing.otlp_json import is_otlp, otlp_spans
from tracegrad.importing.records import own_attribute

AUTO = "auto"


@dataclass(frozen=True)
class Format:
    """`is_it`: whether a value looks like it. `read`: what it holds; the time is for what has none."""

    is_it: Callable[[Any], bool]
    read: Callable[[Any, int], Iterator[Found]]


def _first_of(value: Any) -> Any:
    """Of a page of Phoenix's spans the first, else the value."""
    page = value.get("data", value.get("spans")) if isinstance(value, dict) else None
    return page[0] if isinstance(page, list) and page else value


FORMATS: Mapping[str, Format] = {
    "otlp": Format(is_otlp, lambda value, _: otlp_spans(value)),
    "langfuse": Format(is_langfuse, lambda value, _: langfuse_spans(value)),
    "openinference": Format(lambda value: is_span(_first_of(value)), openinference_spans),
}
"""In the order in which they are tried."""


@dataclass(frozen=True)
class ForeignFile:
    """A file and its format, which is a name in `FORMATS`."""

    path: Path
    format: str

    def read(self) -> Iterator[Found]:
        """All that the file holds. Raises InputError."""
        at_ns = self.path.stat().st_mtime_ns
        n_spans = 0
        for place, value in json_values(self.path):
            try:
                for found in FORMATS[self.format].read(value, at_ns):
                    _refuse_own(found, place)
                    n_spans += isinstance(found, ForeignSpan)
                    yield found
            except NotThisFormatError as error:
                other = _format_of(value)
                hint = f": it looks like {other}, see --format" if other not in (None, self.format) else ""
                raise place.error(f"{error}{hint}") from error
        if n_spans == 0:
            raise InputError(f"{self.path} has no spans (as {self.format}): nothing to import from it")


def recognised(path: Path, chosen: str) -> ForeignFile:
    """The file in the chosen format or, where that is `auto`, in that of its first value. Raises InputError."""
    if chosen != AUTO:
        return ForeignFile(path, chosen)
    for place, value in json_values(path):
        if (found := _format_of(value)) is None:
            raise place.error(
                "neither OTLP JSON nor spans with GenAI or OpenInference attributes nor a trace of Langfuse: "
                "choose one with --format to learn what is missing"
            )
        return ForeignFile(path, found)
    raise InputError(f"{path} is empty")


def _format_of(value: Any) -> str | None:
    return next((name for name, known in FORMATS.items() if known.is_it(value)), None)


def _refuse_own(found: ForeignSpan | ForeignScore, place: Place) -> None:
    if isinstance(found, ForeignSpan) and (name := own_attribute(found)) is not None:
        raise place.error(
            f"span {found.told_ids.get('span_id', found.name)} is our own, as it has {name}: import is for the traces "
            "of others; send such an export to the collector's OTLP port as it is"
        )
