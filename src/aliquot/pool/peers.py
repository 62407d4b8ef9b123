"""Who is at the other end of a Unix socket, by the kernel's word."""

from __future__ import annotations

import ctypes
import errno
import grp
import os
import pwd
import signal
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.model.owner import Owner

if TYPE_CHECKING:
    from collections.abc import Iterable

ELSEWHERE = -1

_SO_PEERGROUPS = 59
_SO_PEERPIDFD = 77  # since Linux 6.5
_UCRED = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as it was when it connected.

    - `groups`: its gid and its supplementary groups.
    - `here`: whether it is in the same user, mount and PID namespace as this process. Programs in
      containers are not; neither is a process that has ended or that the kernel hides.
    """

    owner: Owner
    groups: frozenset[int]
    pid: int
    here: bool

    @property
    def counted_uid(self) -> int:
        """The user whose limits of connections hold; `ELSEWHERE` for all in other namespaces.

        A user can have thousands of uids in a user namespace (/etc/subuid).
        """
        return self.owner.uid if self.here else ELSEWHERE


def peer_of(connection: socket.socket) -> Peer:
    """The peer of a connected Unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(credentials)
    return Peer(
        Owner(uid, gid, user_name(uid)),
        frozenset({gid, *_supplementary_groups(connection)}),
        pid,
        _is_here(connection, pid),
    )


def this_user() -> Owner:
    """The user of this process."""
    return Owner(os.geteuid(), os.getegid(), user_name(os.geteuid()))


def user_of(name: str) -> Owner | None:
    """A user by name or number; None if a name is unknown."""
    try:
        found = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError:
        return Owner(int(name), int(name), name) if name.isdecimal() else None
    return Owner(found.pw_uid, found.pw_gid, found.pw_name)


def user_name(uid: int) -> str:
    """The name of a user, or its number; one without a name is looked up once a minute."""
    try:
        return _known_user_name(uid)
    except KeyError:
        return str(uid)


@lru_cache(maxsize=4096)  # of names only: who is unknown now may be known when a server answers
def _known_user_name(uid: int) -> str:
    return _found(_find_user_name(uid, _minute()))


@lru_cache(maxsize=4096)
def _find_user_name(uid: int, minute: int) -> str | None:  # noqa: ARG001 - part of the key
    """The name of a user, or None; a directory server may have to be asked."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def group_ids(*names: str) -> frozenset[int]:
    """The numbers of groups, by name or number; without those that do not exist."""
    found = set()
    for name in names:
        with suppress(KeyError):
            found.add(int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid)
    return frozenset(found)


def group_names(gids: Iterable[int]) -> frozenset[str]:
    """The names and the numbers of groups."""
    return frozenset(name for gid in gids for name in (str(gid), _group_name(gid)))


def groups_of(owner: Owner) -> frozenset[str]:
    """The names and the numbers of a user's groups, as they were at most a minute ago."""
    return _groups_of(owner, _minute())


@lru_cache(maxsize=1024)
def _groups_of(owner: Owner, minute: int) -> frozenset[str]:  # noqa: ARG001 - part of the key
    try:
        return group_names(os.getgrouplist(pwd.getpwuid(owner.uid).pw_name, owner.gid))
    except (KeyError, OSError):
        return group_names([owner.gid])


def _group_name(gid: int) -> str:
    try:
        return _known_group_name(gid)
    except KeyError:
        return str(gid)


@lru_cache(maxsize=4096)
def _known_group_name(gid: int) -> str:
    return _found(_find_group_name(gid, _minute()))


@lru_cache(maxsize=4096)
def _find_group_name(gid: int, minute: int) -> str | None:  # noqa: ARG001 - part of the key
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return None


def _found(name: str | None) -> str:
    """A name; KeyError if there is none, which no cache keeps."""
    if name is None:
        raise KeyError
    return name


def _minute() -> int:
    return int(time.monotonic()) // 60


def _supplementary_groups(connection: socket.socket) -> tuple[int, ...]:
    """The groups of a peer. Python's getsockopt returns at most 256."""
    getsockopt = ctypes.CDLL(None, use_errno=True).getsockopt
    length = ctypes.c_uint32(0)
    while True:
        groups = (ctypes.c_uint32 * (length.value // 4))()
        options = (socket.SOL_SOCKET, _SO_PEERGROUPS, groups, ctypes.byref(length))
        if getsockopt(connection.fileno(), *options) == 0:
            return tuple(groups[: length.value // 4])
        if (error := ctypes.get_errno()) != errno.ERANGE:
            raise OSError(error, os.strerror(error))


def _is_here(connection: socket.socket, pid: int) -> bool:
    """Whether a peer is in the namespaces of this process; False if that cannot be told."""
    if pid <= 0:  # its PID namespace does not lie within ours
        return False
    handle = -1
    try:
        handle = _pidfd(connection, pid)
        same = _namespaces(pid) == _namespaces("self")
        signal.pidfd_send_signal(handle, 0)  # it still lives: the links were its own
    except OSError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return same


def _namespaces(process: int | str) -> list[Path]:
    return [Path(f"/proc/{process}/ns/{one}").readlink() for one in ("user", "mnt", "pid")]


def _pidfd(connection: socket.socket, pid: int) -> int:
    with suppress(OSError):
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    return os.pidfd_open(pid)
