"""How many members a gang has, and whether all of them exist.

A gang's pods say its size, or an object does: a PodGroup, JobSet, RayCluster or job of Kubeflow.
`SourceSizes` reads those objects when a gang needs its size, and again while the gang gathers.
It does not watch them: most clusters have none or one of these kinds, and a kind that is not
installed is then an answer like any other. JobSets, RayClusters and Kubeflow's jobs have templates
of their pods, so that their size does not count pods that request no GPU: the launcher of an MPIJob
may be created when its workers run, and end before them.

The pods of a LeaderWorkerSet's group say its size. With the startup policy LeaderReady the others
do not exist before the leader runs: it starts alone, and the others together when all exist.

`FinishedMembers` reads members that request no GPU and have succeeded, which still count.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.objects import PODS, Meta, OwnerReference, Pod, Resource
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.cluster.membership import foreign_gates, is_gated, membership_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.cluster.membership import GangKey, Source
    from aliquot.kubernetes.cluster.workloads import GangPods

READ_SOURCE_AGAIN = 3.0
READ_FINISHED_SOON = 5.0  # at least between two lists of a namespace
READ_FINISHED_AGAIN = 300.0  # if no member has gone meanwhile
AT_ONCE = 16  # objects that are read: a new leader has read none
TOGETHER = 10.0  # seconds between the creation of pods of one run
POD_GROUP = "PodGroup"
LEADER_WORKER_SET = "LeaderWorkerSet"
COUNT_ALL = {POD_GROUP, LEADER_WORKER_SET}  # their sizes count pods without GPUs too
SUCCEEDED = "status.phase=Succeeded"

_log = structlog.get_logger(__name__)


class _Sized(msgspec.Struct, frozen=True):
    metadata: Meta = Meta()
    spec: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class SourceSize:
    """What a source says: the size, or why it is unknown; and the object, as an owner.

    `only_gpus`: the size counts only pods that request GPUs. `leader_first`: the other pods are
    created when the leader runs.
    """

    size: int | None = None
    problem: str = ""
    owner: OwnerReference | None = None
    only_gpus: bool = False
    leader_first: bool = False


@dataclass(frozen=True, slots=True)
class MemberCount:
    """How many members a gang has, by its pods, its source and its finished members."""

    pods: GangPods
    source: SourceSize | None = None
    finished: frozenset[str] = frozenset()

    @property
    def size(self) -> tuple[int | None, str]:
        """How many members there must be, or why that is unknown."""
        memberships, found = self.pods.memberships, self.source
        sizes = sorted({one.size for one in memberships if one.size is not None})
        if len(sizes) > 1:
            return None, f"its pods say different sizes: {', '.join(map(str, sizes))}"
        if sizes:
            return sizes[0], ""
        if any(one.source for one in memberships):
            return (found.size, found.problem) if found else (None, "its size is being read")
        problems = (one.problem for one in memberships if one.problem)
        return None, next(problems, "its pods are ending")

    @property
    def existing(self) -> int:
        """How many members exist or have finished, as the size counts them."""
        members = len(self.pods.members)
        return members if self._only_gpus else members + self._without_gpus

    @property
    def wanted(self) -> int | None:
        """How many members must get nodes; None if the size is unknown.

        A leader that others follow is one, until it has its node.
        """
        leader, (size, _) = self._leader, self.size
        if leader is not None and not leader.spec.node_name and self._goes_alone:
            return 1
        return size if size is None or self._only_gpus else size - self._without_gpus

    @property
    def leads_alone(self) -> bool:
        """Whether its leader runs, and the others may wait for their nodes: it is not half started.

        While it is unknown how its set starts, a leader is taken for one that others follow.
        """
        found = self.source
        is_followed = found is None or found.size is None or found.leader_first
        return self.pods.only_leader_is_active and is_followed

    @property
    def is_short(self) -> bool:
        """Whether live pods are fewer than the size, so that finished ones matter."""
        size, _ = self.size
        live = len(self.pods.members) + len(self.pods.others)
        return not self._only_gpus and size is not None and live < size

    @property
    def first(self) -> list[Pod]:
        """Gated pods without GPUs that must run before the others exist: a leader."""
        if self.source is None or not self.source.leader_first:
            return []
        return [one for one in self.pods.others.values() if _leads(one) and is_gated(one)]

    def not_ready(self, *, started: bool) -> tuple[Phase, str] | None:
        """Why members cannot be planned yet; None if they can. `started`: some have nodes."""
        if started:
            return self._rest_not_ready()
        pods, others = self.pods.members, self.pods.others
        size, problem = self.size
        if size is None:
            being_read = self.source is None and self.pods.source is not None
            soon = being_read or not self.pods.memberships
            return (Phase.GATHERING if soon else Phase.REFUSED), problem
        live = len(pods) + len(others)
        if self.pods.source is None and live > size:
            return Phase.REFUSED, (
                f"{live} pods belong to it, and they say that it has {size}. Correct the size,"
                " or give other pods another gang's name."
            )
        if self.existing < size and not self._goes_alone:
            return Phase.GATHERING, f"{self.existing} of its {size} pods exist"
        if not pods:
            return Phase.REFUSED, "none of its pods requests a GPU. Remove its gates."
        held_back = self._held_back()
        return (Phase.GATHERING, held_back) if held_back else None

    def _rest_not_ready(self) -> tuple[Phase, str] | None:
        """Why the members that follow a running leader cannot be planned yet."""
        size, _ = self.size
        if self._leader is None or size is None:
            return None
        why = self._held_back()
        if self.existing < size:
            why = f"its leader runs; {self.existing} of its {size} pods exist"
        return (Phase.GATHERING, why) if why else None

    def _held_back(self) -> str:
        pods = (*self.pods.members, *self.pods.others.values())
        gates = sorted({gate for pod in pods for gate in foreign_gates(pod)})
        return f"other gates hold its pods back: {', '.join(gates)}" if gates else ""

    @property
    def _leader(self) -> Pod | None:
        """The member that must run before the others exist."""
        if self.source is None or not self.source.leader_first:
            return None
        return next((one for one in self.pods.members if _leads(one)), None)

    @property
    def _goes_alone(self) -> bool:
        return self._leader is not None and self.pods.every == (self._leader,)

    @property
    def _only_gpus(self) -> bool:
        return self.source is not None and self.source.only_gpus

    @property
    def _without_gpus(self) -> int:
        return len({*self.pods.others, *self.finished})


def _leads(pod: Pod) -> bool:
    membership = membership_of(pod)
    return membership is not None and membership.leads


def owners_of(pods: GangPods, source: SourceSize | None) -> tuple[OwnerReference, ...]:
    """The object that people wrote a gang with, if there is one."""
    if source is not None and source.owner is not None:
        return (source.owner,)
    controllers = {
        owner.uid: owner
        for pod in pods.pods.values()
        for owner in pod.metadata.owner_references
        if owner.controller
    }
    return tuple(controllers.values()) if len(controllers) == 1 else ()


# --- objects that know a gang's size --------------------------------------------------------------


class SourceSizes:
    """What each source said when it was last read."""

    def __init__(
        self, client: Client, asks: Callable[[Pod], bool], now: Callable[[], float]
    ) -> None:
        self._client = client
        self._asks = asks
        self._now = now
        self._free = asyncio.Semaphore(AT_ONCE)
        self._found: dict[tuple[str, Source], tuple[float, SourceSize]] = {}

    def of(self, pods: GangPods) -> SourceSize | None:
        """What the source of a gang said last; None if it has none, or was not read yet."""
        source = pods.source
        found = self._found.get((pods.key.namespace, source)) if source is not None else None
        return None if found is None else found[1]

    async def read(self, gangs: Iterable[GangPods], gathering: Iterable[GangPods]) -> None:
        """Read the sources of gangs that gather or were never read; forget those of no gang."""
        every = _sources_of(gangs)
        for key in self._found.keys() - every:
            del self._found[key]
        wanted = _sources_of(gathering) | (every - self._found.keys())
        await asyncio.gather(*(self._read(*one) for one in wanted))

    async def _read(self, namespace: str, source: Source) -> None:
        key = namespace, source
        before = self._found.get(key)
        if before is not None and self._now() - before[0] < READ_SOURCE_AGAIN:
            return
        async with self._free:
            found = await self._read_one(namespace, source)
        if found is not None:
            self._found[key] = self._now(), found

    async def _read_one(self, namespace: str, source: Source) -> SourceSize | None:
        of = Resource(_Sized, source.api_version, source.kind, source.plural)
        try:
            one = await self._client.get(of, source.name, namespace)
        except ApiError as error:
            if error.passing:
                return None
            why = "does not exist" if error.not_found else f"cannot be read: {error.message}"
            return SourceSize(problem=f"{source}, which knows its size, {why}.")
        owner = OwnerReference(source.api_version, source.kind, source.name, one.metadata.uid)
        size = size_in(source.kind, one.spec, self._asks)
        if size is None:
            return SourceSize(problem=f"{source} does not say how many pods it has.", owner=owner)
        return SourceSize(
            size,
            owner=owner,
            only_gpus=source.kind not in COUNT_ALL,
            leader_first=one.spec.get("startupPolicy") == "LeaderReady",
        )


def _sources_of(gangs: Iterable[GangPods]) -> set[tuple[str, Source]]:
    return {(one.key.namespace, source) for one in gangs if (source := one.source) is not None}


def size_in(
    kind: str, spec: Mapping[str, Any], asks: Callable[[Pod], bool] = lambda _: True
) -> int | None:
    """How many pods must start together by an object's spec; None if it does not say it."""
    if kind == POD_GROUP:
        return _count(spec.get("minMember"))
    if kind == "JobSet":
        return _sum(_of_replicated_job(one, asks) for one in _list(spec.get("replicatedJobs")))
    if kind == "RayCluster":
        return _of_ray_cluster(spec, asks)
    if kind == LEADER_WORKER_SET:
        group = spec.get("leaderWorkerTemplate")
        return _count(group.get("size", 1)) if isinstance(group, dict) else None
    replicas = [
        part
        for name, parts in spec.items()
        if name.endswith("ReplicaSpecs") and isinstance(parts, dict)
        for part in parts.values()
    ]
    return _sum(_of_part(one, asks) for one in replicas if isinstance(one, dict))


