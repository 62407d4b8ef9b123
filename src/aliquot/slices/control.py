"""The client of the arbiter's control socket: one request, one reply.

The socket is `control` in the state directory. The client sends one line and receives one JSON
object, then both close. The kernel tells the arbiter which process asks; that process owns the
grant it makes, so the process that will become the tenant calls `make`. A kept grant has no owner:
it stays until `end`.

Names are per user. A request names a grant of the caller's own by its plain name; root names that
of another user `UID:NAME`, as `Grant.name` has it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.model.errors import (
    AliquotError,
    ArbiterError,
    HeldMemoryError,
    MemoryInUseError,
    MpsError,
    NameInUseError,
    NoCapacityError,
    NoSuchGrantError,
    PoolAdmitsError,
    ProcessGoneError,
    StateError,
    UnsupportedError,
    UserLimitError,
)
from aliquot.model.grant import Isolation
from aliquot.slices import procfs, silence
from aliquot.slices.arbiter_status import Status, parse_status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aliquot.model import (
        GrantState,
        Policy,
        Priority,
        Request,
        Residence,
        Slice,
    )
    from aliquot.model.neighbours import Neighbours
    from aliquot.model.parking_rule import ParkingRule

PROTOCOL = 1
ASK_DOCTOR = "To find out why, run: aliquot doctor"
RELOAD_USERS = "Correct the file, then run as root: aliquot limits --reload"
END_ALL = "End all grants, so that the arbiter ends, and try again."


class NoArbiterError(ArbiterError):
    """No arbiter listens in this state directory."""


class SilentArbiterError(NoArbiterError):
    """An arbiter listens in this state directory and does not answer in time."""


class NotUnderstoodError(ArbiterError):
    """The arbiter does not know this request: it is of another version."""


class CapacityRefusedError(NoCapacityError):
    """The arbiter refused for lack of capacity; another process may have been faster."""


class NoHostMemoryError(NoCapacityError):
    """The host has too little memory for what a request wants of it (--spill)."""


_TIMEOUT = 20.0
_BUSY_SECONDS = 0.1
_LARGEST_ANSWER = 64 << 20
_REFUSALS: dict[str, type[AliquotError]] = {
    "name-in-use": NameInUseError,
    "no-capacity": CapacityRefusedError,
    "no-host-memory": NoHostMemoryError,
    "cannot-make": StateError,
    "no-such-grant": NoSuchGrantError,
    "in-use": MemoryInUseError,
    "unsupported": UnsupportedError,
    "user-limit": UserLimitError,
    "share-needed": UserLimitError,
    "pool-admits": PoolAdmitsError,
    "no-such-process": ProcessGoneError,
    "not-swappable": UnsupportedError,
    "no-mps": MpsError,
    "mps-stays": UnsupportedError,
    "holds-memory": HeldMemoryError,
    "malformed": NotUnderstoodError,
}
_HINTS = {
    "in-use": "Free memory in the program, or lower the limit step by step as it frees: add --wait",
    "no-host-memory": "Ask for less with --spill. Who has how much: aliquot ps. The limit for all:"
    " aliquot arbiter --host-memory, or host_memory in pool.toml",
    "not-allowed": "Ask as root.",
    "not-kept": "End its command.",
    "malformed": "The arbiter may be of another version. To compare the two, run: aliquot doctor",
    "pool-admits": "Submit the work to the pool: aliquot submit. See: aliquot submit --help",
    "user-limit": "End or shrink a grant of that user (aliquot ps), or let root raise the limit and"
    " run: aliquot limits --reload. Limits and use: aliquot limits",
    "share-needed": "Add --compute PERCENT. Limits and use: aliquot limits",
    "users-file": RELOAD_USERS,
    "no-mps": "Use --isolation soft, or another GPU. Who may allow it: aliquot arbiter --mps",
    "mps-stays": "Let it run, or end it: aliquot kill. Soft slices can be suspended.",
    "unsupported": "Use --policy elastic. docs/support.md lists where compute shares work.",
}


@dataclass(frozen=True, slots=True)
class SliceChange:
    """New settings of one slice; a setting that is None does not change."""

    gpu_uuid: str
    memory_bytes: int | None = None
    compute_percent: int | None = None
    policy: Policy | None = None
    priority: Priority | None = None


@dataclass(frozen=True, slots=True)
class Resized:
    """A slice's memory limit after a change; `reached`: it is the requested limit."""

    gpu_uuid: str
    memory_bytes: int
    reached: bool


