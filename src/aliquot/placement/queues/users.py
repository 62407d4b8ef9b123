"""Fair share between users: each user has a queue below each queue they use.

A user's limit holds for all these queues together: what they use counts for one more queue, which
stands beside the tree and is nobody's parent.

What a user has used lately counts as if they still had it, so that the user who has had least goes
first (`quota.fair_share_order`). It is GPU-seconds, of which half are forgotten after each
half-life; `HORIZON_SECONDS` of a GPU used count like a GPU that is held now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.placement.core.demand import WHOLE_MILLI
from aliquot.placement.queues.quota import Queue, Resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.placement.queues.quota import Bound

HALF_LIFE_SECONDS = 86400.0
HORIZON_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class PastUse:
    """The GPU-seconds that a user has used, as of `at`, without those forgotten since."""

    gpu_seconds: float = 0.0
    at: float = 0.0

    def after(self, now: float, gpus: float, half_life: float) -> PastUse:
        """The use at a later time, if the user had that many GPUs meanwhile."""
        passed = max(0.0, now - self.at)
        kept = 0.5 ** (passed / half_life)
        more = gpus * half_life / math.log(2) * (1 - kept)
        return PastUse(self.gpu_seconds * kept + more, now)

    @property
    def held(self) -> Resources:
        """What it counts as, if it was held now."""
        return Resources(milli=int(WHOLE_MILLI * self.gpu_seconds / HORIZON_SECONDS))


def user_queue(queue: str, user: str) -> str:
    """The name of a user's queue below a queue."""
    return f"{queue}/{user}"


def with_users(
    queues: Mapping[str, Queue],
    users: Mapping[str, set[str]],
    past: Mapping[str, PastUse],
    limits: Mapping[str, Bound],
) -> dict[str, Queue]:
    """The queues with one below each for each of its users (`users`, by queue).

    `past` is what users have used, `limits` the most that a user may have in all queues together;
    both by the user's name.
    """
    found = {name: queues.get(name, Queue(name)) for name in (*queues, *users)}
    totals = {user: user_queue("", user) for user in limits}
    found |= {name: Queue(name, limit=limits[user], user=user) for user, name in totals.items()}
    for queue, names in users.items():
        for user in names:
            name = user_queue(queue, user)
            own = Queue(name, parent=queue, user=user, also_counts_for=totals.get(user, ""))
            found[name] = replace(own, past=past[user].held) if user in past else own
    return found
