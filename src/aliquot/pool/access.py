"""Who may see and change what in a pool. Pure: the kernel's word goes in, a decision comes out.

| caller | own jobs | jobs of others |
|---|---|---|
| an admin: root, or a member of the admins' group | everything | everything |
| any other user of root's pool | everything | rows of unfinished jobs: user, size, phase, age |
| a process in a container | refused | refused |
| another user, of a pool that is not root's | refused | refused |

Commands of `aliquot run --wait` have rows in the list of jobs, and are seen as jobs are.

A container's root has uid 0 and is no admin of the machine, and its users are not the machine's. A
process counts as one of a container if its user, mount or PID namespace is not the pool's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aliquot.model.errors import AliquotError, InvalidValueError

if TYPE_CHECKING:
    from aliquot.model.owner import Owner
    from aliquot.pool.peers import Peer

ADMIN_GROUP = "aliquot-admin"

_WANTED = re.compile(r"(?:([^:\s]+):)?([^:\s]+)")
_SHOWN = ("number", "user", "uid", "submitted", "sizes", "live")
_SHOWN_OF_STATE = ("phase", "slots", "since")
_SHOWN_OF_REQUEST = ("gpus", "memory", "compute_percent")


class RefusedError(AliquotError):
    """The caller may not do this."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A user that may use the pool. An admin may see and change the jobs of all."""

    owner: Owner
    groups: frozenset[int]
    admin: bool

    def may_see(self, owner: Owner) -> bool:
        """Whether the caller may see and change everything about the jobs of that user."""
        return self.admin or self.owner.uid == owner.uid

    def may_name(self, wanted: WantedJob) -> bool:
        """Whether the pool searches for that name; by number anybody may ask."""
        mine = {None, self.owner.name, str(self.owner.uid)}
        return self.admin or wanted.user in mine


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one pool: of `uid`, shared by all users if that is root."""

    uid: int
    admin_gids: frozenset[int] = frozenset()

    def admit(self, peer: Peer) -> Caller:
        """The caller behind a connection; RefusedError if it may not use the pool."""
        if self.uid != 0:
            if peer.owner.uid not in {0, self.uid}:
                raise RefusedError(
                    "this pool belongs to another user", "Start your own with: aliquot up"
                )
            return Caller(peer.owner, peer.groups, admin=True)
        if not peer.here:
            raise RefusedError(
                "the pool of this machine is not for programs in containers",
                "Run the command outside, in the machine's own namespaces.",
            )
        admin = peer.owner.uid == 0 or bool(self.admin_gids & peer.groups)
        return Caller(peer.owner, peer.groups, admin)


@dataclass(frozen=True, slots=True)
class WantedJob:
    """A job as a user names it: by number, or by name and user (None: the caller)."""

    number: int | None = None
    user: str | None = None
    name: str = ""


def parse_wanted(text: str) -> WantedJob:
    """Read `12`, `train` or `alice:train`."""
    if text.isdecimal() and text.isascii():
        return WantedJob(number=int(text[:19]))  # a number of 20 digits is no job's
    match = _WANTED.fullmatch(text)
    if match is None:
        raise InvalidValueError(
            f"{text!r} is not a name or number of a job", "Write for example train or 12."
        )
    return WantedJob(user=match[1], name=match[2])


def shown(caller: Caller, owner: Owner, row: dict[str, Any]) -> dict[str, Any]:
    """A row of a job or of a waiting command as the caller may see it: hidden fields are null.

    `hidden` says whether there are such fields.
    """
    if caller.may_see(owner):
        return {**row, "hidden": False}
    seen = {key: row[key] if key in _SHOWN else None for key in row}
    seen["state"] = _only(row["state"], _SHOWN_OF_STATE)
    seen["request"] = _only(row["request"], _SHOWN_OF_REQUEST)
    return {**seen, "hidden": True}


def _only(fields: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value if key in keys else None for key, value in fields.items()}
