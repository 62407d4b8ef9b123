"""The limits of a pool's policy as the arbiter's own file of limits, so that one file decides both.

The arbiter reads `users` in its state directory, which the pool writes from its policy. An arbiter
that reads another file keeps it: then the limits of memory, compute and grants are that file's.
"""

from __future__ import annotations

import grp
import os
import pwd
import threading
from typing import TYPE_CHECKING

from aliquot.pool.peers import groups_of, user_of
from aliquot.slices.user_limits import MOST_GRANTS, read_limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from aliquot.model.owner import Owner
    from aliquot.pool.policy import PoolPolicy, UserQuota

NAME = "users"

_MIB, _GIB = 1 << 20, 1 << 30


def limits_text(everybody: UserQuota, users: Mapping[int, UserQuota]) -> str:
    """The arbiter's file for these limits, by uid."""
    lines = [_line("*", everybody)] if _limits(everybody) else []
    lines += [_line(str(uid), quota) for uid, quota in sorted(users.items())]
    return "".join(["# Written by the pool from its policy.\n", *lines])


def write_limits(directory: Path, policy: PoolPolicy) -> Path:
    """Write the file into the state directory of an arbiter."""
    return _write(directory, _text_of(policy))


def republish_limits(directory: Path, policy: PoolPolicy) -> None:
    """As `publish_limits`, if other users are in the groups by now."""
    if (directory / NAME).read_text("utf-8") != _text_of(policy):
        publish_limits(directory, policy)


def _text_of(policy: PoolPolicy) -> str:
    users = {
        owner.uid: policy.quota_of(owner.name, owner.uid, groups_of(owner))
        for owner in _users(policy)
    }
    return limits_text(policy.everybody, users)


def _write(directory: Path, text: str) -> Path:
    path, new = directory / NAME, directory / f".{NAME}-{os.getpid()}-{threading.get_ident()}"
    new.write_text(text, "utf-8")
    new.chmod(0o644)
    new.replace(path)
    return path


def publish_limits(directory: Path, policy: PoolPolicy) -> str | None:
    """Let the arbiter of a state directory use these limits; why it does not."""
    path = write_limits(directory, policy)
    used = read_limits(directory).file
    if used == str(path):
        read_limits(directory, again=True)
        return None
    return f"limits of memory, compute and grants are those of {used}, which the arbiter reads"


def _users(policy: PoolPolicy) -> Iterator[Owner]:
    """The users of this machine that the policy names, by themselves or by a group."""
    names = set(policy.users)
    for group in policy.groups:
        try:
            found = grp.getgrgid(int(group)) if group.isdecimal() else grp.getgrnam(group)
        except KeyError:
            continue
        names |= set(found.gr_mem)
        names |= {one.pw_name for one in pwd.getpwall() if one.pw_gid == found.gr_gid}
    owners = (user_of(name) for name in sorted(names))
    return (owner for owner in owners if owner is not None and owner.uid != 0)


def _limits(quota: UserQuota) -> list[str]:
    found = []
    if (memory := quota.memory_bytes) is not None:
        small = memory < _GIB << 10
        found.append(f"memory {memory // _MIB}MiB" if small else f"memory {memory // _GIB}GiB")
    if quota.compute_percent is not None:
        found.append(f"compute {quota.compute_percent}")
    if quota.grants is not None:
        found.append(f"grants {quota.grants}")
    return found


def _line(user: str, quota: UserQuota) -> str:
    """A line; a user without such limits has that of all users, so that no other line counts."""
    return f"user {user} {' '.join(_limits(quota) or [f'grants {MOST_GRANTS}'])}\n"
