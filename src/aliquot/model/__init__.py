"""The values that all other packages share, and the state machine of a job.

All of them are immutable. Nothing here does input or output or imports another package.

- `actions`: what a controller must do to the workers now: start, notify, kill, freeze, release.
- `compute`: the figures of a slice's compute time: used, waits, fallbacks.
- `errors`: the errors that Aliquot raises for people.
- `gpu`: a GPU, its links and the processes on it.
- `grant`: slices, and the grants that have them: memory, share, policy and priority.
- `grant_change`: a requested change of a running grant.
- `idle`: what a queue does about jobs that use no GPU.
- `instance`: instances of a GPU (MIG): their profiles and places.
- `job`: what a user submits, and the phases of a job.
- `job_state`: the state of a job as it is stored, and what is observed of its workers.
- `lifecycle`: which workers of a job start and stop, and when, if it grows, shrinks or fails.
- `names`: the names of grants and labels.
- `neighbours`: which slices may be on one GPU: with a label, apart from labels, or alone.
- `owner`: the user that a job belongs to.
- `parking_rule`: when the memory of an idle program leaves its GPU.
- `request`: what one worker asks for: GPUs, memory, compute, priority; and defaults for it.
- `selection`: which GPUs a request may use: by model, by name, and not those.
- `strength`: how strong a GPU is, by its model or by what it reports.
- `units`: amounts of memory, durations and shares of compute time, as people write them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot import lazy

if TYPE_CHECKING:
    from aliquot.model.compute import ComputeUse, Gates, Turn, busy_steps
    from aliquot.model.gpu import Gpu, GpuProcess, Link
    from aliquot.model.grant import (
        MAX_SLICES,
        Admission,
        Cdi,
        Grant,
        GrantState,
        Isolation,
        Life,
        MemoryTurns,
        Moved,
        Parking,
        ParkingStep,
        Policy,
        Priority,
        Process,
        Residence,
        Slice,
        SliceUse,
        Unjoined,
        check_name,
        name_for,
    )
    from aliquot.model.grant_change import GrantChange
    from aliquot.model.request import Request
    from aliquot.model.units import (
        Amount,
        format_bytes,
        format_count,
        format_duration,
        format_share,
        parse_amount,
        parse_duration,
        parse_host_memory,
        parse_share,
    )

__all__ = [
    "MAX_SLICES",
    "Admission",
    "Amount",
    "Cdi",
    "ComputeUse",
    "Gates",
    "Gpu",
    "GpuProcess",
    "Grant",
    "GrantChange",
    "GrantState",
    "Isolation",
    "Life",
    "Link",
    "MemoryTurns",
    "Moved",
    "Parking",
    "ParkingStep",
    "Policy",
    "Priority",
    "Process",
    "Request",
    "Residence",
    "Slice",
    "SliceUse",
    "Turn",
    "Unjoined",
    "busy_steps",
    "check_name",
    "format_bytes",
    "format_count",
    "format_duration",
    "format_share",
    "name_for",
    "parse_amount",
    "parse_duration",
    "parse_host_memory",
    "parse_share",
]

__getattr__ = lazy.names_of(
    __name__,
    {
        "compute": "ComputeUse Gates Turn busy_steps",
        "gpu": "Gpu GpuProcess Link",
        "grant": "MAX_SLICES Admission Cdi Grant GrantState Isolation Life MemoryTurns Moved "
        "Parking ParkingStep Policy Priority Process Residence Slice SliceUse Unjoined check_name "
        "name_for",
        "grant_change": "GrantChange",
        "request": "Request",
        "units": "Amount format_bytes format_count format_duration format_share parse_amount "
        "parse_duration parse_host_memory parse_share",
    },
)
