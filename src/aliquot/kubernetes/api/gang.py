"""The `Gang` object: the state of a gang for people, and its reservation for the next leader.

Only the scheduler writes it, for every gang, whichever objects declare the gang. So it is an object
of its own and not the status of one of them. The members of a gang in the phase `Reserved` are its
reservation: the node and the GPUs of each. The scheduler writes the reservation before it removes a
scheduling gate, and the next leader reads it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from aliquot.kubernetes.api.gpunode import API_VERSION
from aliquot.kubernetes.api.objects import Meta, Resource

PLURAL = "gangs"


class Phase(StrEnum):
    """The phase of a gang, in `status.phase`."""

    GATHERING = "Gathering"  # some of its pods do not exist yet
    WAITING = "Waiting"  # its pods do not fit all together
    RESERVED = "Reserved"  # each pod has GPUs reserved, and not all have nodes
    BOUND = "Bound"  # all its pods have nodes
    REFUSED = "Refused"  # invalid, or it could never start


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
    """The state of a gang. `victims` are the UIDs of pods that are evicted for it.

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
    """A Gang as the API server has it."""

    metadata: Meta = Meta()
    spec: GangSpec = GangSpec()
    status: GangStatus = GangStatus()


GANGS = Resource(GangObject, API_VERSION, "Gang", PLURAL)
