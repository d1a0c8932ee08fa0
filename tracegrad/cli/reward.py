"""`tracegrad reward`."""

EXAMPLE = "Example: tracegrad reward"


def command() -> None:
    """Not there yet."""
    raise NotImplementedError