def _of_part(one: Mapping[str, Any], asks: Callable[[Pod], bool]) -> int | None:
    replicas = _count(one.get("replicas", 1))
    return replicas if _asks(one.get("template"), asks) else 0


def _of_replicated_job(one: Mapping[str, Any], asks: Callable[[Pod], bool]) -> int | None:
    job = (one.get("template") or {}).get("spec") or {}
    each = _count(job.get("parallelism", 1))
    replicas = _count(one.get("replicas", 1))
    if each is None or replicas is None:
        return None
    return each * replicas if _asks(job.get("template"), asks) else 0


def _of_ray_cluster(spec: Mapping[str, Any], asks: Callable[[Pod], bool]) -> int | None:
    """The head, and the workers that its autoscaler never goes below."""
    head, groups = spec.get("headGroupSpec"), _list(spec.get("workerGroupSpecs"))
    if not isinstance(head, dict):
        return None
    least = [_of_ray_group(one, asks) for one in groups if one.get("suspend") is not True]
    return _sum([int(_asks(head.get("template"), asks)), *least])


def _of_ray_group(one: Mapping[str, Any], asks: Callable[[Pod], bool]) -> int | None:
    replicas, hosts = _count(one.get("minReplicas", 0)), _count(one.get("numOfHosts", 1))
    if replicas is None or hosts is None:
        return None
    return replicas * hosts if _asks(one.get("template"), asks) else 0


