"""The one tree of errors that Aliquot raises for people.

Each error says what is wrong, naming the thing, and, where there is one, the way out. Anything
that is not an AliquotError is a defect.
"""


class AliquotError(Exception):
    """What went wrong, and what to do about it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  {self.hint}"


class InvalidValueError(AliquotError):
    """A value that a person wrote cannot be understood or is out of range."""


class NoGpuError(AliquotError):
    """This machine has no GPU that a program could use."""


class DriverError(AliquotError):
    """The driver is missing a part, is too old, or does not answer."""


class NoCapacityError(AliquotError):
    """No GPU, or not enough different GPUs, can hold what was asked for."""


class NameInUseError(AliquotError):
    """A grant with this name exists."""


class NoSuchGrantError(AliquotError):
    """No grant has this name, or more than one has."""


class MemoryInUseError(AliquotError):
    """A limit was to go below what is in use."""


class NotOwnerError(AliquotError):
    """The grant is another user's."""


class UnsupportedError(AliquotError):
    """This GPU or its driver cannot do what was asked for."""


class NestedGrantError(AliquotError):
    """A grant was asked for from inside a grant."""


class StateError(AliquotError):
    """The state directory, or something in it, cannot be made or trusted."""


class ArbiterError(AliquotError):
    """The arbiter does not start, does not answer, or answers what nobody understands."""


class InstallationError(AliquotError):
    """A file of Aliquot itself is missing or is not what it should be."""


class OutputError(AliquotError):
    """Standard output does not take what is written to it."""


class CommandNotFoundError(AliquotError):
    """The command to run does not exist."""


class CommandNotExecutableError(AliquotError):
    """The command to run exists and may not be executed."""
