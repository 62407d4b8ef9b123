"""The `Queue` object: people write its `spec`, the scheduler its `status`.

`gpus`, `memory` and `compute` are three ways to bound the same two things, compute and memory of
GPUs; all that are written hold. `compute` is in percent of a GPU, and bounds compute alone;
`memory` is bytes, and bounds memory alone. `gpus` bounds both: so many times 100 % of compute, and
so many times the memory of the cluster's largest GPU. A whole GPU takes all of its compute and
memory, a share of a shared one its part of both, a slice what it asks for.
"""

from __future__ import annotations

import msgspec

from aliquot.kubernetes.api.names import GROUP, VERSION

API_VERSION = f"{GROUP}/{VERSION}"
PLURAL = "queues"
DEFAULT = "default"  # the queue of all that nobody put into another; it need not be written
LEVELS = 16  # queues above each other, at most


class Amounts(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A bound; what is left out bounds nothing."""

    gpus: int | None = None
    memory: str | None = None
    compute: int | None = None


class QueueSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a queue is to have. Without `quota` nothing is its own; without `limit` all may be."""

    parent: str = ""
    weight: int = 1
    quota: Amounts | None = None
    limit: Amounts | None = None
    namespaces: tuple[str, ...] = ()


class Used(msgspec.Struct, frozen=True, rename="camel"):
    """Amounts that are had. `gpus` is what a bound in GPUs is held to, with three decimals."""

    gpus: str = "0"
    memory: str = "0"
    compute: int = 0


class Running(msgspec.Struct, frozen=True, rename="camel"):
    """Pods, and how many gangs they are; a pod by itself is none."""

    pods: int = 0
    gangs: int = 0


class Waiting(msgspec.Struct, frozen=True, rename="camel"):
    """The same; the one of them that has waited longest came at `since`."""

    pods: int = 0
    gangs: int = 0
    since: str | None = None


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """What is so, or is not, and why."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str


class QueueStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What a queue and all below it have, and what of it is more than their own.

    Every field is written each time: one that is left out would stay as it was.
    """

    used: Used = Used()
    borrowed: Used = Used()
    running: Running = Running()
    waiting: Waiting = Waiting()
    conditions: tuple[Condition, ...] = ()