def _asks(template: object, asks: Callable[[Pod], bool]) -> bool:
    """Whether pods of a template request GPUs; a template that cannot be read counts as one."""
    if not isinstance(template, dict):
        return True
    try:
        return asks(msgspec.convert({"spec": template.get("spec") or {}}, Pod, strict=False))
    except msgspec.ValidationError:
        return True


def _sum(counts: Iterable[int | None]) -> int | None:
    every = list(counts)
    return sum(one or 0 for one in every) if every and None not in every else None


def _list(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


# --- members that have finished -------------------------------------------------------------------


class FinishedMembers:
    """Members that request no GPU and have succeeded, by namespace.

    The watch does not show pods that have succeeded. They are listed for namespaces in which a gang
    lacks members, and again when such a member has gone from the watch: a namespace may have
    thousands of them. A pod of an earlier run under the same name does not count: the pod must have
    the owner of a live member, or have been created with the first one.
    """

    def __init__(
        self, client: Client, asks: Callable[[Pod], bool], now: Callable[[], float]
    ) -> None:
        self._client = client
        self._asks = asks
        self._now = now
        self._read: dict[str, float] = {}
        self._found: dict[str, dict[GangKey, list[Pod]]] = {}
        self._stale: set[str] = set()

    def pod_gone(self, pod: Pod) -> None:
        """A member is gone from the watch: it was deleted, or it has ended."""
        if pod.metadata.namespace in self._read and not self._asks(pod):
            self._stale.add(pod.metadata.namespace)

    async def read(self, namespaces: Collection[str]) -> None:
        """Read these namespaces, if what was read of them may have changed; forget all others."""
        for gone in self._read.keys() - set(namespaces):
            del self._read[gone]
            self._found.pop(gone, None)
            self._stale.discard(gone)
        await asyncio.gather(*(self._read_one(one) for one in namespaces if self._is_due(one)))

    def _is_due(self, namespace: str) -> bool:
        read = self._read.get(namespace)
        pause = READ_FINISHED_SOON if namespace in self._stale else READ_FINISHED_AGAIN
        return read is None or self._now() - read >= pause

    def of(self, pods: GangPods) -> frozenset[str]:
        """The UIDs of a gang's finished members."""
        found = self._found.get(pods.key.namespace, {}).get(pods.key, ())
        owners = {uid for one in pods.every for uid in _controllers(one)}
        first = min(filter(None, map(_created, pods.every)), default=None)
        return frozenset(
            one.metadata.uid
            for one in found
            if owners.intersection(_controllers(one)) or _is_about(_created(one), first)
        )

    async def _read_one(self, namespace: str) -> None:
        self._read[namespace] = self._now()
        self._stale.discard(namespace)
        try:
            found = await self._client.list(PODS, namespace, fields=SUCCEEDED)
        except ApiError as error:
            _log.info("cannot read finished pods", namespace=namespace, why=error.message)
            self._stale.add(namespace)
            return
        gangs: dict[GangKey, list[Pod]] = {}
        for one in found.items:
            membership = membership_of(one)
            if membership is None or one.status.phase != "Succeeded" or self._asks(one):
                continue
            gangs.setdefault(membership.key, []).append(one)
        self._found[namespace] = gangs


def _controllers(pod: Pod) -> Iterable[str]:
    return (one.uid for one in pod.metadata.owner_references if one.controller)


def _created(pod: Pod) -> float | None:
    return seconds_at(pod.metadata.creation_timestamp)


def _is_about(time: float | None, first: float | None) -> bool:
    return time is not None and first is not None and time > first - TOGETHER
