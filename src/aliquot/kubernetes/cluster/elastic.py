"""Elastic jobs as claims see them: what one could do without, and how long giving it back takes.

Each worker's pod says it in an annotation of the controller (`aliquot.io/elastic`): the job's
smallest size, for how long ahead workers are told, and for how long they may end. Others can write
that too, so none of these times, nor both together, counts for longer than `LONGEST`. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.names import ELASTIC, JOB, JOB_RANK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.api.objects import Pod

LONGEST = 300.0
MOST = 200  # characters
MARGIN = 15.0  # for the decision to give back, and for nodes to say that it is done
LATE = 5.0  # who was told by the controller is stopped by it; after so long, by an eviction


class Terms(msgspec.Struct, frozen=True):
    """What a worker's pod says of its job. Times are in seconds."""

    least: int
    notice: float = 0.0
    grace: float = 0.0

    @property
    def told_ahead(self) -> float:
        """For how long ahead workers are told, as far as that counts."""
        return _bounded(self.notice)

    @property
    def patience(self) -> float:
        """How long it takes to give back, with notice; as far as that counts."""
        return _bounded(self.told_ahead + _bounded(self.grace)) + MARGIN


@dataclass(frozen=True, slots=True)
class Surplus:
    """What an elastic job has above its smallest size: the UIDs of those pods, last rank first."""

    job: str
    seconds: float
    uids: tuple[str, ...]


def terms_of(pod: Pod) -> Terms | None:
    """What a pod says of its elastic job; None where it is of none."""
    text = pod.metadata.annotations.get(ELASTIC)
    if not text or len(text) > MOST or JOB not in pod.metadata.labels:
        return None
    return _terms(text)


def told_ahead(pods: Iterable[Pod]) -> float:
    """For how long ahead a gang's pods are told that they end; 0 where nobody tells them."""
    found = filter(None, map(terms_of, pods))
    return max((one.told_ahead for one in found), default=0.0)


def surpluses(pods: Iterable[Pod]) -> list[Surplus]:
    """What each elastic job could give back of these, which have nodes: the highest ranks."""
    workers: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    terms: dict[str, Terms] = {}
    for pod in pods:
        found = terms_of(pod)
        if found is not None:
            name = f"{pod.metadata.namespace}/{pod.metadata.labels[JOB]}"
            workers[name].append((_rank(pod), pod.metadata.uid))
            terms[name] = found
    return [
        Surplus(name, terms[name].patience, tuple(uid for _, uid in reversed(sorted(mine)[least:])))
        for name, mine in workers.items()
        if len(mine) > (least := max(0, terms[name].least))
    ]


def _rank(pod: Pod) -> int:
    text = pod.metadata.labels.get(JOB_RANK, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), LONGEST)


@lru_cache(maxsize=1024)
def _terms(text: str) -> Terms | None:
    try:
        return msgspec.json.decode(text, type=Terms)
    except msgspec.DecodeError:
        return None
