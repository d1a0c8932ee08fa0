"""The prompt overrides on disk: one JSON file, replaced whole, so that every process sees all of a change or none.

Texts outlive the overrides that had them: a version keeps its text even when its prompt is deleted and made again.
"""

import contextlib
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from sidecar.prompt_definition import Definition, Override
from tracegrad.errors import InputError, SettingsError, TracegradError

log = logging.getLogger(__name__)

FILE = "prompts.json"
LOOK_S = 0.1
"""A process looks for a changed file at most so often: a change is in force everywhere after this time."""
MAX_PROMPTS = 200
MAX_VERSIONS = 10_000
"""Of one prompt."""


class VersionTakenError(TracegradError):
    """The version has another text already."""


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")

    prompts: dict[str, Definition] = {}
    texts: dict[str, dict[int, str]] = {}


@dataclass(frozen=True)
class _Seen:
    overrides: tuple[Override, ...] = ()
    identity: tuple[int, int, int] | None = None
    """Of the file they were read from; None: there was none."""


@dataclass
class PromptStore:
    """The overrides of one data directory. Writers exclude each other; readers never wait."""

    directory: Path
    _seen: _Seen = field(default_factory=_Seen)
    _look_at: float = 0.0

    def __post_init__(self) -> None:
        """Raises SettingsError where the file is there but cannot be read: nothing is served with the wrong prompt."""
        self.path = self.directory / FILE
        self._seen = self._read()

    def current(self) -> tuple[Override, ...]:
        """The overrides in force, by name. Cheap enough for every call."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look()
        return self._seen.overrides

    def put(self, name: str, definition: Definition) -> Override:
        """Define a prompt anew. Raises InputError, and VersionTakenError where a version would change its text."""
        with self._changing() as document:
            texts = document.texts.setdefault(name, {})
            for variant in definition.variants:
                known = texts.get(variant.version)
                if variant.text is None and known is None:
                    raise InputError(f"bad prompt: version {variant.version} of {name!r} has no text yet: give one")
                if known is not None and variant.text not in (None, known):
                    raise VersionTakenError(
                        f"version {variant.version} of prompt {name!r} has another text: a version names one text for"
                        " ever, so use a new version"
                    )
                texts[variant.version] = variant.text or known or ""
            document.prompts[name] = definition
            if len(document.prompts) > MAX_PROMPTS or len(texts) > MAX_VERSIONS:
                raise InputError(f"there are at most {MAX_PROMPTS} prompts, with {MAX_VERSIONS} versions each")
        return next(one for one in self.fresh() if one.name == name)

    def delete(self, name: str) -> bool:
        """Take a prompt out of force; its texts stay known. False: there is no such prompt."""
        with self._changing() as document:
            return document.prompts.pop(name, None) is not None

    def fresh(self) -> tuple[Override, ...]:
        """The overrides that the file holds at this moment. Raises SettingsError."""
        self._seen = self._read()
        return self._seen.overrides

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_Document]:
        """Change the document; it is written where the block ends well, and is on disk before this returns."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / f"{FILE}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            document = self._document()
            yield document
            self._write(document)

    def _write(self, document: _Document) -> None:
        kept = {
            name: one.model_dump(exclude={"variants": {"__all__": {"text"}}}, exclude_defaults=True)
            for name, one in document.prompts.items()
        }
        content = orjson.dumps(
            {"prompts": kept, "texts": document.texts}, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
        )
        handle, written = tempfile.mkstemp(dir=self.directory, prefix=f"{FILE}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(written).replace(self.path)
        except OSError:
            Path(written).unlink(missing_ok=True)
            raise

    def _look(self) -> None:
        try:
            if self._identity() != self._seen.identity:
                self._seen = self._read()
                log.info("prompts changed count=%d", len(self._seen.overrides))
        except (OSError, SettingsError) as error:
            # What was read before stays in force; the same broken file is not read again and again.
            with contextlib.suppress(OSError):
                self._seen = _Seen(self._seen.overrides, self._identity())
            log.error("prompts stay as they were problem=%s", error)  # noqa: TRY400 - the message says it all

    def _identity(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _document(self) -> _Document:
        try:
            return _Document.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return _Document()
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
            raise SettingsError(
                f"the prompts in {self.path} cannot be read ({reason}): repair or remove the file"
            ) from error

    def _read(self) -> _Seen:
        identity = self._identity()  # first: a file that is replaced meanwhile is read again
        document = self._document()
        overrides = []
        for name, definition in sorted(document.prompts.items()):
            texts = document.texts.get(name, {})
            if lost := [one.version for one in definition.variants if one.version not in texts]:
                raise SettingsError(
                    f"{self.path} has no text of version {lost[0]} of prompt {name!r}: repair or remove the file"
                )
            overrides.append(Override(name, definition, definition.match.rule, texts))
        return _Seen(tuple(overrides), identity)
