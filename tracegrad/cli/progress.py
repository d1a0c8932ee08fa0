"""How far long work is: a line that is written over on a terminal, and plain lines now and then elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_EVERY = 100_000


@contextmanager
def counting(done: str, things: str) -> Iterator[Callable[[int], None]]:
    """Gives a function to be told how many there are so far: `read 3000 records`."""
    on_terminal = sys.stderr.isatty()
    told = 0

    def progress(count: int) -> None:
        nonlocal told
        if on_terminal:
            sys.stderr.write(f"\r{done} {count} {things}")
        elif count - told >= LINE_EVERY:
            sys.stderr.write(f"{done} {count} {things}\n")
        else:
            return
        told = count
        sys.stderr.flush()

    try:
        yield progress
    finally:
        if on_terminal and told:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
