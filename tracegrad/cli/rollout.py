"""`tracegrad rollout`."""

EXAMPLE = "Example: tracegrad rollout"


def command() -> None:
    """Not there yet."""
    raise NotImplementedError
