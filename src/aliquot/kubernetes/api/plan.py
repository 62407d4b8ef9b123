"""A pod's plan: the GPUs that its containers are to get, in an annotation of the pod.

The extender writes the plan into the Binding, and the API server copies it into the pod in the same
step that binds the pod to its node. For the agent the plan is a hint: containers that ask for equal
parts are interchangeable on a node. What the agent gave in the end is in the GPUNode.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from aliquot.kubernetes.api.decode import decode_json

Kind = Literal["whole", "shared", "sliced"]
MOST_OVERCOMMIT = 10.0  # times the memory of a GPU


class ContainerPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one container gets on each of `gpus` (UUIDs): bytes of memory, and compute.

    `compute` is in percent; 0 is an equal part of what the others leave. `overcommit`: it may take
    turns with memory, and all slices of the GPU have at most so many times its memory then (0: as
    the node says); None: it takes none.
    """

    kind: Kind
    gpus: tuple[str, ...]
    memory: int
    compute: int = 0
    overcommit: float | None = None


def possible_overcommit(value: float | None) -> float | None:
    """What somebody says of turns with memory, as far as that is possible: 0, or 1 to 10.

    Tenants may write plans, and an attacker who has a node may write its report.
    """
    return value if value is None or value == 0 else min(max(1.0, value), MOST_OVERCOMMIT)


class Plan(msgspec.Struct, frozen=True):
    """What the containers of one pod get, by name; only those that ask for GPUs."""

    containers: dict[str, ContainerPlan]

    def encode(self) -> str:
        """The annotation's text."""
        return msgspec.json.encode(self).decode()


def decode_plan(annotation: str) -> Plan | None:
    """The plan in an annotation; None if it is invalid."""
    try:
        return decode_json(annotation, Plan)
    except msgspec.DecodeError:
        return None
