"""The values that all other packages share, and the state machine of a job.

All of them are immutable. Nothing here does input or output or imports another package.

- `actions`: what a controller must do to the workers now: start, notify, kill, freeze, release.
- `compute`: the figures of a slice's compute time: used, waits, fallbacks.
- `errors`: the errors that Aliquot raises for people.
- `gpu`: a GPU, its links and the processes on it.
- `grant`: slices, and the grants that have them: memory, share, policy and priority.
- `grant_change`: a requested change of a running grant.
- `job`: what a user submits, and the phases of a job.
- `job_state`: the state of a job as it is stored, and what is observed of its workers.
- `lifecycle`: which workers of a job start and stop, and when, if it grows, shrinks or fails.
- `request`: what one worker asks for: GPUs, memory, compute, priority.
- `units`: amounts of memory and shares of compute time, as people write them.
"""

from aliquot.model.compute import ComputeUse, Gates, Turn
from aliquot.model.gpu import Gpu, GpuProcess, Link
from aliquot.model.grant import (
    MAX_SLICES,
    Cdi,
    Grant,
    GrantState,
    Life,
    Policy,
    Priority,
    Process,
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
    format_share,
    parse_amount,
    parse_share,
)

__all__ = [
    "MAX_SLICES",
    "Amount",
    "Cdi",
    "ComputeUse",
    "Gates",
    "Gpu",
    "GpuProcess",
    "Grant",
    "GrantChange",
    "GrantState",
    "Life",
    "Link",
    "Policy",
    "Priority",
    "Process",
    "Request",
    "Slice",
    "SliceUse",
    "Turn",
    "Unjoined",
    "check_name",
    "format_bytes",
    "format_count",
    "format_share",
    "name_for",
    "parse_amount",
    "parse_share",
]