def answers(directory: Path) -> bool:
    """Whether an arbiter listens in this state directory."""
    try:
        with _connection(directory):
            return True
    except ArbiterError:
        return False


def status(directory: Path, timeout: float | None = None) -> Status:
    """Ask an arbiter for its status; SilentArbiterError if it does not answer in time."""
    answer = ask(directory, "status", timeout)
    try:
        if answer["version"] != PROTOCOL:
            raise ArbiterError(
                f"the arbiter in {directory} speaks version {answer['version']},"
                f" and this program {PROTOCOL}",
                END_ALL,
            )
        found = parse_status(answer)
        if all(one.overcommit <= 1 for one in found.gpus):
            return found
        from aliquot.slices.turn_room import with_host_use  # noqa: PLC0415 - loads placement

        return replace(found, gpus=with_host_use(found.gpus, found.grants))
    except (KeyError, TypeError, ValueError) as error:
        raise ArbiterError(
            f"the arbiter in {directory} sent an invalid reply: {error!r}",
            f"It may belong to another version of Aliquot. {END_ALL}",
        ) from error


def make(  # noqa: PLR0913 - what a grant is, and whose
    directory: Path,
    name: str,
    slices: Sequence[Slice],
    *,
    kept: bool = False,
    together: str | None = None,
    neighbours: Neighbours | None = None,
    swap: bool = False,
    park_after: ParkingRule | None = None,
    swap_wait: float = 0.0,
    overcommit: float = 0.0,
    spill: int = 0,
    isolation: Isolation = Isolation.SOFT,
    owner: int | None = None,
    pid: int | None = None,
    started: int | None = None,
) -> str:
    """Make a grant and return how a tenant refers to it: `DIRECTORY#MARK`.

    The mark differs from that of a later grant of the same name. This process owns the grant. A
    `kept` grant has no owner and stays until `end`; only root and the arbiter's user may make one.
    With `pid`, of any user, it also ends with that process: the first one of its container.
    Grants of one user that are made with the same `together` hold their GPUs together. The arbiter
    keeps other grants away as `neighbours` says, but does not look for a GPU `beside` any. With
    `swap` the memory of its programs can leave the GPU (`move`); it has one slice then. It leaves
    by itself when the grant is idle by the rule `park_after`, and returns by itself. If it takes
    turns with memory, it shall be off its GPU for at most `swap_wait` seconds at a time, and all
    slices there may have `overcommit` times the GPU's memory; 0: as the arbiter says.
    With `isolation` mps its programs are clients of an MPS server, which the caller sees to.
    When its slice is full, its programs get up to `spill` bytes of the host; NoHostMemoryError if
    the host has too little.

    Root can make a grant of the user `owner`, within that user's limits, which only that user and
    root can join. It is kept; with `pid` it is owned by that process, as if that process had asked.
    `started` is when that process started (`procfs.started_at`), so that a later process with the
    same pid gets nothing; by default it is read now.
    """
    if isolation is Isolation.HARDWARE:  # an instance must have been made (`instances`)
        raise UnsupportedError(
            f"grant {name} cannot have isolation hardware here",
            "Use: aliquot run --isolation hardware",
        )
    if pid is not None and started is None:
        started = procfs.started_at(pid)
        if started is None:
            raise ProcessGoneError(f"process {pid} has ended")
    arguments = [
        f"make name={name}",
        *(["kept=1"] if kept or (owner is not None and pid is None) else []),
        *([f"owner={owner}"] if owner is not None else []),
        *([f"pid={pid} started={started}"] if pid is not None else []),
        *([f"together={together}"] if together else []),
        *(() if neighbours is None else _neighbour_arguments(name, neighbours)),
        *(["swap=1"] if swap else []),
        *(_parking_arguments(park_after) if park_after else ()),
        *([f"swap-wait={round(swap_wait * 1000)}"] if swap_wait else []),
        *([f"overcommit={round(overcommit * 100)}"] if swap and overcommit else []),
        *([f"spill={spill}"] if spill else []),
        *(["mps=1"] if isolation is Isolation.MPS else []),
        *map(_argument, slices),
    ]
    answer = ask(directory, " ".join(arguments))
    try:
        return str(answer["grant"])
    except KeyError as error:
        raise ArbiterError(f"the arbiter in {directory} made no grant: {answer}") from error


