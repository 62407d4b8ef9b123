"""The Unix user that a worker runs as: groups, resource limits and rights.

Everything that the user owns (folder, program) is opened after `become`, with that user's rights.
"""

from __future__ import annotations

import ctypes
import os
import platform
import pwd
import resource
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAM_SERVICE = "aliquot"
PAM_FOLDER = Path("/etc/pam.d")

# The number of keyctl(2), which has no function in the C library; None: not known here.
KEYCTL = {"x86_64": 250, "aarch64": 219}.get(platform.machine())

_KEYCTL_JOIN_SESSION_KEYRING = 1
_UMASK = 0o022
_LIMITS = tuple(
    getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")
)
_PAM_SILENT, _PAM_ESTABLISH, _PAM_DELETE = 0x8000, 2, 4
_PAM_CONV_ERR = 19


class AccountError(AliquotError):
    """The user does not exist any more, or may not use this machine now."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user with its groups; `name` is None if the machine has no such name."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a program of the user inherits: resource limits by number, and the umask."""

    limits: Mapping[int, tuple[int, int]]
    umask: int


def look_up(uid: int, gid: int, name: str | None = None) -> Account:
    """The account of a user with the groups that it has now; `gid` if it is one of them.

    `name` is what the user was called when it submitted, its number if it had none. AccountError:
    that user is no more, and another may have the number.
    """
    had_name = name not in {None, str(uid)}
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        if had_name:
            raise AccountError(f"user {name} ({uid}) does not exist any more") from None
        return Account(uid, gid, (gid,))
    if had_name and name != entry.pw_name:
        raise AccountError(f"uid {uid} was {name}'s and is {entry.pw_name}'s now")
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return Account(uid, gid if gid in groups else entry.pw_gid, tuple(groups), entry.pw_name)


@contextmanager
def session(account: Account, folder: Path = PAM_FOLDER) -> Iterator[Surroundings]:
    """Open a PAM session for a program of the user; close it at the end. Needs root.

    Where the machine has no PAM service for Aliquot, or the user no name, the program inherits the
    limits of this process. AccountError: PAM refuses the user.
    """
    if account.name is None or not (folder / PAM_SERVICE).exists():
        yield Surroundings({}, _UMASK)
        return
    before, umask = _limits_now(), os.umask(_UMASK)
    try:
        pam = _Pam(account.name, folder)
        try:
            pam.open()
            inherited = Surroundings(_limits_now(), _umask_now())
        except BaseException:
            pam.end()
            raise
        finally:  # they are the user's, not this process's
            for number, values in before.items():
                with suppress(OSError, ValueError):  # without CAP_SYS_RESOURCE
                    resource.setrlimit(number, values)
    finally:
        os.umask(umask)
    try:
        yield inherited
    finally:
        pam.close()


def become(account: Account, inherited: Surroundings) -> None:
    """Give up all rights for those of a user. Needs root; cannot be undone."""
    for number, values in inherited.limits.items():
        resource.setrlimit(number, values)
    join_new_keyring()  # as root: a user can use up the number of keys that it may have
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    join_new_keyring()  # one of the user's own
    if os.getresuid() != (account.uid,) * 3 or os.getresgid() != (account.gid,) * 3:
        raise PermissionError("the rights could not be given up")
    os.umask(inherited.umask)


def join_new_keyring() -> int:
    """Leave the session keyring, which has root's keys, for an empty one; -1 if there is none."""
    if KEYCTL is None:
        return -1
    return int(ctypes.CDLL(None).syscall(KEYCTL, _KEYCTL_JOIN_SESSION_KEYRING, None))


def _limits_now() -> dict[int, tuple[int, int]]:
    return {number: resource.getrlimit(number) for number in _LIMITS}


def _umask_now() -> int:
    found = os.umask(_UMASK)
    os.umask(found)
    return found


class _Message(ctypes.Structure):
    _fields_ = (("style", ctypes.c_int), ("text", ctypes.c_char_p))


_CONVERSE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.POINTER(_Message)),
    ctypes.c_void_p,
    ctypes.c_void_p,
)


class _Conversation(ctypes.Structure):
    _fields_ = (("converse", _CONVERSE), ("data", ctypes.c_void_p))


class _Pam:
    """A PAM transaction. Nobody is there to answer questions, so none may be asked."""

    def __init__(self, user: str, folder: Path) -> None:
        try:
            self._library = ctypes.CDLL("libpam.so.0")
        except OSError as error:
            raise AccountError(f"PAM cannot be used: {error}") from error
        self._library.pam_strerror.restype = ctypes.c_char_p
        self._talk = _Conversation(_CONVERSE(lambda *_: _PAM_CONV_ERR), None)
        self._handle = ctypes.c_void_p()
        self._user = user
        arguments = [PAM_SERVICE.encode(), user.encode(), ctypes.byref(self._talk)]
        if folder == PAM_FOLDER:
            start = self._library.pam_start
        else:
            start = self._library.pam_start_confdir
            arguments.append(os.fsencode(folder))
        if code := start(*arguments, ctypes.byref(self._handle)):
            raise AccountError(f"PAM cannot be used for {user}: error {code}")

    def open(self) -> None:
        """Check that the account may be used, and open the session."""
        self._call("acct_mgmt", _PAM_SILENT)
        self._call("setcred", _PAM_ESTABLISH | _PAM_SILENT)
        self._call("open_session", _PAM_SILENT)

    def close(self) -> None:
        """Close the session."""
        self._library.pam_close_session(self._handle, _PAM_SILENT)
        self._library.pam_setcred(self._handle, _PAM_DELETE | _PAM_SILENT)
        self.end()

    def end(self) -> None:
        """End the transaction."""
        self._library.pam_end(self._handle, 0)

    def _call(self, step: str, flags: int) -> None:
        if code := getattr(self._library, f"pam_{step}")(self._handle, flags):
            why = (self._library.pam_strerror(self._handle, code) or b"").decode()
            raise AccountError(f"PAM refuses {self._user}: {why}")
