"""Slices, and the grants that have them: memory, compute share, policy, priority and state."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from aliquot.model.names import checked_name
from aliquot.model.neighbours import Neighbours, Occupant

if TYPE_CHECKING:
    from aliquot.model.compute import ComputeUse
    from aliquot.model.gpu import GpuProcess

MAX_SLICES = 16  # of one grant: ALIQUOT_MAX_GPUS in layout.h
OVERCOMMIT_MOST = 10  # times a GPU's memory, for slices that take turns with it

_WORKER = re.compile(r"(.+)\.\d+\.\d+\.\d+", re.ASCII)  # JOB.NUMBER.GENERATION.RANK
_MOVE_FAILURES = {
    "no-mover": "the process that copies memory cannot be reached",
    "host-full": "the host has too little free memory for it",
    "gpu-full": "the GPU has too little free memory for it",
    "busy": "the GPU did not finish its work in time",
    "driver": "the driver refused a call",
    "no-copy": "its copy on the host is missing",
    "malformed": "the process that copies memory is of another version",
    "unswappable": "it has used unified memory, which cannot leave the GPU",
}

_HIDDEN = "-"  # no grant can have this name


class Policy(StrEnum):
    """Whether a slice may use compute time that others leave idle."""

    ELASTIC = "elastic"
    HARD = "hard"


class Isolation(StrEnum):
    """What keeps slices of one GPU apart (docs/isolation.md)."""

    SOFT = "soft"
    MPS = "mps"
    HARDWARE = "hardware"


class Priority(StrEnum):
    """Which slice's work goes first."""

    LATENCY = "latency"
    NORMAL = "normal"
    BACKGROUND = "background"


class Unjoined(StrEnum):
    """What the arbiter does with a process that uses a GPU in a grant's cgroup without joining."""

    REPORT = "report"
    END = "end"


class Admission(StrEnum):
    """Who may ask the arbiter for grants: every user, or only root, which runs the pool."""

    USERS = "users"
    POOL = "pool"


class Cdi(StrEnum):
    """Whether a node's containers get their grants as CDI devices, or by mounts."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Life(StrEnum):
    """When a grant ends.

    An owned grant ends with the process that made it. A kept grant stays until somebody ends it.
    A grant that was ended on request accepts no process and is removed with its last one.
    """

    OWNED = "owned"
    KEPT = "kept"
    ENDED = "ended"


class GrantState(StrEnum):
    """Whether a grant uses its slices now.

    An active grant does. While it is switching the driver freezes or thaws its processes: it still
    has its slices, its gates are open, and new processes wait before they join. The slices of a
    parked grant are free for other grants; it can leave that state only if they fit again.
    """

    ACTIVE = "active"
    SWITCHING = "switching"
    PARKED = "parked"


class Residence(StrEnum):
    """Where the memory of a swappable grant shall be."""

    GPU = "gpu"
    HOST = "host"


class ParkingStep(StrEnum):
    """Where a grant is that is parked by itself when it is idle.

    Its programs run on. While its memory leaves or returns the grant is active; away, it is parked.
    """

    NONE = "none"
    LEAVING = "leaving"
    AWAY = "away"
    RETURNING = "returning"


@dataclass(frozen=True, slots=True)
class Parking:
    """When a grant is parked because it is idle, and how often it was.

    `if_wanted`: only when somebody wants its room. `is_due`: it has been idle for so long.
    `for_seconds`: since when it is parked; None: it is not. `waits`: a program waits for its
    memory. `why`: why it was not parked, or does not come back.
    """

    after_seconds: float
    step: ParkingStep = ParkingStep.NONE
    times: int = 0
    seconds: float = 0.0
    for_seconds: float | None = None
    waits: bool = False
    why: str | None = None
    if_wanted: bool = False
    is_due: bool = False

    @property
    def reason(self) -> str | None:
        """`why` with the failure of a process in words."""
        who, colon, failure = (self.why or "").rpartition(": ")
        words = _MOVE_FAILURES.get(failure)
        return self.why if words is None else f"{who}{colon}{words}"


@dataclass(frozen=True, slots=True)
class MemoryTurns:
    """The turns with memory of a grant: with others it may have more than its GPU has.

    `is_off`: others have their turn; its programs run, and wait when they need their memory. It is
    so for `for_seconds`; it was so `times` times, for `seconds` in all and `longest_seconds` at a
    time, which shall not be more than `wait_seconds`. `why`: why it does not leave or return.
    While it takes turns on a GPU, all slices there may have `most` times its memory; None: as the
    machine says.
    """

    wait_seconds: float
    is_off: bool = False
    times: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0
    for_seconds: float | None = None
    why: str | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """What a process of a swappable grant says of its memory.

    `settled`: it has dealt with the newest request to move; then its memory is there, or `failed`
    is the reason why not, by name. `residence` is where the newest request that it has dealt with
    wanted the memory. `away_bytes` of its memory are on the host, `fixed_bytes` cannot leave the
    GPU.
    """

    residence: Residence
    settled: bool
    away_bytes: int = 0
    fixed_bytes: int = 0
    failed: str | None = None

    @property
    def is_lost(self) -> bool:
        """Whether memory that is away can never come back."""
        return self.failed == "no-copy" and self.away_bytes > 0

    @property
    def why_failed(self) -> str | None:
        """The reason in words; None if nothing failed."""
        if self.failed is None:
            return None
        return _MOVE_FAILURES.get(self.failed, "its memory could not be moved")


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of one GPU. `compute_percent` 0 means an equal part of what the others leave."""

    gpu_uuid: str
    memory_bytes: int
    compute_percent: int = 0
    policy: Policy = Policy.ELASTIC
    priority: Priority = Priority.NORMAL

    @property
    def reserved_percent(self) -> int:
        """The compute time that it reserves: none for background, which gets only idle time."""
        return 0 if self.priority is Priority.BACKGROUND else self.compute_percent


