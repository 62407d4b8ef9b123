"""The GPUs that missing pods need of new nodes. Pure.

A pod that asks for whole GPUs, or for parts of several, needs as many on one new node. Pods that
ask for a part of one GPU share new GPUs as far as they fit: by compute, and by the memory of the
largest GPU in the cluster. Without any GPU in the cluster, its memory is unknown and each pod gets
one of its own. The CPU and memory that pods request are asked for with their GPUs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.requests import quantity
from aliquot.kubernetes.cluster.constraints import NodeConstraints
from aliquot.model.errors import InvalidValueError
from aliquot.placement.core.demand import WHOLE_MILLI, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.api.objects import Container, Pod
    from aliquot.kubernetes.gangs.missing import MissingPod


@dataclass(frozen=True, slots=True)
class Unit:
    """GPUs, CPU in thousandths and bytes of memory on one new node that accepts such pods."""

    gpus: int
    cpu_milli: int
    ram_bytes: int
    limits: NodeConstraints


@dataclass(slots=True)
class _Shared:
    """A new GPU that several pods share."""

    milli: int = 0
    gpu_bytes: int = 0
    pods: list[Pod] = field(default_factory=list)

    def take(self, one: MissingPod, gpu_bytes: int) -> bool:
        """Add a pod, if it fits."""
        milli, taken = self.milli + one.demand.milli, self.gpu_bytes + one.demand.gpu_bytes
        if self.pods and (milli > WHOLE_MILLI or taken > gpu_bytes):
            return False
        self.milli, self.gpu_bytes = milli, taken
        self.pods.append(one.pod)
        return True


def units_of(missing: Iterable[MissingPod], largest_gpu: int) -> list[Unit]:
    """What these pods need of new nodes; `largest_gpu` is the memory of the largest known GPU."""
    units: list[Unit] = []
    shared: defaultdict[NodeConstraints, list[_Shared]] = defaultdict(list)
    parts = []
    for one in missing:
        limits = NodeConstraints.of(one.pod)
        if one.demand.kind is Kind.WHOLE or one.demand.gpus > 1:
            units.append(_unit(one.demand.gpus, [one.pod], limits))
        else:
            parts.append((one, limits))
    parts.sort(key=lambda each: (-each[0].demand.milli, -each[0].demand.gpu_bytes))
    for one, limits in parts:
        if not any(gpu.take(one, largest_gpu) for gpu in shared[limits]):
            shared[limits].append(_Shared())
            shared[limits][-1].take(one, largest_gpu)
    for limits, gpus in shared.items():
        units += [_unit(1, gpu.pods, limits) for gpu in gpus]
    return units


def _unit(gpus: int, pods: Iterable[Pod], limits: NodeConstraints) -> Unit:
    every = list(pods)
    cpu = sum((_requested(one, "cpu") for one in every), start=Fraction(0))
    ram = sum((_requested(one, "memory") for one in every), start=Fraction(0))
    return Unit(gpus, math.ceil(1000 * cpu), math.ceil(ram), limits)


def _requested(pod: Pod, resource: str) -> Fraction:
    """What kube-scheduler counts for a pod: all that runs together, or the largest init container.

    An init container that restarts is a sidecar, and runs together with the others.
    """
    first = pod.spec.init_containers
    sidecars = [one for one in first if one.restart_policy == "Always"]
    staying = (*pod.spec.containers, *sidecars)
    together = sum((_of(one, resource) for one in staying), start=Fraction(0))
    return max([together, *(_of(one, resource) for one in first)])


def _of(container: Container, resource: str) -> Fraction:
    asked = container.resources
    value = asked.requests.get(resource, asked.limits.get(resource, 0))
    try:
        return quantity(value)
    except InvalidValueError:  # the API server knows more ways to write a number
        return Fraction(0)
