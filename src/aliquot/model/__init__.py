"""The nouns and their units, as immutable values: no input, no output, no other layer."""

from aliquot.model.gpu import Gpu, GpuProcess, Link
from aliquot.model.grant import (
    MAX_SLICES,
    Grant,
    Policy,
    Priority,
    Process,
    Slice,
    SliceUse,
    check_name,
)
from aliquot.model.request import Request
from aliquot.model.units import Amount, format_bytes, parse_amount

__all__ = [
    "MAX_SLICES",
    "Amount",
    "Gpu",
    "GpuProcess",
    "Grant",
    "Link",
    "Policy",
    "Priority",
    "Process",
    "Request",
    "Slice",
    "SliceUse",
    "check_name",
    "format_bytes",
    "parse_amount",
]
