"""What a user may see of the watched objects: what the API server would list for that user.

The API server's answer (SubjectAccessReview) counts for `SECONDS`. If it does not answer, nothing
is shown (ApiError).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from aliquot.kubernetes.api.elasticjob import JOBS
from aliquot.kubernetes.api.gang import GANGS
from aliquot.kubernetes.api.objects import GPU_NODES, NODES, PODS, QUEUES
from aliquot.kubernetes.api.reviews import (
    ACCESS_REVIEWS,
    AccessQuestion,
    SubjectAccessReview,
    attributes,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from aliquot.console.cluster.watched import Watched
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Resource
    from aliquot.kubernetes.api.reviews import ResourceAttributes, ReviewedUser

SECONDS = 60.0
AT_ONCE = 16
MOST_ANSWERS = 100_000


@dataclass(frozen=True, slots=True)
class Namespaces:
    """The namespaces in which a user may list a kind of object: all, or these."""

    every: bool = False
    these: frozenset[str] = frozenset()

    def __contains__(self, namespace: object) -> bool:
        return self.every or namespace in self.these

    def __bool__(self) -> bool:
        return self.every or bool(self.these)


@dataclass(frozen=True, slots=True)
class Sees:
    """What one user may list."""

    gpu_nodes: bool = False
    nodes: bool = False
    queues: bool = False
    pods: Namespaces = Namespaces()
    gangs: Namespaces = Namespaces()
    jobs: Namespaces = Namespaces()

    @property
    def lacks(self) -> list[str]:
        """The kinds of object of which this user may list none."""
        kinds: list[tuple[Resource[Any], object]] = [
            (GPU_NODES, self.gpu_nodes),
            (QUEUES, self.queues),
            (PODS, self.pods),
            (GANGS, self.gangs),
            (JOBS, self.jobs),
        ]
        return [full_name(kind) for kind, seen in kinds if not seen]


class AccessReviews:
    """Asks the API server, with the console's account, what users may do."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._answers: dict[tuple[bytes, ResourceAttributes], tuple[float, bool]] = {}
        self._few = asyncio.Semaphore(AT_ONCE)

    async def sees(self, user: ReviewedUser, watched: Watched) -> Sees:
        """What a user may list of the watched objects."""
        gpu_nodes, nodes, queues, pods, gangs, jobs = await asyncio.gather(
            self.may_list(user, GPU_NODES),
            self.may_list(user, NODES),
            self.may_list(user, QUEUES),
            self.namespaces(user, PODS, watched.namespaces_of_pods()),
            self.namespaces(user, GANGS, {namespace for namespace, _ in watched.gangs.objects}),
            self.namespaces(user, JOBS, {namespace for namespace, _ in watched.jobs.objects}),
        )
        return Sees(gpu_nodes, nodes, queues, pods, gangs, jobs)

    async def namespaces(
        self, user: ReviewedUser, of: Resource[Any], among: Collection[str]
    ) -> Namespaces:
        """In which of these namespaces a user may list a kind of object."""
        if await self.may_list(user, of):
            return Namespaces(every=True)
        who = _identity(user)
        answers = {one: self._answer(who, attributes("list", of, one)) for one in among}
        missing = [one for one, answer in answers.items() if answer is None]
        found = await asyncio.gather(*(self.may_list(user, of, one) for one in missing))
        answers |= dict(zip(missing, found, strict=True))
        return Namespaces(these=frozenset(one for one, allowed in answers.items() if allowed))

    async def may_list(self, user: ReviewedUser, of: Resource[Any], namespace: str = "") -> bool:
        """Whether a user may list a kind of object; without a namespace, in all of them."""
        who, action = _identity(user), attributes("list", of, namespace)
        allowed = self._answer(who, action)
        if allowed is None:
            async with self._few:
                allowed = await self._ask(user, action)
            if len(self._answers) >= MOST_ANSWERS:
                self._answers.clear()
            self._answers[who, action] = time.monotonic() + SECONDS, allowed
        return allowed

    def _answer(self, who: bytes, action: ResourceAttributes) -> bool | None:
        """The answer that still counts; None: it must be asked for."""
        until, allowed = self._answers.get((who, action), (0.0, False))
        return allowed if until >= time.monotonic() else None

    async def _ask(self, user: ReviewedUser, action: ResourceAttributes) -> bool:
        question = AccessQuestion(action, user.username, user.uid, user.groups, user.extra)
        review = await self._client.create(ACCESS_REVIEWS, SubjectAccessReview(question))
        return review.status.allowed


def _identity(user: ReviewedUser) -> bytes:
    """All of a user that decides what the user may do."""
    return msgspec.json.encode(user, order="deterministic")


def full_name(of: Resource[Any]) -> str:
    """The name of a kind as kubectl has it: `gangs.aliquot.io`."""
    group = of.api_version.rpartition("/")[0]
    return f"{of.plural}.{group}" if group else of.plural
