"""Which GPUs a pod's containers are to have: the scheduler's word, in an annotation of the pod.

The extender's bind writes it into the Binding, and the API server into the pod, in the one step
that gives the pod its node. The agent reads it as a hint: containers that ask for equal parts are
interchangeable on a node, so what the agent gave in the end is the truth, and is in `GPUNode`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["whole", "shared", "sliced"]


class ContainerPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one container gets: on each of `gpus` (UUIDs) so many bytes and so much compute.

    `compute` is in percent; 0 is an equal part of what the others leave.
    """

    kind: Kind
    gpus: tuple[str, ...]
    memory: int
    compute: int = 0


class Plan(msgspec.Struct, frozen=True):
    """What the containers of one pod get, by their names, without those that ask for no GPU."""

    containers: dict[str, ContainerPlan]

    def encode(self) -> str:
        """As an annotation."""
        return msgspec.json.encode(self).decode()


def decode_plan(annotation: str) -> Plan | None:
    """A plan from its annotation; None where it is no plan."""
    try:
        return msgspec.json.decode(annotation, type=Plan)
    except msgspec.DecodeError:
        return None
