"""Xid errors: which of them mean that a GPU cannot be used, and what to do about them.

NVIDIA's catalogue has an immediate action for each Xid error of GPUs since Ampere:
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html

If that is to ignore the error or to restart the program, the GPU is healthy. If it is to reset the
GPU, to restart the node or to ask a person, the GPU is not. Xid 45 (a program's cleanup after
another error) and 154 (the recovery action has changed, which NVML tells) add nothing to what else
is reported. An Xid error that is not in the catalogue counts as one that matters.
"""

from __future__ import annotations

HARMLESS = frozenset(
    {
        *(8, 11, 13, 14, 25, 31, 32, 37, 38, 39, 40, 41, 43, 44, 45, 60, 63),
        *(66, 67, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89),
        *(92, 93, 94, *range(96, 109), 121, *range(126, 136), 137, 139, 141),
        *(152, 153, 154, 157, 160, 161),
    }
)

_RESET, _RESTART = "reset the GPU", "restart the node"
_KNOWN = {
    46: ("the GPU stopped processing", _RESET),
    48: ("uncorrectable memory error", _RESET),
    54: ("power is not connected as it should be", "check its cables"),
    62: ("a microcontroller of the GPU halted", _RESET),
    64: ("a row of memory could not be remapped", _RESET),
    74: ("NVLink error", _RESET),
    79: ("the GPU has fallen off the bus", _RESTART),
    95: ("uncontained memory error", _RESET),
    109: ("a context switch timed out", _RESET),
    110: ("security fault", _RESET),
    119: ("the GPU's system processor does not answer", _RESET),
    120: ("error of the GPU's system processor", _RESET),
    136: ("NVLink training failed", _RESET),
    140: ("uncorrectable memory error", _RESET),
    143: ("the GPU could not be initialised", _RESET),
    151: ("key rotation failed", _RESTART),
    155: ("NVLink error", _RESET),
    156: ("a faulty part of the GPU was retired", _RESET),
    158: ("the GPU timed out", _RESET),
}


def is_harmless(xid: int) -> bool:
    """Whether the GPU can be used as before."""
    return xid in HARMLESS


def describe(xid: int) -> str:
    """The error with its meaning and what NVIDIA advises, as a clause."""
    if xid not in _KNOWN:
        return f"Xid error {xid}"
    meaning, advice = _KNOWN[xid]
    return f"Xid error {xid}: {meaning}; NVIDIA advises: {advice}"
