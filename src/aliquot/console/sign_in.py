"""Who may use the console: a token in a file, links that work once, and signed sessions.

The token is in FOLDER/token, which only its user can read. Everything else follows from it:

- A link has a code in its fragment, which browsers do not send: `issued.nonce.signature`. The
  console accepts it once, for `CODE_SECONDS`, and none that is older than itself.
- A session is a cookie, `expires.nonce.signature`: a restarted console still accepts it.
- A session's CSRF value is a signature of the session, and every request needs both. A page or a
  server of another origin can neither read nor guess it, even if it has seen the cookie.
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

_TOKEN_BYTES = 32
_NONCE_BYTES = 12


def read_token(folder: Path) -> str:
    """The token of a console's folder; StateError if others could have read or written it."""
    state_directory.make_directory(folder)
    path = folder / "token"
    with suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(_TOKEN_BYTES))
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(handle, encoding="ascii") as file:
        found, token = os.fstat(file.fileno()), file.read(2 * _TOKEN_BYTES + 1)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077 or len(token) != 2 * _TOKEN_BYTES:
        raise StateError(
            f"{path} is not a token that only this user can read",
            f"Remove it, and the next start makes another: rm {path}",
        )
    return token


def make_code(token: str) -> str:
    """A code that signs in once."""
    return _signed(token, "code", f"{time.time():.3f}.{secrets.token_urlsafe(_NONCE_BYTES)}")


@dataclass
class SignIn:
    """Checks tokens, codes and sessions. It accepts codes that were made since `since`."""

    token: str
    since: float
    _used: dict[str, float] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def accepts_token(self, given: str) -> bool:
        """Whether that is the token."""
        return hmac.compare_digest(given.encode(), self.token.encode())

    def accepts_code(self, code: str) -> bool:
        """Whether that is a code of a link; it is used then."""
        issued, now = self._number(code, "code"), time.time()
        if issued is None or issued < self.since or issued < now - CODE_SECONDS:
            return False
        if code in self._used:
            return False
        self._used = {one: at for one, at in self._used.items() if at >= now - CODE_SECONDS}
        self._used[code] = issued
        return True

    def new_session(self) -> str:
        """A session that begins now."""
        expires = time.time() + SESSION_SECONDS
        body = f"{expires:.0f}.{secrets.token_urlsafe(_NONCE_BYTES)}"
        return _signed(self.token, "session", body)

    def accepts_session(self, session: str) -> bool:
        """Whether that is a session that has not expired."""
        return session not in self._ended and self._is_current(session)

    def end_session(self, session: str) -> None:
        """Accept that session no longer, while this console runs."""
        self._ended = {one for one in self._ended | {session} if self._is_current(one)}

    def _is_current(self, session: str) -> bool:
        expires = self._number(session, "session")
        return expires is not None and expires > time.time()

    def csrf_of(self, session: str) -> str:
        """What a page must send with each request of that session."""
        return _signature(self.token, "csrf", session)

    def accepts_csrf(self, session: str, given: str) -> bool:
        """Whether that is the session's CSRF value."""
        return hmac.compare_digest(given.encode(), self.csrf_of(session).encode())

    def _number(self, text: str, purpose: str) -> float | None:
        """The number that a signed text begins with; None if the signature is not ours."""
        body, _, signature = text.rpartition(".")
        expected = _signature(self.token, purpose, body)
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            return None
        return float(body.rpartition(".")[0])


def _signed(token: str, purpose: str, body: str) -> str:
    return f"{body}.{_signature(token, purpose, body)}"


def _signature(token: str, purpose: str, body: str) -> str:
    return hmac.new(token.encode(), f"{purpose}:{body}".encode(), "sha256").hexdigest()
