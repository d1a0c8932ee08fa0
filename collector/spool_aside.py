"""What the spool cannot deliver, kept for people to look at: damaged stretches of its files, and requests refused.

Invariants: everything is counted and logged in one line; of either kind at most `limit_bytes` are kept, and when the
oldest must go, a line says that too.
"""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from xxhash import xxh3_128_hexdigest

from collector.spool_segment import Reader, Record

log = logging.getLogger(__name__)


@dataclass
class Losses:
    """Since the start. `torn`: ends of files that a killed process was still writing to."""

    damaged_records: int = 0
    damaged_bytes: int = 0
    damaged_segments: int = 0
    torn: int = 0
    refused_records: int = 0
    refused_bytes: int = 0


@dataclass(frozen=True)
class Aside:
    """Directories, beside the spool's files, of what nothing reads any more."""

    spool: Path
    limit_bytes: int
    losses: Losses = field(default_factory=Losses)

    def stretch(self, reader: Reader, at: int, stop: int) -> None:
        """No whole record is there; whatever it was, it counts as one."""
        self.losses.damaged_records += 1
        self.losses.damaged_bytes += stop - at
        kept = self._keep_stretch(reader, at, stop)
        log.error("spool damaged file=%s from=%d bytes=%d: lost, a copy is in %s", reader.path, at, stop - at, kept)

    def tail(self, reader: Reader, at: int, stop: int) -> None:
        """The end of the file that was written last: a request that was hardly acknowledged."""
        self.losses.torn += 1
        kept = self._keep_stretch(reader, at, stop)
        log.warning(
            "spool torn file=%s from=%d: cut off what was being written when the process ended, a copy is in %s",
            reader.path,
            at,
            kept,
        )

    def file(self, path: Path, size: int, reason: object) -> None:
        """The file cannot be read, from somewhere on."""
        self.losses.damaged_segments += 1
        self.losses.damaged_bytes += size
        kept: Path | None = None
        try:
            directory = self._directory("damaged")
            kept = path.rename(directory / f"{time.time_ns()}-{path.name}")
            self._bound(directory, kept)
        except OSError as error:
            log.warning("spool cannot set aside file=%s error=%s", path, error)
        log.error("spool damaged file=%s bytes=%d: %s; what is left of it is in %s", path, size, reason, kept)

    def refuse(self, record: Record, reason: str) -> None:
        """The store will never take `record`. Raises OSError: then it is not kept. Again for one that is: no matter."""
        directory = self._directory("refused")
        kept = directory / f"{xxh3_128_hexdigest(record)}.otlp"
        new = not kept.exists()
        self._put(kept, record)
        self.losses.refused_records += new
        self.losses.refused_bytes += len(record) * new
        log.error("spool refused bytes=%d: %.500s; kept as %s", len(record), reason, kept)

    def _keep_stretch(self, reader: Reader, at: int, stop: int) -> Path | None:
        try:
            kept = self._directory("damaged") / f"{reader.path.stem}-{at}"
            self._put(kept, reader.bytes_at(at, stop))
        except OSError as error:
            log.warning("spool cannot set aside file=%s from=%d error=%s", reader.path, at, error)
            return None
        return kept

    def _put(self, path: Path, data: Record) -> None:
        try:
            with path.open("wb") as file:
                file.write(data)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._bound(path.parent, path)

    def _directory(self, name: str) -> Path:
        directory = self.spool / name
        directory.mkdir(mode=0o700, exist_ok=True)
        return directory

    def _bound(self, directory: Path, newest: Path) -> None:
        stats = sorted(
            ((path, path.lstat()) for path in directory.iterdir() if path.is_file() and path != newest),
            key=lambda entry: entry[1].st_mtime_ns,
        )
        size = sum(stat.st_size for _, stat in stats) + newest.lstat().st_size
        for path, stat in stats:
            if size <= self.limit_bytes:
                break
            log.warning("spool keeps too much aside: deleted file=%s bytes=%d", path, stat.st_size)
            path.unlink(missing_ok=True)
            size -= stat.st_size
