"""The nouns and their units, as immutable values: no input, no output, no other layer."""

from aliquot.model.change import Change
from aliquot.model.compute import ComputeUse, Gates, Turn
from aliquot.model.gpu import Gpu, GpuProcess, Link
from aliquot.model.grant import (
    MAX_SLICES,
    Grant,
    Hold,
    Life,
    Policy,
    Priority,
    Process,
    Slice,
    SliceUse,
    check_name,
)
from aliquot.model.request import Request
from aliquot.model.units import Amount, format_bytes, format_share, parse_amount, parse_share

__all__ = [
    "MAX_SLICES",
    "Amount",
    "Change",
    "ComputeUse",
    "Gates",
    "Gpu",
    "GpuProcess",
    "Grant",
    "Hold",
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