@dataclass(frozen=True, slots=True)
class SliceUse:
    """The memory that is used of one slice.

    `counted_bytes` is what programs allocated, `driver_bytes` what the driver took by itself for
    them (contexts, modules). Both count against the slice's limit.
    """

    gpu_uuid: str
    counted_bytes: int
    driver_bytes: int

    @property
    def used_bytes(self) -> int:
        """All that counts against the limit."""
        return self.counted_bytes + self.driver_bytes


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a grant. `state` is `live`, or `ending` once it is dead.

    `ties` are the reasons why the driver cannot freeze it: it has ever used `managed` memory,
    memory or events shared between processes (`ipc`), exported or imported memory (`shared`), or
    memory of the host in place of the GPU's (`host`).
    `inside` is the number of its driver calls in progress; they block while it is frozen.
    `ungated` says why its compute share is not held although the gates work; None: it is.
    `stopped`: by a signal, as Ctrl-Z sends it. `moved` is None if its grant is not swappable.
    `on_host_bytes` of its memory are the host's, because its slice was full.
    """

    pid: int
    name: str
    state: str
    use: tuple[SliceUse, ...] = ()
    ties: tuple[str, ...] = ()
    inside: int = 0
    ungated: str | None = None
    stopped: bool = False
    moved: Moved | None = None
    on_host_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """The slices of one process tree; `use[i]` and `compute[i]` belong to `slices[i]`.

    `name` is how this user names it in requests: the plain name of an own grant, `UID:NAME` of
    another user's. A grant that the arbiter shows only in part is `UID:-`, in directory "".
    `residence` is where the memory of its programs shall be; None: it is not swappable. Its
    programs may have `spill_bytes` of the host's memory and have `on_host_bytes` of it.
    One that is off its GPU because others have their turn is active: it has its slice in turn.
    """

    name: str
    directory: str
    owner_pid: int | None  # None: it is kept, and ends with no process
    owner_alive: bool
    owner_uid: int
    created: float
    broken: str | None
    slices: tuple[Slice, ...]
    use: tuple[SliceUse, ...]
    compute: tuple[ComputeUse, ...]
    processes: tuple[Process, ...]
    life: Life = Life.OWNED
    state: GrantState = GrantState.ACTIVE
    together: str | None = None  # grants of one owner with the same word hold GPUs together
    neighbours: Neighbours = field(default_factory=Neighbours)
    cgroup: str | None = None  # of its container, if the arbiter knows it
    cgroup_is_told: bool = False  # not only learned from its processes
    residence: Residence | None = None
    staying_bytes: int = 0  # while it is parked: what is left on its GPU
    parking: Parking | None = None  # None: it stays on its GPU when it is idle
    turns: MemoryTurns | None = None  # None: it stays on its GPU while it is active
    unjoined: tuple[GpuProcess, ...] = ()  # what uses its GPUs in its cgroup and has not joined
    spill_bytes: int = 0
    on_host_bytes: int = 0
    isolation: Isolation = Isolation.SOFT

    @property
    def plain_name(self) -> str:
        """The name that its owner gave it."""
        return self.name.rpartition(":")[2]

    @property
    def is_swappable(self) -> bool:
        """Whether the memory of its programs can leave the GPU."""
        return self.residence is not None

    @property
    def away_bytes(self) -> int:
        """The memory of its programs that is on the host."""
        return sum(one.moved.away_bytes for one in self.processes if one.moved)

    @property
    def fixed_bytes(self) -> int:
        """The memory of its programs that cannot leave the GPU."""
        return sum(one.moved.fixed_bytes for one in self.processes if one.moved)

    @property
    def idle_seconds(self) -> float | None:
        """For how long it has used no GPU; None if that is not known, or it is not active."""
        known = [one.idle_seconds for one in self.compute if one.idle_seconds is not None]
        is_known = self.state is GrantState.ACTIVE and len(known) == len(self.slices)
        return min(known, default=None) if is_known else None

    @property
    def is_idle_parked(self) -> bool:
        """Whether it is parked because it is idle: its programs run, and it returns by itself."""
        away = self.parking is not None and self.parking.step is ParkingStep.AWAY
        return away and self.state is GrantState.PARKED

    @property
    def has_left(self) -> bool:
        """Whether its slices are free for others; not if its programs wait to return."""
        waits = self.is_idle_parked and self.parking is not None and self.parking.waits
        return self.state is GrantState.PARKED and not waits

    @property
    def is_hidden(self) -> bool:
        """Whether it is another user's, and this user may not see its name and processes."""
        return self.plain_name == _HIDDEN

    @property
    def label(self) -> str:
        """The name for a sentence."""
        return "another user's" if self.is_hidden else self.name

    @property
    def occupant(self) -> Occupant:
        """Its slices as their neighbours see them."""
        asked = self.neighbours
        label = asked.label or self._own_label
        return Occupant(self.owner_uid, label, asked.apart_from, asked.alone)

    @property
    def _own_label(self) -> str:
        """Its name; of a worker that an earlier version started, the name of its job."""
        match = _WORKER.fullmatch(self.plain_name) if self.life is Life.KEPT else None
        return match[1] if match else self.plain_name

    def slices_on(self, gpu_uuid: str) -> tuple[Slice, ...]:
        """Its slices of a GPU; none while it is parked."""
        if self.has_left:
            return ()
        return tuple(part for part in self.slices if part.gpu_uuid == gpu_uuid)

    def bytes_on(self, gpu_uuid: str) -> int:
        """The memory that it has of a GPU, used or not; of a parked one, what it left there."""
        if self.has_left:
            return self.staying_bytes if gpu_uuid == self.slices[0].gpu_uuid else 0
        return sum(part.memory_bytes for part in self.slices_on(gpu_uuid))

    def reserved_percent_on(self, gpu_uuid: str) -> int:
        """The compute time of a GPU that it reserves."""
        return sum(part.reserved_percent for part in self.slices_on(gpu_uuid))


def name_for(uid: int, owner_uid: int, name: str | None) -> str:
    """How user `uid` names a grant; None as its name: the user may not know it."""
    return name if owner_uid == uid and name else f"{owner_uid}:{name or _HIDDEN}"


def check_name(name: str) -> str:
    """The name, unchanged; InvalidValueError if it is not valid for a grant."""
    return checked_name(name, f"{name!r} is not a valid name for a grant")


def check_together(name: str) -> str:
    """The name, unchanged; InvalidValueError if it is not valid for grants that run together."""
    return checked_name(name, f"--together {name!r} is not a valid name")
