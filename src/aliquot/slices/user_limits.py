"""What each user of an arbiter may have and has, from the arbiter's control socket.

Root writes the limits into a file, one line for each user:

    user alice memory 40GiB compute 50 grants 4
    user *     memory 20GiB

The arbiter reads the file when it starts and when root asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.model import format_bytes
from aliquot.model.errors import ArbiterError, UserLimitError
from aliquot.slices import control

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.model import Slice

FILE = Path("/etc/aliquot/users")
MOST_GRANTS = 128  # of a user without a limit of its own


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


def check(report: LimitsReport, uid: int, slices: Sequence[Slice]) -> None:
    """Raise UserLimitError if the arbiter would refuse a new grant of this user for its limits."""
    one = next((one for one in report.users if one.uid == uid), None)
    if one is None:
        return
    memory = sum(part.memory_bytes for part in slices)
    compute = sum(part.compute_percent for part in slices)
    if one.grants is not None and one.used_grants >= one.grants:
        raise _over(f"{one.grants} grants and have {one.used_grants}")
    if one.memory_bytes is not None and one.used_memory_bytes + memory > one.memory_bytes:
        raise _over(
            f"{format_bytes(one.memory_bytes)} of GPU memory in all and have"
            f" {format_bytes(one.used_memory_bytes)}: {format_bytes(memory)} more requested"
        )
    if one.compute_percent is None:
        return
    if not all(part.compute_percent for part in slices):
        raise _over(f"{one.compute_percent}% of compute in all, so each slice needs a percentage")
    if one.used_compute_percent + compute > one.compute_percent:
        raise _over(
            f"{one.compute_percent}% of compute in all and have {one.used_compute_percent}%:"
            f" {compute}% more requested"
        )


def _over(figures: str) -> UserLimitError:
    return UserLimitError(f"you may have {figures}", "Limits and use: aliquot limits")
