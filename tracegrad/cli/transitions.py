"""`tracegrad transitions`."""

EXAMPLE = "Example: tracegrad transitions"


def command() -> None:
    """Not there yet."""
    raise NotImplementedError
