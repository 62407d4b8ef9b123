"""What one worker asks for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError
from aliquot.model.grant import (
    MAX_SLICES,
    OVERCOMMIT_MOST,
    Isolation,
    Policy,
    Priority,
    Slice,
    check_together,
)
from aliquot.model.neighbours import Neighbours, Occupant
from aliquot.model.selection import GpuSelection
from aliquot.model.strength import check_strength
from aliquot.model.units import MIB, Amount, format_bytes

if TYPE_CHECKING:
    from aliquot.model.gpu import Gpu
    from aliquot.model.parking_rule import ParkingRule

LEAST_SWAP_WAIT, MOST_SWAP_WAIT = 2.0, 3600.0  # seconds


@dataclass(frozen=True, slots=True)
class Request:
    """How many different GPUs, and how much of each.

    Without `memory`, a share of the compute time comes with the same share of the memory; without
    both it asks for whole GPUs.

    A GPU weaker than `min_strength` (see `model.strength`) does not fit.

    `which` says which GPUs may be used. `among` are the UUIDs of the GPUs to choose from, which the
    pool decides; None means all of them.

    `neighbours` says which slices may be beside it. `owner` is the user whose labels count, which
    is not the request's to say; None: nobody's.

    Grants of one user with the same `together` hold their GPUs together: their kernels may wait for
    each other.

    With `swap` its memory can leave the GPU while its programs wait. `park_after` says when it
    leaves by itself because they are idle; it returns when one needs it. None: as the queue says,
    else never.

    If it takes turns with memory, it shall be off its GPU for at most `swap_wait` seconds at a
    time; 0: as long as is usual.

    While it takes turns, all slices of its GPU may have `overcommit` times the GPU's memory, which
    its queue says; 0: as the machine says.

    When its memory on the GPU is full, its programs get up to `spill` bytes of the host's.

    `isolation` says what keeps its slices apart from others of the same GPU.
    """

    gpus: int = 1
    memory: Amount | None = None
    compute_percent: int = 0
    policy: Policy = Policy.ELASTIC
    priority: Priority = Priority.NORMAL
    together: str | None = None
    among: tuple[str, ...] | None = None
    min_strength: float = 0.0
    which: GpuSelection = field(default_factory=GpuSelection)
    neighbours: Neighbours = field(default_factory=Neighbours)
    owner: int | None = None
    swap: bool | None = None
    park_after: ParkingRule | None = None
    swap_wait: float = 0.0
    overcommit: float = 0.0
    spill: int = 0
    isolation: Isolation = Isolation.SOFT

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= MAX_SLICES:
            raise InvalidValueError(
                f"a grant cannot have {self.gpus} GPUs", f"Ask for 1 to {MAX_SLICES}."
            )
        if not 0 <= self.compute_percent <= 100:
            raise InvalidValueError(
                f"{self.compute_percent} is not a valid share of a GPU's compute time",
                "Write 1 to 100 (percent), or leave it out for an equal part.",
            )
        if self.min_strength:
            check_strength(self.min_strength)
        if self.policy is Policy.HARD and not self.compute_percent:
            raise InvalidValueError("--policy hard needs a share", "Add --compute PERCENT.")
        if self.together is not None:
            check_together(self.together)
        self._check_moving()
        if self.spill:
            self._check_spill()
        if self.isolation is Isolation.MPS:
            self._check_mps()
        if self.isolation is Isolation.HARDWARE:
            self._check_hardware()

    def _check_moving(self) -> None:
        if self.swap and self.gpus > 1:
            raise InvalidValueError(
                f"--swap is for one GPU, and {self.gpus} are asked for",
                "Leave out --swap, or ask for one GPU; a job may have several workers of one each.",
            )
        if self.swap and self.is_whole:
            raise InvalidValueError(
                "--swap needs --memory: a whole GPU has no room for what copies its memory",
                "Ask for at least 1 GiB less than the GPU has.",
            )
        if self.park_after and not self.swap:
            raise InvalidValueError(
                "--park-after needs --swap: only then can memory leave the GPU", "Add --swap."
            )
        if self.swap_wait and not self.swap:
            raise InvalidValueError(
                "--swap-wait needs --swap: only then can memory leave the GPU", "Add --swap."
            )
        if self.swap_wait and not LEAST_SWAP_WAIT <= self.swap_wait <= MOST_SWAP_WAIT:
            raise InvalidValueError(
                f"--swap-wait cannot be {self.swap_wait:g} s", "Write 2s to 1h, for example 30s."
            )

        if self.overcommit and not 1 <= self.overcommit <= OVERCOMMIT_MOST:
            raise InvalidValueError(
                f"overcommit cannot be {self.overcommit:g}", f"Write 1 to {OVERCOMMIT_MOST}."
            )

    def _check_spill(self) -> None:
        if self.gpus > 1:
            raise InvalidValueError(
                f"--spill is for one GPU, and {self.gpus} are asked for",
                "Leave out --spill, or ask for one GPU; a job may have several workers of one"
                " each.",
            )
        if self.swap:
            raise InvalidValueError(
                "--spill and --swap exclude each other: memory on the host has no place to leave"
                " to",
                "Leave out one of the two.",
            )
        if self.spill < MIB:
            raise InvalidValueError(
                f"--spill cannot be {self.spill} bytes", "Write 1 MiB or more, for example 20GiB."
            )

    def _check_mps(self) -> None:
        if self.gpus > 1:
            raise InvalidValueError(
                f"--isolation mps is for one GPU, and {self.gpus} are asked for",
                "Use --isolation soft, or ask for one GPU; a job may have several workers of one"
                " each.",
            )
        why = {
            "--swap": (self.swap, "no memory of a client of an MPS server can leave its GPU"),
            "--spill": (self.spill, "it was not tried with an MPS server"),
            "--together": (self.together, "slices of one MPS server hold their GPU together"),
        }
        for option, (given, reason) in why.items():
            if given:
                raise InvalidValueError(
                    f"{option} and --isolation mps exclude each other: {reason}",
                    "Leave out one of the two.",
                )

    def _check_hardware(self) -> None:
        why = {
            "--gpus": (self.gpus > 1, "it is an instance of one GPU"),
            "--swap": (self.swap, "memory of an instance does not leave it"),
            "--spill": (self.spill, "it was not tried with an instance"),
            "--together": (self.together, "an instance takes no turns"),
            "--model": (self.which.models, "name the GPU by its UUID with --gpu"),
            "--min-strength": (self.min_strength, "say what it needs with --compute"),
        }
        for option, (given, reason) in why.items():
            if given:
                raise InvalidValueError(
                    f"{option} and --isolation hardware exclude each other: {reason}",
                    "Leave out one of the two.",
                )

    @property
    def isolation_options(self) -> str:
        """--isolation as it was given; empty for soft slices."""
        return "" if self.isolation is Isolation.SOFT else f"--isolation {self.isolation}"

    @property
    def amount(self) -> Amount | None:
        """The memory that it asks for of each GPU; None: whole GPUs."""
        if self.memory is not None or self.compute_percent in {0, 100}:
            return self.memory
        return Amount(percent=Fraction(self.compute_percent))

    @property
    def is_whole(self) -> bool:
        """Whether it asks for whole GPUs."""
        return self.amount is None

    @property
    def swap_options(self) -> str:
        """--swap and what goes with it, as it holds; empty if its memory stays on the GPU."""
        after = f" --park-after {self.park_after}" if self.park_after else ""
        wait = f" --swap-wait {self.swap_wait:g}s" if self.swap_wait else ""
        return f"--swap{after}{wait}" if self.swap else ""

    @property
    def spill_options(self) -> str:
        """--spill as it was given; empty without it."""
        return f"--spill {format_bytes(self.spill)}" if self.spill else ""

    @property
    def occupant(self) -> Occupant:
        """Its slices as their neighbours would see them."""
        asked = self.neighbours
        return Occupant(self.owner, asked.label or "", asked.apart_from, asked.alone)

    def of_owner(self, uid: int, name: str | None) -> Request:
        """The same as that user asks for it; without a label, `name` is its label."""
        label = self.neighbours.label or name
        return replace(self, owner=uid, neighbours=replace(self.neighbours, label=label))

    def bytes_on(self, gpu: Gpu) -> int:
        """The bytes that it asks for on that GPU."""
        amount = self.amount
        return gpu.memory_bytes if amount is None else amount.of(gpu.memory_bytes)

    def slice_of(self, gpu: Gpu) -> Slice:
        """The slice of that GPU that satisfies this request."""
        return Slice(
            gpu_uuid=gpu.uuid,
            memory_bytes=self.bytes_on(gpu),
            compute_percent=self.compute_percent,
            policy=self.policy,
            priority=self.priority,
        )


@dataclass(frozen=True, slots=True)
class SwapDefault:
    """What a queue adds to requests that do not say it: `swap`, and `park_after` for those with it.

    Requests for several GPUs, for whole ones, with `spill` or not for soft slices stay as they are,
    and `latency` ones whose user does not ask for `swap`. `overcommit` is what all slices of a GPU
    may have of its memory while one of the queue takes turns there; 0: as the machine says.
    """

    swap: bool = False
    park_after: ParkingRule | None = None
    overcommit: float = 0.0

    def applied(self, request: Request) -> Request:
        """The request with what it does not say itself."""
        swap = request.swap
        if swap is None:
            swap = self.swap and request.priority is not Priority.LATENCY
        if not swap or request.gpus > 1 or request.is_whole or request.spill:
            return request
        if request.isolation is not Isolation.SOFT:
            return request
        after = self.park_after if request.park_after is None else request.park_after
        return replace(request, swap=True, park_after=after, overcommit=self.overcommit)
