"""The `Queue` object: people write its `spec`, the scheduler its `status`.

`gpus`, `memory` and `compute` bound the compute and memory of GPUs; every one that is given holds.
`compute`, in percent of a GPU, bounds only compute, and `memory`, in bytes, only memory. `gpus`
bounds both: 100 % of compute, and the memory of the cluster's largest GPU, for each GPU. A whole
GPU counts with all of its compute and memory, a share with its part of both, a slice with what it
asks for.
"""

from __future__ import annotations

import msgspec

from aliquot.kubernetes.api.names import GROUP, VERSION

API_VERSION = f"{GROUP}/{VERSION}"
PLURAL = "queues"
DEFAULT = "default"  # the queue of all pods that are in no other; its object may be missing
LEVELS = 16  # the deepest tree of queues


class Amounts(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A bound; a missing field bounds nothing."""

    gpus: int | None = None
    memory: str | None = None
    compute: int | None = None


class QueueSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The share of a queue. Without `quota` it owns nothing; without `limit` it may use all.

    While a slice of this queue, or of one below it, takes turns with memory, all slices of its GPU
    may have `overcommit` times the GPU's memory; None: as the node says.
    """

    parent: str = ""
    weight: int = 1
    quota: Amounts | None = None
    limit: Amounts | None = None
    namespaces: tuple[str, ...] = ()
    overcommit: float | None = None


class Used(msgspec.Struct, frozen=True, rename="camel"):
    """Amounts in use. `gpus` is what counts against a bound in GPUs, with three decimals."""

    gpus: str = "0"
    memory: str = "0"
    compute: int = 0


class RunningCounts(msgspec.Struct, frozen=True, rename="camel"):
    """Running pods, and the gangs among them; a single pod is no gang."""

    pods: int = 0
    gangs: int = 0


class WaitingCounts(msgspec.Struct, frozen=True, rename="camel"):
    """Waiting pods and gangs; the longest has waited since `since`."""

    pods: int = 0
    gangs: int = 0
    since: str | None = None


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """A condition of the object, as Kubernetes has them."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str


class QueueStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What a queue and all queues below it use, and how much of this they borrow.

    Every field is always written: a patch leaves missing fields unchanged.
    """

    used: Used = Used()
    borrowed: Used = Used()
    running: RunningCounts = RunningCounts()
    waiting: WaitingCounts = WaitingCounts()
    conditions: tuple[Condition, ...] = ()
