"""`tracegrad up`."""

EXAMPLE = "Example: tracegrad up"


def command() -> None:
    """Not there yet."""
    raise NotImplementedError
