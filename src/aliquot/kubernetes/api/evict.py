"""Evictions of pods, which PodDisruptionBudgets may refuse.

The API server answers 429 if a budget refuses (its message names the budget) and also if it is too
busy (without a budget). Only the first is a refusal; the second is an error that may pass. A pod
that is gone, or whose name belongs to another pod by now, counts as evicted. An evicted pod still
has its grace period before it ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.objects import (
    PODS,
    DeleteOptions,
    Eviction,
    Meta,
    Preconditions,
)

if TYPE_CHECKING:
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Pod

BUDGET = "DisruptionBudget"
_NAME = re.compile(r"disruption budget (?P<name>[a-z0-9.-]*[a-z0-9])")
_SEVERAL = "more than one PodDisruptionBudget"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A PodDisruptionBudget of that name, or several, do not let a pod be evicted now."""

    pod: str
    budget: str
    why: str

    def __str__(self) -> str:
        return f"{self.pod} may not be evicted now: {self.why}"


async def evict(client: Client, pod: Pod, *, grace_seconds: int | None = None) -> Refusal | None:
    """Evict a pod, with this grace period or its own; None if it was evicted or is gone."""
    meta = pod.metadata
    eviction = Eviction(
        metadata=Meta(name=meta.name, namespace=meta.namespace),
        delete_options=DeleteOptions(grace_seconds, Preconditions(meta.uid)),
    )
    try:
        await client.evict(eviction)
    except ApiError as error:
        refusal = _refusal(pod, error)
        if refusal is not None:
            return refusal
        if error.not_found or (error.conflict and await _is_gone(client, pod)):
            return None
        raise
    return None


def _refusal(pod: Pod, error: ApiError) -> Refusal | None:
    for cause in error.causes:
        if error.status == 429 and cause.reason == BUDGET:
            named = _NAME.search(cause.message)
            return Refusal(pod.key, named["name"] if named else "", cause.message)
    if error.status == 500 and _SEVERAL in error.message:
        return Refusal(pod.key, "", "it has more than one PodDisruptionBudget, and may have one")
    return None


async def _is_gone(client: Client, pod: Pod) -> bool:
    meta = pod.metadata
    try:
        now = await client.get(PODS, meta.name, meta.namespace)
    except ApiError as error:
        if error.not_found:
            return True
        raise
    return now.metadata.uid != meta.uid
