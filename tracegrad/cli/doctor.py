"""`tracegrad doctor`."""

EXAMPLE = "Example: tracegrad doctor"


def command() -> None:
    """Not there yet."""
    raise NotImplementedError
