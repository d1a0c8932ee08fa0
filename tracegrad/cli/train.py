"""`tracegrad train`."""

EXAMPLE = "Example: tracegrad train"


def command() -> None:
    """Not there yet."""
    raise NotImplementedError
