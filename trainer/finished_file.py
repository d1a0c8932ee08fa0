"""A file that is there as a whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracegrad.errors import InputError


@contextmanager
def finished_file(path: Path, *, force: bool) -> Iterator[Path]:
    """Gives a draft beside `path` to write to; it gets its name at the end of the block, on the disk.

    Whatever ends the block before leaves nothing behind. A link stays one: what it points to is written. Raises
    InputError where `path` exists and `force` is not set, or where no file can be written.
    """
    path = path.resolve()
    if path.is_dir():
        raise InputError(f"{path} is a directory: give --out the name of a file")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a device or a pipe, which cannot be replaced: give --out the name of a file")
    if path.exists() and not force:
        raise InputError(f"{path} exists: give another --out, or --force to replace it")
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        draft.touch()
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        yield draft
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        if path.exists() and not force:
            raise InputError(f"{path} has come into being meanwhile: give another --out, or --force to replace it")
        draft.replace(path)
    except OSError as error:
        raise InputError(f"{path} could not be written: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
