"""What goes wrong in words a user can act on. The command line turns these into exit codes."""


class UsageError(ValueError):
    """The request cannot be met as asked: exit 2."""


class RunFailed(RuntimeError):
    """The run could not go on: exit 1."""


class NotANumber(RuntimeError):
    """The loss is infinite or undefined."""


class Interrupted(Exception):
    """Stopped by a signal after saving: exit 128 + its number."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.signal_number = signal_number
