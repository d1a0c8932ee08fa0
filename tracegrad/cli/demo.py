"""`tracegrad demo`."""

EXAMPLE = "Example: tracegrad demo"


def command() -> None:
    """Not there yet."""
    raise NotImplementedError
