"""The errors that users meet. Every message is one line that says what is wrong and what to do about it."""


class TracegradError(Exception):
    """Base of all expected failures: the command line prints the message and exits with status 1."""


class SettingsError(TracegradError):
    """A setting is missing, unknown or malformed."""


class UnreachableError(TracegradError):
    """A process that this one needs does not answer."""


class TooLargeError(TracegradError):
    """The store has not enough memory for a query."""


class PortInUseError(TracegradError):
    """Another process listens where this one should."""

    def __init__(self, what: str, host: str, port: int) -> None:
        super().__init__(
            f"port {port} on {host} is in use, so {what} cannot start: stop what holds it or choose another port"
        )


class InputError(TracegradError):
    """A file that the user gave cannot be used as it is."""


class NothingToTrainError(TracegradError):
    """There is no new, complete and rewarded rollout."""
