"""What each user of an arbiter may have and has, from the arbiter's control socket.

Root writes the limits into a file, one line for each user:

    user alice memory 40GiB compute 50 grants 4
    user *     memory 20GiB

The arbiter reads the file when it starts and when root asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aliquot.model.errors import ArbiterError
from aliquot.slices import control

FILE = Path("/etc/aliquot/users")


@dataclass(frozen=True, slots=True)
class UserLimits:
    """Limits and use of one user, over all GPUs together; None: no limit."""

    uid: int
    memory_bytes: int | None
    compute_percent: int | None
    grants: int | None
    used_memory_bytes: int
    used_compute_percent: int
    used_grants: int


@dataclass(frozen=True, slots=True)
class LimitsReport:
    """The users that the caller may see, the file of their limits, and what is wrong with it."""

    file: str | None
    problem: str | None
    users: tuple[UserLimits, ...]
    answer: dict[str, Any]


def read_limits(directory: Path, *, again: bool = False) -> LimitsReport:
    """Limits and use of this user; for root, of all users.

    `again`: the arbiter first reads the file again, which only root may ask for.
    """
    answer = control.ask(directory, "read-users" if again else "limits")
    try:
        users = tuple(UserLimits(**one) for one in answer["users"])
        return LimitsReport(answer["file"], answer["problem"], users, answer)
    except (KeyError, TypeError) as error:
        raise ArbiterError(
            f"the arbiter in {directory} sent no limits of users: {error!r}",
            f"It may belong to another version of Aliquot. {control.END_ALL}",
        ) from error
