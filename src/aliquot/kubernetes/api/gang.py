"""The `Gang` object: what became of a gang, for people; and its reservation, for the next leader.

The scheduler alone writes it, for every gang it sees, by whatever objects people wrote it. That is
why it is an object of its own and not the status of one of theirs. The members of a gang in the
phase `Reserved` are its reservation: where each goes and which GPUs it gets there. It is written
before a gate is opened, and read by whoever leads next.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from aliquot.kubernetes.api.gpunode import API_VERSION
from aliquot.kubernetes.api.objects import Meta, Resource

PLURAL = "gangs"


class Phase(StrEnum):
    """How far a gang is."""

    GATHERING = "Gathering"  # not all its pods are there
    WAITING = "Waiting"  # there is no room for all of them
    RESERVED = "Reserved"  # each has its place, and is on its way there
    BOUND = "Bound"  # all of them have their nodes
    REFUSED = "Refused"  # it cannot start as it is


class GangSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a gang asks for, as its pods and the objects around them say."""

    size: int = 0
    queue: str = ""
    priority: int = 0
    seconds: float = 0.0


class GangMember(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod's place: its node, and its plan as the annotation `aliquot.io/plan` has it."""

    pod: str
    uid: str
    node: str = ""
    plan: str = ""


class GangStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What became of a gang. `victims` are the UIDs of pods that are evicted for it.

    `wholeOnce`: all members had nodes, so that the gang is not evicted when it loses one.
    `evictionReason` says why its pods with nodes are evicted; it is written before the first one
    is. `evictionPods` is how many had nodes then, so that a new leader knows whether some are gone.
    `evictionTime`: no pod is evicted before, so that the controller of an elastic job can notify
    its workers.
    """

    phase: str = ""
    reason: str = ""
    planned_start: str | None = None
    since: str | None = None
    topology: str = ""
    victims: tuple[str, ...] = ()
    whole_once: bool = False
    eviction_reason: str = ""
    eviction_pods: int = 0
    eviction_time: str | None = None
    members: tuple[GangMember, ...] = ()


class GangObject(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A gang, as it is told."""

    metadata: Meta = Meta()
    spec: GangSpec = GangSpec()
    status: GangStatus = GangStatus()


GANGS = Resource(GangObject, API_VERSION, "Gang", PLURAL)
