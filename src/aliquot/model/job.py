"""A job: a command run by several workers, whose number may vary between bounds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from aliquot.model.request import Request

MAX_WORKERS = 1024
SIZES_EXAMPLES = "Write for example 4, 1..4, 1..8:pow2 (1, 2, 4, 8) or 2,3,6."

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,29}", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,5})\.\.([0-9]{1,5})(:pow2)?", re.ASCII)
_LIST = re.compile(r"[0-9]{1,5}(,[0-9]{1,5})*", re.ASCII)


class JobPhase(StrEnum):
    """The phase of a job. `lifecycle` defines the transitions."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    GROWING = "Growing"
    SHRINKING = "Shrinking"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    MIGRATING = "Migrating"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    @property
    def final(self) -> bool:
        """Whether the job is finished: no other phase follows."""
        return self in _FINAL

    @property
    def inactive(self) -> bool:
        """Whether no worker of the job runs and it has no GPU."""
        return self.final or self in {JobPhase.PENDING, JobPhase.SUSPENDED}

    @property
    def notice_kind(self) -> str:
        """The `kind` of the notice that its workers get before they are stopped."""
        return _NOTICES.get(self, "stop")


_NOTICES = {
    JobPhase.GROWING: "grow",
    JobPhase.SHRINKING: "shrink",
    JobPhase.MIGRATING: "migrate",
    JobPhase.SUSPENDING: "suspend",
}
_FINAL = frozenset({JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.CANCELLED})


class Desired(StrEnum):
    """What the user wants the job to do. CANCEL cannot be taken back."""

    RUN = "run"
    SUSPEND = "suspend"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of workers that a job can run with, in ascending order."""

    allowed: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        if not self.allowed or list(self.allowed) != sorted(set(self.allowed)):
            raise InvalidValueError(f"{self.allowed} are not valid sizes of a job", SIZES_EXAMPLES)
        if self.allowed[0] < 1 or self.allowed[-1] > MAX_WORKERS:
            raise InvalidValueError(
                f"a job cannot have {self} workers", f"It has 1 to {MAX_WORKERS}. {SIZES_EXAMPLES}"
            )

    @property
    def least(self) -> int:
        """The smallest size."""
        return self.allowed[0]

    @property
    def most(self) -> int:
        """The largest size."""
        return self.allowed[-1]

    @property
    def elastic(self) -> bool:
        """Whether there is more than one size."""
        return len(self.allowed) > 1

    def above(self, size: int) -> int | None:
        """The next larger size."""
        return next((one for one in self.allowed if one > size), None)

    def below(self, size: int) -> int | None:
        """The next smaller size."""
        return next((one for one in reversed(self.allowed) if one < size), None)

    def __str__(self) -> str:
        if self.allowed == tuple(range(self.least, self.most + 1)):
            return f"{self.least}..{self.most}" if self.elastic else str(self.least)
        return ",".join(map(str, self.allowed))


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the user submitted it. It never changes; its `JobState` does.

    - `request`: what each worker asks for.
    - `live`: the program adapts to a new size while it runs, so a resize stops only the workers
      above the new size.
    - `retries`: how often the job is started again after a worker failed.
    - `notice_seconds`: how long before SIGTERM workers get a notice.
    - `grace_seconds`: how long after SIGTERM workers get SIGKILL.
    """

    number: int
    name: str
    command: tuple[str, ...]
    request: Request
    sizes: Sizes = Sizes()
    queue: str = "default"
    priority: int = 0
    live: bool = False
    retries: int = 0
    notice_seconds: float = 30.0
    grace_seconds: float = 10.0
    submitted: float = 0.0

    def __post_init__(self) -> None:
        if not self.command:
            raise InvalidValueError(f"job {self.name} has no command")
        if self.retries < 0 or min(self.notice_seconds, self.grace_seconds) < 0:
            raise InvalidValueError(f"job {self.name}: retries and times must not be negative")

    def __str__(self) -> str:
        return f"{self.name} ({self.number})"


def parse_sizes(text: str) -> Sizes:
    """Read `4`, `1..4`, `1..8:pow2` or `2,3,6`."""
    text = text.strip()
    if match := _RANGE.fullmatch(text):
        least, most = int(match[1]), int(match[2])
        if most < least:
            raise InvalidValueError(
                f"{text!r}: the maximum {most} is below the minimum {least}", SIZES_EXAMPLES
            )
        if most > MAX_WORKERS:
            raise InvalidValueError(f"{text!r}: a job has at most {MAX_WORKERS} workers")
        return _powers(text, least, most) if match[3] else Sizes(tuple(range(least, most + 1)))
    if _LIST.fullmatch(text):
        return Sizes(tuple(sorted({int(word) for word in text.split(",")})))
    raise InvalidValueError(f"{text!r} is not a number of workers", SIZES_EXAMPLES)


def check_job_name(name: str) -> str:
    """The name, if it is a valid name of a job; else InvalidValueError."""
    if _NAME.fullmatch(name) is None or name.isdecimal():
        raise InvalidValueError(
            f"{name!r} is not a valid name for a job",
            "A name has 1 to 30 of A-Z a-z 0-9 _ -, begins with a letter or a digit, and is not"
            " a number.",
        )
    return name


def _powers(text: str, least: int, most: int) -> Sizes:
    powers = (1 << bit for bit in range(MAX_WORKERS.bit_length()))
    if found := tuple(size for size in powers if least <= size <= most):
        return Sizes(found)
    raise InvalidValueError(f"{text!r}: the range has no power of two", SIZES_EXAMPLES)
