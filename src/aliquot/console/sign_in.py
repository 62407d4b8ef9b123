"""Who may use the console: a token in a file, links that work once, and sessions.

The token is in FOLDER/token, which only its user can read. Three credentials follow from it, each a
name that may be known and a key that may not:

- `token`: the token itself.
- `code.issued.nonce`: a link has the name and the key in its fragment, which browsers do not send.
  The console accepts it once, for `CODE_SECONDS`, and none that is older than itself.
- `session.expires.nonce`: a restarted console still accepts it.

A page never sends a key. It sends the name and a challenge first, and the console proves that it
knows the key, for the host that was asked (`SignIn.prove`). Then the page's requests carry a
signature that only this run of this console accepts (`SignIn.accepts`). So a program that takes the
port after the console has ended can neither prove anything, nor use what a page has sent.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from aliquot.model.errors import StateError
from aliquot.slices import state_directory

CODE_SECONDS = 600.0
SESSION_SECONDS = 12 * 3600.0
SET_BACK_SECONDS = 600.0  # by so much the clock may be set back, and credentials stay

_TOKEN_BYTES = 32
_NONCE_BYTES = 12
_MOST_DIGITS = 12


def read_token(folder: Path) -> str:
    """The token of a console's folder; StateError if others could have read or written it."""
    state_directory.make_directory(folder)
    path = folder / "token"
    if not os.path.lexists(path):
        _make_token(path)
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(handle, encoding="ascii") as file:
        found, token = os.fstat(file.fileno()), file.read(2 * _TOKEN_BYTES + 1)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077 or len(token) != 2 * _TOKEN_BYTES:
        raise StateError(
            f"{path} is not a token that only this user can read",
            f"Remove it, and the next start makes another: rm {path}",
        )
    return token


def _make_token(path: Path) -> None:
    """Have a token there, whole: a start at the same time reads it, and the disk may be full."""
    new = path.with_name(f"token.{secrets.token_hex(4)}")
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(_TOKEN_BYTES))
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink(missing_ok=True)


def make_code(token: str) -> str:
    """What signs in once: the name and the key of a credential."""
    name = f"code.{time.time():.3f}.{secrets.token_urlsafe(_NONCE_BYTES)}"
    return f"{name}.{_signature(token, 'key', name)}"


@dataclass(frozen=True, slots=True)
class Session:
    """A session that begins: what its page keeps."""

    name: str
    key: str
    expires: float


def _steady() -> float:
    """A clock that nobody sets, and that runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class SignIn:
    """Checks tokens and credentials in one run of a console, from `since` on.

    The clock may be set meanwhile: how long the console runs is known by one that nobody sets.
    """

    token: str
    since: float
    run: str = field(default_factory=lambda: secrets.token_urlsafe(_NONCE_BYTES))
    _begun: float = field(default_factory=_steady)
    _used: dict[str, float] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def accepts_token(self, given: str) -> bool:
        """Whether that is the token."""
        return hmac.compare_digest(given.encode(), self.token.encode())

    def prove(self, name: str, challenge: str, host: str) -> str | None:
        """A proof for a page that this console knows its key; None if the name opens nothing.

        The host is part of it: what answers at another address cannot pass this proof on.
        """
        key = self._key(name)
        return (
            None if key is None else _signature(key, "console", f"{host}\n{self.run}\n{challenge}")
        )

    def accepts(self, given: str, host: str) -> str | None:
        """The name of a credential that signed for this run and host; None if that is wrong."""
        name, _, signature = given.partition(" ")
        key = self._key(name)
        if key is None:
            return None
        expected = _signature(key, "page", f"{host}\n{self.run}")
        return name if hmac.compare_digest(signature.encode(), expected.encode()) else None

    def use_code(self, name: str) -> bool:
        """Use a link's credential up; whether it was not used before."""
        if name in self._used:
            return False
        now = _steady()
        longest = CODE_SECONDS + SET_BACK_SECONDS
        self._used = {one: at for one, at in self._used.items() if at >= now - longest}
        self._used[name] = now
        return True

    def new_session(self) -> Session:
        """A session that begins now."""
        expires = time.time() + SESSION_SECONDS
        name = f"session.{expires:.0f}.{secrets.token_urlsafe(_NONCE_BYTES)}"
        return Session(name, _signature(self.token, "key", name), expires)

    def end_session(self, name: str) -> None:
        """Accept that session no longer, while this console runs."""
        if kind_of(name) == "session":
            self._ended = {one for one in self._ended | {name} if self._key(one) is not None}

    def _key(self, name: str) -> str | None:
        """The key of a credential that is accepted now."""
        match name.split("."):
            case ["token"]:
                return self.token
            case ["code", whole, part, nonce] if _is_written(whole, part, nonce):
                issued, now = float(f"{whole}.{part}"), time.time()
                since = min(self.since, now - (_steady() - self._begun))
                old = max(since, now - CODE_SECONDS)
                if issued < old or issued > now + SET_BACK_SECONDS or name in self._used:
                    return None
            case ["session", expires, nonce] if _is_written(expires, "0", nonce):
                left = float(expires) - time.time()
                most = SESSION_SECONDS + SET_BACK_SECONDS
                if not 0 < left <= most or name in self._ended:
                    return None
            case _:
                return None
        return _signature(self.token, "key", name)


def kind_of(name: str) -> str:
    """The kind of a credential: token, code or session."""
    return name.partition(".")[0]


def _is_written(whole: str, part: str, nonce: str) -> bool:
    numbers = f"{whole}{part}"
    return len(whole) <= _MOST_DIGITS and numbers.isascii() and numbers.isdigit() and bool(nonce)


def _signature(key: str, purpose: str, body: str) -> str:
    return hmac.new(key.encode(), f"{purpose}:{body}".encode(), "sha256").hexdigest()