def _parking_arguments(rule: ParkingRule) -> Iterator[str]:
    yield f"park-after={max(1, round(rule.seconds * 1000))}"
    if not rule.always:
        yield "park-if=wanted"


def want(directory: Path, slices: Sequence[Slice]) -> None:
    """Say that somebody waits for these slices, so that idle grants give up room; for 10 s."""
    ask(directory, " ".join(["want", *map(_argument, slices)]))


def check_swap(status: Status, request: Request) -> None:
    """Raise UnsupportedError if the request asks for what only a later arbiter can make."""
    asks = {
        "--swap": request.swap and not status.knows_swap,
        "--park-after": request.park_after and not status.knows_parking,
        "--swap-wait": bool(request.swap_wait) and not status.knows_swap_wait,
        "overcommit of a queue": bool(request.swap and request.overcommit)
        and not status.knows_queue_overcommit,
        "--spill": bool(request.spill) and not status.knows_spill,
        "--isolation mps": request.isolation is Isolation.MPS and not status.knows_mps,
    }
    for option, is_unknown in asks.items():
        if is_unknown:
            raise UnsupportedError(
                "the arbiter that runs here is of an earlier version,"
                f" which does not know {option}",
                END_ALL,
            )


def _neighbour_arguments(name: str, neighbours: Neighbours) -> Iterator[str]:
    if neighbours.label not in {None, name}:
        yield f"label={neighbours.label}"
    if neighbours.apart_from:
        yield f"apart={','.join(dict.fromkeys(neighbours.apart_from))}"
    if neighbours.alone:
        yield "alone=1"


def end(directory: Path, name: str) -> bool:
    """End a kept grant, or one that this process made: from now on no process can join it.

    True: it is gone, or did not exist. False: it ends with the last process that is still in it.
    """
    answer = ask(directory, f"end name={name}")
    try:
        return bool(answer["ended"])
    except KeyError as error:
        raise ArbiterError(f"the arbiter in {directory} ended nothing: {answer}") from error


def resize(
    directory: Path,
    name: str,
    changes: Sequence[SliceChange],
    *,
    gradual: bool = False,
    dry_run: bool = False,
) -> tuple[Resized, ...]:
    """Change slices of a grant while its programs run: all of them, or none.

    With `dry_run` the arbiter checks everything and changes nothing. NotUnderstoodError of an
    earlier one, which knows no dry run.

    A memory limit below what is in use is refused. With `gradual` the limit becomes what is in use
    now, and the caller repeats the request.
    """
    arguments = [
        f"resize name={name}",
        *(["gradual=1"] if gradual else []),
        *(["dry-run=1"] if dry_run else []),
        *map(_argument, changes),
    ]
    answer = ask(directory, " ".join(arguments))
    try:
        return tuple(
            Resized(part["gpu"], part["memory_bytes"], part["reached"]) for part in answer["slices"]
        )
    except (KeyError, TypeError) as error:
        raise ArbiterError(f"the arbiter in {directory} resized nothing: {answer}") from error


def set_state(directory: Path, name: str, state: GrantState) -> None:
    """Set the state of a grant; if it has that state already, nothing changes.

    A grant can leave the parked state only if all its slices fit again; otherwise it stays parked
    and CapacityRefusedError is raised. Only root and the arbiter's user may do this.
    """
    answer = ask(directory, f"set-state name={name} to={state}")
    if answer.get("state") != str(state):
        raise ArbiterError(f"the arbiter in {directory} did not change {name}: {answer}")


def move(directory: Path, name: str, place: Residence) -> None:
    """Say where the memory of a swappable grant shall be; if it was said already, nothing changes.

    It returns at once: `Process.moved` of each process says how far it is. Only root and the
    arbiter's user may do this.
    """
    answer = ask(directory, f"move name={name} to={place}")
    if answer.get("residence") != str(place):
        raise ArbiterError(f"the arbiter in {directory} did not move {name}: {answer}")


def set_cgroup(directory: Path, name: str, path: str) -> None:
    """Say which cgroup the container of a grant has, as the arbiter sees it in /proc/PID/cgroup.

    A process that uses the grant's GPUs there and has not joined is charged to the grant. Only root
    and the arbiter's user may do this.
    """
    ask(directory, f"set-cgroup name={name} path={path}")


