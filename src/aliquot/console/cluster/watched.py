"""The objects that the console's account watches, for all users.

Which of them a user gets to see is decided in `rights`, for each request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aliquot.kubernetes.api.changes import Changes
from aliquot.kubernetes.api.elasticjob import JOBS
from aliquot.kubernetes.api.gang import GANGS
from aliquot.kubernetes.api.presets import choose_presets
from aliquot.kubernetes.api.watch import Watch
from aliquot.kubernetes.cluster.view import ClusterView
from aliquot.kubernetes.cluster.watches import ClusterWatches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import GpuNode, Pod

SILENT_SECONDS = 120.0  # bookmarks come every minute


class Watched:
    """The cluster as the scheduler sees it, and its gangs and jobs. `changes` counts changes."""

    def __init__(self, client: Client, presets: Iterable[str]) -> None:
        self.changes = Changes()
        self.view = ClusterView(choose_presets(presets))
        self._watches = ClusterWatches(client, self.view, self.changes.notify)
        self.gangs = Watch(client, GANGS, self._on_change)
        self.jobs = Watch(client, JOBS, self._on_change)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            watches: list[Watch[Any] | ClusterWatches] = [self._watches, self.gangs, self.jobs]
            for one in watches:
                tasks.create_task(one.run())

    @property
    def synced(self) -> bool:
        """Whether nodes, GPUs and pods have been read once."""
        return self._watches.synced

    @property
    def silence(self) -> float | None:
        """For how many seconds the API server has said nothing; None: it speaks."""
        silence = self._watches.silence
        return silence if silence > SILENT_SECONDS else None

    @property
    def gpu_nodes(self) -> list[GpuNode]:
        """All GPUNodes, by name, as their agents reported them last."""
        found = self._watches.gpu_nodes.objects
        return [one for _, one in sorted(found.items())]

    @property
    def pods(self) -> Iterable[Pod]:
        """All live pods that ask for GPUs or belong to gangs."""
        return self._watches.pods.objects.values()

    def namespaces_of_pods(self) -> set[str]:
        """The namespaces that have such pods, or grants that outlive theirs."""
        found = {namespace for namespace, _ in self._watches.pods.objects}
        for node in self._watches.gpu_nodes.objects.values():
            found |= {grant.namespace for gpu in node.status.gpus for grant in gpu.grants}
        return found

    def _on_change(self, _before: object, _now: object) -> None:
        self.changes.notify()
