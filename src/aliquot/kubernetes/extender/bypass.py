"""Pods that ask for GPUs without asking Aliquot: each gets one event that says so.

A scheduler without the extender adds up the units of all GPUs of a node, and a pod that is created
with a node asks no scheduler at all. No queue limits such a pod, and the kubelet may refuse it. The
leader tells people once for each pod; the next leader may tell them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.api.names import PLAN, SCHEDULE
from aliquot.kubernetes.api.objects import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from aliquot.kubernetes.api.events import Recorder
    from aliquot.kubernetes.api.objects import Pod


class BypassingPods:
    """Tells pods of other schedulers. `schedulers` are those that ask Aliquot, if they are known.

    If they are not known, only pods that have a node and no plan are told.
    """

    def __init__(
        self,
        recorder: Recorder,
        schedulers: Collection[str],
        asks: Callable[[Pod], bool],
        leading: Callable[[], bool],
    ) -> None:
        self._recorder = recorder
        self._schedulers = schedulers
        self._asks = asks
        self._leading = leading
        self._told: set[str] = set()

    def observe(self, pod: Pod) -> None:
        """A pod is there, or has changed."""
        uid = pod.metadata.uid
        if uid in self._told or not self._leading() or not self._asks(pod):
            return
        text = self._message(pod)
        if text:
            self._told.add(uid)
            self._recorder.record(PODS, pod, "Warning", "BypassesAliquot", text)

    def observe_all(self, pods: Iterable[Pod]) -> None:
        """This replica leads now, and these pods are there."""
        for pod in pods:
            self.observe(pod)

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._told.discard(uid)

    def _message(self, pod: Pod) -> str:
        name = pod.spec.scheduler_name
        if pod.spec.node_name:
            if PLAN in pod.metadata.annotations:
                return ""
            what = f"got node {pod.spec.node_name} without Aliquot (schedulerName: {name or '?'})"
        elif self._schedulers and name and name not in self._schedulers:
            what = f"waits for the scheduler {name!r}, which does not ask Aliquot"
        else:
            return ""
        ours = next(iter(self._schedulers), "aliquot")
        return (
            f"it asks for GPUs and {what}: nobody checks which GPUs are free, or its queue, and the"
            f" kubelet may refuse it. Create it with schedulerName: {ours}, or label its namespace"
            f" {SCHEDULE}=true: new pods then get that by themselves"
        )
