"""The process of the console: its folder, its address, and serving until it is stopped.

    FOLDER/token      what signs in (`sign_in`)
    FOLDER/address    where the console is, for `aliquot console`; locked while one serves
    FOLDER/history.sqlite    what GPUs and slices used (`history_store`)

FOLDER is `console` in the state directory, or in this user's own if that is root's.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from aliquot.console.application import make_application
from aliquot.console.history_store import HistoryStore
from aliquot.console.listening import bind, serve_on, site_of
from aliquot.console.sign_in import SignIn, make_code, read_token
from aliquot.console.snapshots import Machine
from aliquot.model.errors import AliquotError
from aliquot.slices import state_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aliquot.console.listening import Listen
    from aliquot.slices import StateDirectory


class ConsoleServesError(AliquotError):
    """A console of this machine serves already."""


def folder_of(state: StateDirectory) -> Path:
    """The folder of this user's console of that machine."""
    own = not state_directory.belongs_to_root(state.directory)
    return (state.directory if own else state_directory.own_directory()) / "console"


def find_console(state: StateDirectory) -> str | None:
    """The address of this user's console of that machine; None if none serves."""
    try:
        with (folder_of(state) / "address").open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or None
    except OSError:
        return None
    return None


def link_to(state: StateDirectory, address: str) -> str:
    """A link that signs in once."""
    return f"{address}#code={make_code(read_token(folder_of(state)))}"


def serve(state: StateDirectory, listen: Listen, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `ready` gets the address when the console listens."""
    state_directory.prepare(state)
    folder = folder_of(state)
    token = read_token(folder)
    lock, last = _lock(folder / "address")
    with bind(listen, last) as server:
        site, address = site_of(listen, server)
        machine = Machine(state, HistoryStore(folder / "history.sqlite"))
        app = make_application(machine, SignIn(token, time.time()), site)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{address}\n".encode(), 0)
        ready(address)
        try:
            serve_on(app, server)
        finally:
            os.close(lock)


def end_with_stdin() -> None:
    """End this process when its standard input ends: its parent is gone."""

    def wait() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def _lock(path: Path) -> tuple[int, str]:
    """The locked file, and what it says of the last console."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise ConsoleServesError(
            "a console of this machine serves already", "Get a link to it with: aliquot console"
        ) from error
    return handle, os.pread(handle, 4096, 0).decode("utf-8", "replace").strip()
