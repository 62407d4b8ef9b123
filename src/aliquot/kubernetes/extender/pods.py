"""Pods as the API server has them: what a caller says about a pod is not believed.

A caller names a pod by namespace, name and UID. Everything else, above all what it asks for, comes
from the watch; or from the API server, if the caller has heard of a pod before this replica has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.objects import PODS

if TYPE_CHECKING:
    from collections.abc import Callable

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Pod


class UnknownPodError(Exception):
    """There is no such pod; the message names it."""


class PodFinder:
    """Finds pods. `find` returns a pod as last seen, by name and namespace."""

    def __init__(self, client: Client, find: Callable[[str, str], Pod | None]) -> None:
        self._client = client
        self._find = find

    async def get(self, namespace: str, name: str, uid: str) -> Pod:
        """The pod; UnknownPodError if the API server has no such pod, or does not answer."""
        pod = self.seen(namespace, name, uid)
        if pod is None:
            try:
                pod = await self._client.get(PODS, name, namespace)
            except ApiError as error:
                raise UnknownPodError(f"pod {namespace}/{name}: {error.message}") from error
        if pod.metadata.uid != uid:
            raise UnknownPodError(
                f"pod {namespace}/{name} was replaced by another pod of that name"
            )
        return pod

    def seen(self, namespace: str, name: str, uid: str) -> Pod | None:
        """The pod as last seen; None if there is none, as far as this replica knows."""
        pod = self._find(name, namespace)
        return pod if pod is not None and pod.metadata.uid == uid else None
