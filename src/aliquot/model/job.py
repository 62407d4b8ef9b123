"""A job: a command run by several workers, whose number may vary between bounds."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError
from aliquot.model.grant import Isolation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.model.grant import Priority
    from aliquot.model.request import Request
    from aliquot.model.units import Amount

# The indices of an array, and how many of its jobs run at once at most; None means no limit.
Indices = tuple[tuple[int, ...], int | None]

MAX_WORKERS = 1024
LONGEST_SECONDS = 10 * 365 * 86400.0
DEFAULT_QUEUE = "default"
MAX_ARRAY = 1000
MAX_INDEX = 99_999
MAX_AT_ONCE = 9_999
INDICES_EXAMPLES = "Write for example 1-10, 1,4,7 or 0-99%4 (at most 4 at once)."
SIZES_EXAMPLES = "Write for example 4, 1..4, 1..8:pow2 (1, 2, 4, 8) or 2,3,6."

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,29}", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,5})\.\.([0-9]{1,5})(:pow2)?", re.ASCII)
_INDICES = re.compile(
    r"(?P<list>[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?){0,999})"
    r"(?:%(?P<at_once>[0-9]{1,4}))?",
    re.ASCII,
)
# The conditions of `sbatch --dependency`, which come before the job.
_SLURM_DEPENDENCIES = ("after:", "afterok:", "afterany:", "afternotok:", "aftercorr:")
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
    CANCELLING = "Cancelling"
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


class Needs(StrEnum):
    """How a job that another one waits for must end: successfully, or in any way."""

    OK = "ok"
    ANY = "any"


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
class Dependency:
    """A job starts only after the job `job`. The user names it; the pool stores its number."""

    job: str
    needs: Needs = Needs.OK

    def __str__(self) -> str:
        return f"{self.job}:{self.needs}"


@dataclass(frozen=True, slots=True)
class ArrayIndex:
    """The place of a job in an array: jobs that differ only in their index.

    The array `name` runs at most `at_once` of its jobs at the same time; None means no limit.
    `begun` is when the array was submitted, if this job was added to it later.
    """

    name: str
    index: int
    at_once: int | None = None
    begun: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the user submitted it. It never changes; its `JobState` does.

    - `request`: what each worker asks for.
    - `urgency`: jobs of the same queue with a larger number start first.
    - `live`: the program adapts to a new size while it runs, so a resize stops only the workers
      above the new size.
    - `retries`: how often the job is started again after a worker failed.
    - `notice_seconds`: how long before SIGTERM workers get a notice.
    - `grace_seconds`: how long after SIGTERM workers get SIGKILL.
    - `time_seconds`: how long the job may have workers; None means no limit.
    - `after`: the jobs that must end before this one starts.
    - `array`: its place in an array, if it belongs to one.
    """

    number: int
    name: str
    command: tuple[str, ...]
    request: Request
    sizes: Sizes = Sizes()
    queue: str = DEFAULT_QUEUE
    urgency: int = 0
    live: bool = False
    retries: int = 0
    notice_seconds: float = 30.0
    grace_seconds: float = 10.0
    submitted: float = 0.0
    time_seconds: float | None = None
    after: tuple[Dependency, ...] = ()
    array: ArrayIndex | None = None

    def __post_init__(self) -> None:
        who = f"job {self.name}" if self.name else "the job"
        if not self.command:
            raise InvalidValueError(f"{who} has no command", "Write it after --.")
        if self.request.isolation is Isolation.HARDWARE:
            raise InvalidValueError(
                "jobs cannot have --isolation hardware: the pool makes no instances of a GPU",
                "Use aliquot run --isolation hardware, or ask for a whole GPU: leave out"
                " --isolation, --memory and --compute.",
            )
        if self.retries < 0 or min(self.notice_seconds, self.grace_seconds) < 0:
            raise InvalidValueError(f"{who} has negative retries or times", "Give 0 or more.")
        if self.time_seconds is not None and not 0 < self.time_seconds <= LONGEST_SECONDS:
            raise InvalidValueError(
                f"{who} cannot have a time limit of {self.time_seconds:g} s",
                "Give more than 0 and at most 10 years, or no --time for no limit.",
            )

    @property
    def array_begun(self) -> float:
        """When its array was submitted: the name of an array may be used again later."""
        begun = None if self.array is None else self.array.begun
        return self.submitted if begun is None else begun

    def __str__(self) -> str:
        return f"{self.name} ({self.number})"


