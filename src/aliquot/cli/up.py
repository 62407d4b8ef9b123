"""`aliquot up` and `aliquot down`."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.console_child import OFF, ConsoleChild
from aliquot.cli.tables import print_text
from aliquot.devices import check_version, parse_shape
from aliquot.model import format_count
from aliquot.model.errors import AliquotError, NotOwnerError, StateError
from aliquot.placement.elastic.resize import Rules
from aliquot.pool import pool_cgroup
from aliquot.pool.client import NoPoolError, PoolClient, SeveralPoolsError, connect
from aliquot.pool.directory import directory_of, prepare
from aliquot.pool.up import bring_up, check_may_bring_up

if TYPE_CHECKING:
    from aliquot.pool.directory import PoolDirectory

_START_SECONDS = 60.0
_END_SECONDS = 60.0
_POLL_SECONDS = 0.02
_LARGEST_LOG = 16 << 20  # then the next pool begins another one


def up(  # noqa: PLR0913 - one for each option
    simulate: str | None,
    policy: Path | None,
    resize_every: float,
    settle: float | None,
    *,
    detach: bool,
    console: str,
) -> None:
    """Run the pool of this machine or of a simulated one; `detach`: in the background.

    `console`: the address of the console beside it, or `console_child.OFF`.
    """
    state = slices.locate(parse_shape(simulate) if simulate else None)
    if state.shape is None:
        check_version(state.driver())
    rules = Rules(
        resize_seconds=resize_every, settle_seconds=resize_every if settle is None else settle
    )
    policy = None if policy is None else policy.absolute()  # the child changes its folder
    directory = directory_of(state)
    if detach and policy is None and rules == Rules() and (pid := PoolClient(directory).pid()):
        print_text(f"The pool of {directory} is already up: pid {pid}\n")
        return
    check_may_bring_up(state)
    if detach and (started := _in_background(directory)):
        print_text(started if console == OFF else f"{started}Its web page: aliquot console\n")
        return
    child = None if console == OFF else ConsoleChild(console, state, _say)
    try:
        bring_up(state, rules, policy, _say, None if child is None else child.start)
    finally:
        if child is not None:
            child.stop()


def _say(line: str) -> None:
    with suppress(OSError):  # a closed stderr must not stop the pool
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} aliquot: {line}\n")
        sys.stderr.flush()


def _in_background(directory: PoolDirectory) -> str:
    """Fork. In the child, which becomes the pool, it returns an empty text.

    In the parent it returns where the pool is when the pool answers; AliquotError if it ends.
    """
    prepare(directory)
    log = directory.path / "pool.log"
    with suppress(OSError):
        if log.stat().st_size > _LARGEST_LOG:
            log.replace(f"{log}.1")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    output = os.open(log, flags, 0o600)
    begin = os.fstat(output).st_size
    child = os.fork()
    if child == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.chdir("/")
        return ""
    os.close(output)
    _wait_until_up(directory, child, log, begin)
    return f"The pool of {directory} is up: pid {child}, log {log}\n"


def _wait_until_up(directory: PoolDirectory, child: int, log: Path, begin: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while PoolClient(directory).pid() != child:
        ended, _ = os.waitpid(child, os.WNOHANG)
        if ended:
            raise StateError(
                f"the pool of {directory} did not start: {_last_words(log, begin)}",
                f"Its log: {log}",
            )
        if time.monotonic() > deadline:
            raise StateError(
                f"the pool of {directory} (pid {child}) does not answer after {_START_SECONDS:g} s",
                f"It may still start. Its log: {log}",
            )
        time.sleep(_POLL_SECONDS)


def _last_words(log: Path, begin: int) -> str:
    """What it wrote, without its name."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read(1 << 16).decode("utf-8", "replace").strip().splitlines()
    words = next(
        (line for line in lines if line.startswith("aliquot: ")), lines[-1] if lines else ""
    )
    return words.removeprefix("aliquot: ") or "it wrote nothing"


def down(simulate: str | None) -> None:
    """Stop the pool, and say which jobs keep running."""
    try:
        client = connect(parse_shape(simulate) if simulate else None)
    except SeveralPoolsError:
        raise
    except NoPoolError as error:
        print_text(f"{error.message[:1].upper()}{error.message[1:]}: nothing to stop.\n")
        return
    running = [job for job in client.jobs(with_finished=False) if job["state"]["slots"]]
    pid = client.pid()
    if pid is not None:
        _stop(client, pid)
    where = client.directory
    if not running:
        print_text(f"The pool of {where} is down; no job runs.\n")
        return
    names = ", ".join(str(job["name"]) for job in running)
    print_text(
        f"The pool of {where} is down. {format_count(len(running), 'job')} still running:"
        f" {names}. The next aliquot up continues with them.\n"
    )


def _stop(client: PoolClient, pid: int) -> None:
    if unit := unit_of(pid):
        raise AliquotError(
            f"the pool of {client.directory} (pid {pid}) is run by systemd",
            f"Stop it with: sudo systemctl stop {unit}",
        )
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if client.pid() != pid:  # the handle may be of a later process
            return
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if not poll.poll(_END_SECONDS * 1000):
            raise AliquotError(
                f"the pool of {client.directory} (pid {pid}) has not ended after"
                f" {_END_SECONDS:g} s",
                f"See what it does in its log, or end it with: kill -9 {pid}; jobs keep running.",
            )
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise NotOwnerError(
            f"the pool of {client.directory} (pid {pid}) belongs to another user",
            "Ask as root: sudo aliquot down",
        ) from error
    finally:
        os.close(handle)


def unit_of(pid: int) -> str | None:
    """The systemd service that a process is in; None: it is in none."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text("utf-8")
        own = Path("/proc/self/cgroup").read_text("utf-8")
    except OSError:
        return None
    unit = groups.strip().removesuffix(f"/{pool_cgroup.NAME}").rpartition("/")[2]
    return unit if unit.endswith(".service") and groups != own else None
