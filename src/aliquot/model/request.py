"""What one worker asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError
from aliquot.model.grant import MAX_SLICES, Policy, Priority, Slice, check_together

if TYPE_CHECKING:
    from aliquot.model.gpu import Gpu
    from aliquot.model.units import Amount


@dataclass(frozen=True, slots=True)
class Request:
    """How many different GPUs, and how much of each; without `memory`, whole GPUs.

    Grants of one user with the same `together` hold their GPUs together: their kernels may wait for
    each other.
    """

    gpus: int = 1
    memory: Amount | None = None
    compute_percent: int = 0
    policy: Policy = Policy.ELASTIC
    priority: Priority = Priority.NORMAL
    together: str | None = None

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
        if self.policy is Policy.HARD and not self.compute_percent:
            raise InvalidValueError("--policy hard needs a share: add --compute PERCENT")
        if self.together is not None:
            check_together(self.together)

    def bytes_on(self, gpu: Gpu) -> int:
        """The bytes that it asks for on that GPU."""
        return gpu.memory_bytes if self.memory is None else self.memory.of(gpu.memory_bytes)

    def slice_of(self, gpu: Gpu) -> Slice:
        """The slice of that GPU that satisfies this request."""
        return Slice(
            gpu_uuid=gpu.uuid,
            memory_bytes=self.bytes_on(gpu),
            compute_percent=self.compute_percent,
            policy=self.policy,
            priority=self.priority,
        )
