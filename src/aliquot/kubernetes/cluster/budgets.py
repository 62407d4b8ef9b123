"""Which pods disruption budgets protect: how many of each workload's, for decisions. Pure.

The Eviction API has the last word. It counts health too: a pod that runs and is not ready may be
evicted more often than this says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.names import JOB
from aliquot.placement.queues.question import DisruptionBudget

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from aliquot.kubernetes.api.budget import PodDisruptionBudget
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.workloads import Workloads

Key = tuple[str, str]  # namespace and name
NOT_PROTECTED = {"Pending", "Succeeded", "Failed"}  # phases


class Budgets:
    """All budgets of a cluster, by namespace."""

    def __init__(self) -> None:
        self._budgets: defaultdict[str, dict[str, PodDisruptionBudget]] = defaultdict(dict)
        self._version = 0
        self._found: dict[str, tuple[Pod, int, tuple[Key, ...]]] = {}  # by UID

    def set(self, namespace: str, name: str, budget: PodDisruptionBudget | None) -> None:
        """A budget was created or changed; None: it is gone."""
        before = self._budgets[namespace].pop(name, None)
        if budget is not None:
            self._budgets[namespace][name] = budget
        if not self._budgets[namespace]:
            del self._budgets[namespace]
        if before is None or budget is None or before.spec != budget.spec:
            self._version += 1

    def of_workloads(
        self, workloads: Workloads, uids: Iterable[str], victims: Collection[str]
    ) -> list[DisruptionBudget]:
        """The budgets of the pods of these UIDs; `victims` are evicted already.

        A pod with several budgets cannot be evicted at all. Workers of elastic jobs are stopped by
        their own controller, and protected by none.
        """
        if not self._budgets:
            self._found.clear()
            return []
        pods: defaultdict[Key, Counter[str]] = defaultdict(Counter)
        spent: Counter[Key] = Counter()
        never: Counter[str] = Counter()
        for uid in uids:
            pod = workloads.pods.get(uid)
            if pod is None or pod.metadata.deletion_timestamp or not _is_protected(pod):
                continue
            keys = self._keys(uid, pod)
            if uid in victims:
                spent.update(keys)
            elif len(keys) > 1:
                never[workloads.name_of(uid)] += 1
            else:
                for key in keys:
                    pods[key][workloads.name_of(uid)] += 1
        self._found = {uid: one for uid, one in self._found.items() if uid in workloads.pods}
        found = [
            DisruptionBudget(self._allowed(key) - spent[key], dict(count))
            for key, count in pods.items()
        ]
        return [*found, DisruptionBudget(0, dict(never))] if never else found

    def _allowed(self, key: Key) -> int:
        namespace, name = key
        return self._budgets[namespace][name].status.disruptions_allowed

    def _keys(self, uid: str, pod: Pod) -> tuple[Key, ...]:
        """The budgets of a pod."""
        known = self._found.get(uid)
        if known is not None and known[0] is pod and known[1] == self._version:
            return known[2]
        meta = pod.metadata
        mine = self._budgets.get(meta.namespace, {}).items()
        keys = tuple(
            (meta.namespace, name)
            for name, one in mine
            if one.spec.selector is not None and one.spec.selector.selects(meta.labels)
        )
        self._found[uid] = pod, self._version, keys
        return keys


def _is_protected(pod: Pod) -> bool:
    return JOB not in pod.metadata.labels and pod.status.phase not in NOT_PROTECTED