@dataclass(frozen=True, slots=True)
class JobChange:
    """New values for a job that was submitted; None keeps what it has.

    `time_seconds` 0 means no limit. `priority` is that of its slices.
    """

    memory: Amount | None = None
    compute_percent: int | None = None
    priority: Priority | None = None
    sizes: Sizes | None = None
    queue: str | None = None
    urgency: int | None = None
    time_seconds: float | None = None

    @property
    def needs_waiting(self) -> tuple[str, ...]:
        """The options among these that cannot change while the job has workers."""
        values = {
            "--memory": self.memory,
            "--compute": self.compute_percent,
            "--priority": self.priority,
            "--workers": self.sizes,
            "--queue": self.queue,
        }
        return tuple(option for option, value in values.items() if value is not None)

    def apply(self, job: Job) -> Job:
        """The job with these values."""
        request = job.request
        if self.memory is not None:
            request = replace(request, memory=self.memory)
        if self.compute_percent is not None:
            request = replace(request, compute_percent=self.compute_percent)
        if self.priority is not None:
            request = replace(request, priority=self.priority)
        limit = job.time_seconds if self.time_seconds is None else self.time_seconds or None
        return replace(
            job,
            request=request,
            sizes=self.sizes or job.sizes,
            queue=self.queue or job.queue,
            urgency=job.urgency if self.urgency is None else self.urgency,
            time_seconds=limit,
        )


def parse_indices(text: str) -> Indices:
    """Read `1-10`, `1,4,7`, `0-99%4`: the indices of an array, and how many run at once at most."""
    match = _INDICES.fullmatch(text.strip())
    if match is None:
        raise InvalidValueError(f"{text!r} are not indices of an array", INDICES_EXAMPLES)
    found: list[int] = []
    for part in match["list"].split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first) or int(last or first) - int(first) >= MAX_ARRAY:
            raise InvalidValueError(
                f"{text!r}: {part} is no range of at most {MAX_ARRAY}", INDICES_EXAMPLES
            )
        found += range(int(first), int(last or first) + 1)
    at_once = int(match["at_once"]) if match["at_once"] else None
    return check_indices(found, at_once), at_once


def check_indices(indices: Sequence[int], at_once: int | None) -> tuple[int, ...]:
    """The indices in order, if they are valid for one array; else InvalidValueError."""
    ordered = tuple(sorted(set(indices)))
    if not ordered or len(ordered) != len(indices) or len(ordered) > MAX_ARRAY:
        raise InvalidValueError(
            f"an array has 1 to {MAX_ARRAY} different indices", INDICES_EXAMPLES
        )
    limited = at_once is None or 1 <= at_once <= MAX_AT_ONCE
    if ordered[0] < 0 or ordered[-1] > MAX_INDEX or not limited:
        raise InvalidValueError(
            f"an array has indices from 0 to {MAX_INDEX}, and runs 1 to {MAX_AT_ONCE} jobs at once",
            INDICES_EXAMPLES,
        )
    return ordered


def parse_dependency(text: str) -> Dependency:
    """Read `JOB`, `JOB:ok` or `JOB:any`."""
    if text.strip().startswith(_SLURM_DEPENDENCIES):
        raise InvalidValueError(
            f"{text!r} is not a job to start after",
            "Write JOB if it must succeed, or JOB:any if it must only end; for several jobs give"
            " --after several times.",
        )
    job, colon, needs = text.strip().rpartition(":")
    if colon and needs in set(Needs):
        return Dependency(job, Needs(needs))
    return Dependency(text.strip())


def parse_phase(text: str) -> JobPhase:
    """Read a phase, as `Pending` or `pending`."""
    try:
        return JobPhase(text.strip().capitalize())
    except ValueError as error:
        phases = ", ".join(phase.lower() for phase in JobPhase)
        raise InvalidValueError(f"{text!r} is not a phase", f"Choose one of {phases}.") from error


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
            raise InvalidValueError(
                f"{text!r} is too many: a job has at most {MAX_WORKERS} workers", SIZES_EXAMPLES
            )
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
