"""The values that all other packages share: grants, GPUs, requests, jobs and their units.

All of them are immutable. Nothing here does input or output or imports another package.

- `compute`: how a slice fares with its share of compute time.
- `due`: the actions that bring the workers of a job to the state in its record.
- `errors`: the errors that Aliquot raises for people.
- `gpu`: a GPU, its links and the processes on it.
- `grant`: slices, and the grants that have them.
- `grant_change`: a requested change of a running grant.
- `job`: what a user submits.
- `lifecycle`: the transitions of a job.
- `record`: the state of a job, as it is stored.
- `request`: what one worker asks for.
- `units`: amounts of memory and shares of compute time, as people write them.
"""

from aliquot.model.compute import ComputeUse, Gates, Turn
from aliquot.model.gpu import Gpu, GpuProcess, Link
from aliquot.model.grant import (
    MAX_SLICES,
    Grant,
    GrantState,
    Life,
    Policy,
    Priority,
    Process,
    Slice,
    SliceUse,
    check_name,
)
from aliquot.model.grant_change import GrantChange
from aliquot.model.request import Request
from aliquot.model.units import Amount, format_bytes, format_share, parse_amount, parse_share

__all__ = [
    "MAX_SLICES",
    "Amount",
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
    "check_name",
    "format_bytes",
    "format_share",
    "parse_amount",
    "parse_share",
]
