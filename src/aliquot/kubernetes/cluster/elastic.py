"""Elastic jobs as preemption sees them: what a job can give back, and how long that takes.

The controller writes it into an annotation of each worker's pod (`aliquot.io/elastic`): the job's
smallest size, the notice that workers get, and their grace period. Others can write annotations
too, so neither of these times, nor both together, counts for longer than `LONGEST`. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.decode import decode_json, whole_number
from aliquot.kubernetes.api.names import ELASTIC, JOB, JOB_RANK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.api.objects import Pod

LONGEST = 300.0
MOST = 200  # characters
MARGIN = 15.0  # seconds for the decision to give back, and for nodes to report the end
LATE = 5.0  # seconds after which pods that the controller should have stopped are evicted


class Terms(msgspec.Struct, frozen=True):
    """What the annotation of a worker's pod says. Times are in seconds."""

    least: int
    notice: float = 0.0
    grace: float = 0.0

    @property
    def told_ahead(self) -> float:
        """The notice that workers get, bounded."""
        return _bounded(self.notice)

    @property
    def patience(self) -> float:
        """How long giving back takes, with notice and grace period, bounded."""
        return _bounded(self.told_ahead + _bounded(self.grace)) + MARGIN


@dataclass(frozen=True, slots=True)
class Surplus:
    """The pods of an elastic job above its smallest size: their UIDs, highest rank first."""

    job: str
    seconds: float
    uids: tuple[str, ...]


def terms_of(pod: Pod) -> Terms | None:
    """What a pod says about its elastic job; None if it belongs to none."""
    text = pod.metadata.annotations.get(ELASTIC)
    if not text or len(text) > MOST or JOB not in pod.metadata.labels:
        return None
    return _terms(text)


def told_ahead(pods: Iterable[Pod]) -> float:
    """The notice that the pods of a gang get before they end; 0 without."""
    found = filter(None, map(terms_of, pods))
    return max((one.told_ahead for one in found), default=0.0)


def surpluses(pods: Iterable[Pod]) -> list[Surplus]:
    """What each elastic job can give back of these bound pods: the highest ranks."""
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
    return whole_number(text) or 0


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), LONGEST)


@lru_cache(maxsize=1024)
def _terms(text: str) -> Terms | None:
    try:
        return decode_json(text, Terms)
    except msgspec.DecodeError:
        return None