def stop(directory: Path) -> None:
    """End an arbiter that has no grants."""
    ask(directory, "stop")


def end_for_next(directory: Path) -> None:
    """End an arbiter; its grants and programs stay for the next one.

    HeldMemoryError if memory of suspended programs is on the host, which would be lost.
    NotUnderstoodError of an arbiter that never holds any: it is of an earlier version.
    """
    ask(directory, "replace")


def check_may_end(directory: Path) -> None:
    """Raise HeldMemoryError if memory of suspended programs would be lost with this arbiter.

    For those who have somebody else end it. One that does not answer, or not to us, may end.
    """
    with suppress(ArbiterError):
        ask(directory, "may-end")


def ask(directory: Path, line: str, timeout: float | None = None) -> dict[str, Any]:
    """Send one request and return the reply; a refusal is raised as the matching error.

    While the arbiter says that this user has too many requests under way, it is asked again.
    """
    timeout = _TIMEOUT if timeout is None else timeout
    deadline = time.monotonic() + timeout
    answer = _exchange(directory, line, timeout)
    while answer.get("code") == "busy" and time.monotonic() < deadline:
        time.sleep(_BUSY_SECONDS)
        answer = _exchange(directory, line, timeout)
    if "error" in answer:
        code = answer.get("code", "")
        raise _REFUSALS.get(code, ArbiterError)(str(answer["error"]), _HINTS.get(code))
    return answer


def _exchange(directory: Path, line: str, timeout: float) -> dict[str, Any]:
    with _connection(directory, timeout) as connection:
        try:
            with suppress(OSError):  # it may have refused and closed already: the reply says why
                connection.sendall(line.encode("ascii") + b"\n")
                connection.shutdown(socket.SHUT_WR)
            service = f"the arbiter in {directory}"
            connection.settimeout(silence.await_reply(connection, service, timeout))
            answer = json.loads(_read_all(connection))
        except TimeoutError as error:
            raise _silent(directory, timeout) from error
        except (OSError, ValueError) as error:
            raise NoArbiterError(
                f"the arbiter in {directory} did not answer: {error}", ASK_DOCTOR
            ) from error
    if not isinstance(answer, dict):
        raise ArbiterError(f"the arbiter in {directory} did not send a JSON object", ASK_DOCTOR)
    return answer


@contextmanager
def _connection(directory: Path, timeout: float | None = None) -> Iterator[socket.socket]:
    """A connection to `control`, through /proc because a socket path has only 107 bytes."""
    timeout = _TIMEOUT if timeout is None else timeout
    try:
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            connection.settimeout(timeout)
            try:
                connection.connect(f"/proc/self/fd/{folder}/control")
            except OSError:
                connection.close()
                raise
        finally:
            os.close(folder)
    except TimeoutError as error:  # too many wait for it already
        raise _silent(directory, timeout) from error
    except OSError as error:
        raise NoArbiterError(
            f"no arbiter in {directory}: {error.strerror or error}",
            "aliquot run or aliquot up starts one.",
        ) from error
    with connection:
        yield connection


def _silent(directory: Path, timeout: float) -> SilentArbiterError:
    return SilentArbiterError(
        f"the arbiter in {directory} runs and did not answer within {timeout:g} s",
        f"It is stopped or stuck: see the state of its process, whose pid is in "
        f"{directory / 'arbiter.pid'}.",
    )


def _read_all(connection: socket.socket) -> bytes:
    answer = bytearray()
    try:
        while part := connection.recv(1 << 16):
            answer += part
            if len(answer) > _LARGEST_ANSWER:
                raise ValueError("the answer does not end")
    except ConnectionResetError:  # after a refusal, if it had not read the request
        if not answer:
            raise
    return bytes(answer)


def _argument(part: Slice | SliceChange) -> str:
    """The settings of a slice as one argument, without those that do not change."""
    settings = {
        "memory": part.memory_bytes,
        "compute": part.compute_percent,
        "policy": part.policy,
        "priority": part.priority,
    }
    given = (f",{key}={value}" for key, value in settings.items() if value is not None)
    return f"slice={part.gpu_uuid}{''.join(given)}"
