"""The errors that Aliquot raises for people.

The message says what is wrong and names the thing. The hint, if there is one, says what to do about
it. Any other exception that reaches a user is a defect.
"""


class AliquotError(Exception):
    """Base of all errors for people: a message and an optional hint."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  {self.hint}"

    @property
    def one_line(self) -> str:
        """Message and hint as sentences of one line."""
        text = self.message if self.hint is None else f"{self.message.rstrip('.')}. {self.hint}"
        return " ".join(text.split())


class InvalidValueError(AliquotError):
    """A value that a user gave cannot be parsed or is out of range."""


class NoGpuError(AliquotError):
    """This machine has no GPU that a program could use."""


class DriverError(AliquotError):
    """The driver is missing a part, is too old, or does not answer."""


class NoCapacityError(AliquotError):
    """Too few GPUs have enough free memory or compute for the request."""


class WaitTimeoutError(AliquotError):
    """The GPUs did not become free in the time that the user was ready to wait."""


class CancelledError(AliquotError):
    """Somebody cancelled a command while it waited for GPUs."""


class UserLimitError(AliquotError):
    """The user would have more than root allows."""


class PoolAdmitsError(AliquotError):
    """The arbiter makes no grants for users directly: the machine's pool asks for them."""


class ProcessGoneError(AliquotError):
    """The process that was to own a grant has ended, or is another user's."""


class NameInUseError(AliquotError):
    """A grant with this name exists."""


class NoSuchGrantError(AliquotError):
    """No grant has this name, or more than one has."""


class NoSuchJobError(AliquotError):
    """No job has this name or number."""


class NoSuchGpuError(AliquotError):
    """No GPU has this index."""


class MemoryInUseError(AliquotError):
    """The new memory limit is below what programs use now."""


class NotOwnerError(AliquotError):
    """An arbiter belongs to another user."""


class HeldMemoryError(AliquotError):
    """The arbiter cannot end now: it holds memory of suspended programs, which would be lost."""


class UnsupportedError(AliquotError):
    """This GPU or its driver does not support the request."""


class MpsError(AliquotError):
    """A grant cannot be for clients of an MPS server, or there is no server that accepts them."""


class InstanceError(AliquotError):
    """No instance of a GPU (MIG) can be made for a request, and why."""


class NestedGrantError(AliquotError):
    """A program inside a grant asked for another grant."""


class StateError(AliquotError):
    """The state directory, or a file in it, cannot be created or trusted."""


class ArbiterError(AliquotError):
    """The arbiter does not start, does not answer, or sends an invalid answer."""


class InstallationError(AliquotError):
    """A file of Aliquot itself is missing or damaged."""


class OutputError(AliquotError):
    """Standard output cannot be written."""


class CommandNotFoundError(AliquotError):
    """The command to run does not exist."""


class CommandNotExecutableError(AliquotError):
    """The command to run exists but cannot be executed."""
