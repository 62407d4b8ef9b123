"""The cluster view of the job controller. No input or output.

It is the scheduler's view with two differences. Each worker of an elastic job is a workload of its
own, and not a part of its gang: a job may give back single workers. And the GPUs that the scheduler
has reserved for gangs are read from Gang objects.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.names import JOB, PLAN
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.cluster.cluster import Reserved
from aliquot.kubernetes.cluster.parts import planned_parts
from aliquot.kubernetes.cluster.view import USUAL_LABELS, ClusterView
from aliquot.kubernetes.cluster.workloads import Workloads, single_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aliquot.kubernetes.api.gang import GangObject
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.cluster.topology import Labels
    from aliquot.kubernetes.cluster.workloads import Work


class JobWorkloads(Workloads):
    """Workloads in which each worker of an elastic job is one, and not its gang."""

    def name_of(self, uid: str) -> str:
        """The name of the workload that a pod belongs to, by UID."""
        pod = self.pods.get(uid)
        if pod is not None and JOB in pod.metadata.labels:
            return single_name(pod)
        return super().name_of(uid)

    def work(self, uid: str, now: float) -> Work:
        """The workload that a pod belongs to, by UID."""
        return replace(super().work(uid, now), name=self.name_of(uid))


class JobAllocations(ClusterView):
    """The cluster view with workers as workloads and with the reservations of gangs."""

    def __init__(
        self, presets: Sequence[Preset] = (ALIQUOT,), *, labels: Labels = USUAL_LABELS
    ) -> None:
        super().__init__(presets, labels=labels, workloads=JobWorkloads)
        self._reserved: set[str] = set()

    def count_reserved(self, gangs: Iterable[GangObject]) -> None:
        """Reserve what Gang objects reserve for members without a node, and nothing else."""
        now: set[str] = set()
        for one in gangs:
            for member in one.status.members if one.status.phase == Phase.RESERVED else ():
                pod = self.workloads.pods.get(member.uid)
                if pod is None or pod.spec.node_name or not member.plan:
                    continue
                notes = {**pod.metadata.annotations, PLAN: member.plan}
                meta = msgspec.structs.replace(pod.metadata, annotations=notes)
                parts = planned_parts(msgspec.structs.replace(pod, metadata=meta), self.presets)
                self.cluster.reserve(member.uid, Reserved(pod.key, member.node, parts, math.inf))
                now.add(member.uid)
        for uid in self._reserved - now:
            self.cluster.forget(uid)
        self._reserved = now
