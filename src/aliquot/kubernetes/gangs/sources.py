"""The objects that know a gang's size: PodGroups, JobSets, Kubeflow's jobs.

They are read when a gang needs its size, and again from time to time while it gathers, instead of
being watched: most clusters have none or one of these kinds, and a kind that is not installed is
then just an answer to give.

JobSets and Kubeflow's jobs have templates of their pods. So of those, pods that ask for no GPU are
no part of the size: an MPIJob's launcher may come when its workers run, and end before them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.objects import Meta, Owner, Pod, Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.cluster.membership import Source
    from aliquot.kubernetes.gangs.state import GangState

AGAIN = 3.0
AT_ONCE = 16  # that are read: a new leader knows none
POD_GROUP = "PodGroup"


class _Sized(msgspec.Struct, frozen=True):
    metadata: Meta = Meta()
    spec: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a source: the size, or why not; and the object, as an owner.

    `only_gpus`: the size is of the pods that ask for GPUs alone.
    """

    size: int | None = None
    problem: str = ""
    owner: Owner | None = None
    only_gpus: bool = False


class Sources:
    """What was read of each, and when."""

    def __init__(
        self, client: Client, asks: Callable[[Pod], bool], now: Callable[[], float]
    ) -> None:
        self._client = client
        self._asks = asks
        self._now = now
        self._free = asyncio.Semaphore(AT_ONCE)
        self._found: dict[tuple[str, Source], tuple[float, Found]] = {}

    def known(self, namespace: str, source: Source) -> Found | None:
        """What was read last."""
        found = self._found.get((namespace, source))
        return None if found is None else found[1]

    async def read(self, namespace: str, source: Source) -> None:
        """Read it, if it was not just read."""
        key = namespace, source
        before = self._found.get(key)
        if before is not None and self._now() - before[0] < AGAIN:
            return
        async with self._free:
            found = await self._read(namespace, source)
        if found is not None:
            self._found[key] = self._now(), found

    def keep(self, wanted: set[tuple[str, Source]]) -> None:
        """Forget all others."""
        for key in self._found.keys() - wanted:
            del self._found[key]

    async def _read(self, namespace: str, source: Source) -> Found | None:
        of = Resource(_Sized, source.api_version, source.kind, source.plural)
        try:
            one = await self._client.get(of, source.name, namespace)
        except ApiError as error:
            if error.passing:
                return None
            why = "is not there" if error.not_found else f"cannot be read: {error.message}"
            return Found(problem=f"{source}, which knows its size, {why}.")
        owner = Owner(source.api_version, source.kind, source.name, one.metadata.uid)
        size = size_in(source.kind, one.spec, self._asks)
        if size is None:
            return Found(problem=f"{source} does not say how many pods it has.", owner=owner)
        return Found(size, owner=owner, only_gpus=source.kind != POD_GROUP)


def sources_of(gangs: Iterable[GangState]) -> set[tuple[str, Source]]:
    """The objects that know the sizes of gangs, each with its namespace."""
    return {(one.key.namespace, source) for one in gangs if (source := one.source) is not None}


def size_in(
    kind: str, spec: Mapping[str, Any], asks: Callable[[Pod], bool] = lambda _: True
) -> int | None:
    """How many pods must start together, by an object's spec; of those that ask for GPUs."""
    if kind == POD_GROUP:
        return _count(spec.get("minMember"))
    if kind == "JobSet":
        return _sum(_of_replicated_job(one, asks) for one in _list(spec.get("replicatedJobs")))
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


def _asks(template: object, asks: Callable[[Pod], bool]) -> bool:
    """Whether pods of a template ask for GPUs; one that cannot be read is taken to."""
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
