"""The control client: one question to the arbiter of a state directory, one answer.

The socket is `control` in the directory: one line out, one JSON object back, then both close. The
process that asks for a grant is its owner by the kernel's word; so `make` is called by the process
that will become the tenant. A grant that is `kept` has no owner: it stays until `end`.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.model import (
    ComputeUse,
    Gates,
    Gpu,
    GpuProcess,
    Grant,
    Hold,
    Life,
    Policy,
    Priority,
    Process,
    Slice,
    SliceUse,
    Turn,
)
from aliquot.model.errors import (
    AliquotError,
    ArbiterError,
    MemoryInUseError,
    NameInUseError,
    NoCapacityError,
    NoSuchGrantError,
    NotOwnerError,
    StateError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROTOCOL = 1
ASK_DOCTOR = "See what is wrong with: aliquot doctor"
END_ALL = "End all grants, so that it ends too, and try again."


class NoArbiterError(ArbiterError):
    """Nobody listens in this state directory."""


class CapacityRefusedError(NoCapacityError):
    """What was asked for is not there: another maker may have been quicker."""


_TIMEOUT = 20.0
_LARGEST_ANSWER = 64 << 20
_REFUSALS: dict[str, type[AliquotError]] = {
    "name-in-use": NameInUseError,
    "no-room": CapacityRefusedError,
    "cannot-make": StateError,
    "no-such-grant": NoSuchGrantError,
    "in-use": MemoryInUseError,
    "not-yours": NotOwnerError,
    "unsupported": UnsupportedError,
}
_WAYS_OUT = {
    "in-use": "Free memory in the program, or lower the limit as it frees: add --wait",
    "not-yours": "Ask its owner, or root.",
    "not-allowed": "Ask as root.",
    "not-kept": "End its command.",
    "unsupported": "Use --policy elastic. docs/support.md says where compute shares hold.",
}
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """A GPU, what of it is granted, and who uses it outside every grant.

    `contended`: slices take turns on it.
    """

    gpu: Gpu
    granted_bytes: int
    strangers: tuple[GpuProcess, ...]
    contended: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """All an arbiter knows, at one instant; `answer` is its own words.

    `now` is a clock's, in seconds: differences of it have a meaning, itself it has none.
    `credit_cpu_seconds` is the processor time that giving credit has cost.
    """

    pid: int
    gpus: tuple[SharedGpu, ...]
    grants: tuple[Grant, ...]
    answer: dict[str, Any]
    now: float = 0.0
    credit_cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SliceChange:
    """New settings of one slice; what is None stays as it is."""

    gpu_uuid: str
    memory_bytes: int | None = None
    compute_percent: int | None = None
    policy: Policy | None = None
    priority: Priority | None = None


@dataclass(frozen=True, slots=True)
class Resized:
    """A slice's memory limit after a change; `reached`: it is what was asked for."""

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


def status(directory: Path) -> Status:
    """Ask an arbiter for all it knows."""
    answer = ask(directory, "status")
    try:
        if answer["version"] != PROTOCOL:
            raise ArbiterError(
                f"the arbiter in {directory} speaks version {answer['version']},"
                f" and this program {PROTOCOL}",
                END_ALL,
            )
        return Status(
            pid=answer["pid"],
            gpus=tuple(map(_gpu, answer["gpus"])),
            grants=tuple(map(_grant, answer["grants"])),
            answer=answer,
            now=answer["now_ns"] / _NANOSECONDS,
            credit_cpu_seconds=answer["credit_cpu_ns"] / _NANOSECONDS,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArbiterError(
            f"the arbiter in {directory} answers what cannot be read: {error!r}",
            f"It may be of another version of Aliquot. {END_ALL}",
        ) from error


def make(directory: Path, name: str, slices: Sequence[Slice], *, kept: bool = False) -> str:
    """Make a grant; what names it to a tenant: `DIRECTORY#MARK`.

    The mark tells it from a later grant of the same name. This process owns it, or, where it is
    `kept`, nobody: then it stays until `end`, and only root and the arbiter's user may make it.
    """
    words = [f"make name={name}", *(["kept=1"] if kept else []), *map(_words, slices)]
    answer = ask(directory, " ".join(words))
    try:
        return str(answer["grant"])
    except KeyError as error:
        raise ArbiterError(f"the arbiter in {directory} made no grant: {answer}") from error


def end(directory: Path, name: str) -> bool:
    """Keep a grant no more: no process joins it from now on.

    True: it is gone, or was before. False: it goes with the last of the processes in it.
    """
    answer = ask(directory, f"end name={name}")
    try:
        return bool(answer["ended"])
    except KeyError as error:
        raise ArbiterError(f"the arbiter in {directory} ended nothing: {answer}") from error


def resize(
    directory: Path, name: str, changes: Sequence[SliceChange], *, gradual: bool = False
) -> tuple[Resized, ...]:
    """Change slices of a grant while its programs run: all of them, or none.

    A memory limit below what is in use is refused; where it may be `gradual`, it becomes what is in
    use now, and the caller asks again.
    """
    words = [f"resize name={name}", *(["gradual=1"] if gradual else []), *map(_words, changes)]
    answer = ask(directory, " ".join(words))
    try:
        return tuple(
            Resized(part["gpu"], part["memory_bytes"], part["reached"]) for part in answer["slices"]
        )
    except (KeyError, TypeError) as error:
        raise ArbiterError(f"the arbiter in {directory} resized nothing: {answer}") from error


def hold(directory: Path, name: str, hold: Hold) -> None:
    """Make a grant taken, open or parked; where it is so already, nothing changes.

    A parked one is open or taken again only where there is room for all its slices:
    CapacityRefusedError, and it stays parked. Only root and the arbiter's user may ask.
    """
    answer = ask(directory, f"hold name={name} as={hold}")
    if answer.get("hold") != str(hold):
        raise ArbiterError(f"the arbiter in {directory} did not change {name}: {answer}")


def stop(directory: Path) -> None:
    """End an arbiter that has no grant left."""
    ask(directory, "stop")


def ask(directory: Path, line: str) -> dict[str, Any]:
    """One question, one answer; a refusal is raised as the error it is."""
    with _connection(directory) as connection:
        try:
            connection.sendall(line.encode("ascii") + b"\n")
            connection.shutdown(socket.SHUT_WR)
            answer = json.loads(_read_all(connection))
        except (OSError, ValueError) as error:
            raise NoArbiterError(
                f"the arbiter in {directory} did not answer: {error}", ASK_DOCTOR
            ) from error
    if not isinstance(answer, dict):
        raise ArbiterError(f"the arbiter in {directory} answers no object", ASK_DOCTOR)
    if "error" in answer:
        code = answer.get("code", "")
        raise _REFUSALS.get(code, ArbiterError)(str(answer["error"]), _WAYS_OUT.get(code))
    return answer


@contextmanager
def _connection(directory: Path) -> Iterator[socket.socket]:
    """A connection to `control`; by way of the folder, as a socket's path has only 107 bytes."""
    try:
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            connection.settimeout(_TIMEOUT)
            try:
                connection.connect(f"/proc/self/fd/{folder}/control")
            except OSError:
                connection.close()
                raise
        finally:
            os.close(folder)
    except OSError as error:
        raise NoArbiterError(f"no arbiter in {directory}: {error.strerror or error}") from error
    with connection:
        yield connection


def _read_all(connection: socket.socket) -> bytes:
    answer = bytearray()
    while part := connection.recv(1 << 16):
        answer += part
        if len(answer) > _LARGEST_ANSWER:
            raise ValueError("the answer does not end")
    return bytes(answer)


def _words(part: Slice | SliceChange) -> str:
    """A slice's settings in one word, less those that stay as they are."""
    settings = {
        "memory": part.memory_bytes,
        "compute": part.compute_percent,
        "policy": part.policy,
        "priority": part.priority,
    }
    given = (f",{key}={value}" for key, value in settings.items() if value is not None)
    return f"slice={part.gpu_uuid}{''.join(given)}"


def _gpu(words: dict[str, Any]) -> SharedGpu:
    return SharedGpu(
        gpu=Gpu(
            index=words["index"],
            uuid=words["uuid"],
            name=words["name"],
            pci_bus_id=words["pci_bus_id"],
            memory_bytes=words["memory_bytes"],
            used_bytes=words["used_bytes"],
        ),
        granted_bytes=words["granted_bytes"],
        strangers=tuple(
            GpuProcess(pid=one["pid"], name=one["name"], bytes=one["bytes"])
            for one in words["strangers"]
        ),
        contended=words["compute"]["contended"],
    )


def _grant(words: dict[str, Any]) -> Grant:
    return Grant(
        name=words["name"],
        directory=words["directory"],
        owner_pid=words["owner_pid"],
        owner_alive=words["owner_alive"],
        owner_uid=words["owner_uid"],
        life=Life(words["life"]),
        hold=Hold(words.get("hold", Hold.TAKEN)),  # an older arbiter does not tell
        created=words["created"],
        broken=words["broken"],
        slices=tuple(
            Slice(
                gpu_uuid=part["gpu"],
                memory_bytes=part["memory_bytes"],
                compute_percent=part["compute_percent"],
                policy=Policy(part["policy"]),
                priority=Priority(part["priority"]),
            )
            for part in words["slices"]
        ),
        use=tuple(map(_use, words["slices"])),
        compute=tuple(_compute(part["compute"]) for part in words["slices"]),
        processes=tuple(
            Process(
                pid=one["pid"],
                name=one["name"],
                state=one["state"],
                use=tuple(map(_use, one["slices"])),
                ties=tuple(one.get("ties", ())),
                inside=one.get("inside", 0),
            )
            for one in words["processes"]
        ),
    )


def _use(part: dict[str, Any]) -> SliceUse:
    return SliceUse(
        gpu_uuid=part["gpu"],
        counted_bytes=part["counted_bytes"],
        driver_bytes=part["driver_bytes"],
    )


def _compute(words: dict[str, Any]) -> ComputeUse:
    return ComputeUse(
        gates=Gates(words["gates"]),
        why=words["why"],
        turn=Turn(words["state"]),
        weight_percent=words["weight_percent"],
        used_seconds=words["used_ns"] / _NANOSECONDS,
        handovers=words["handovers"],
        fallbacks=words["fallbacks"],
        backlog_quanta=words["backlog"],
        waits=words["waits"],
        waited_seconds=words["waited_ns"] / _NANOSECONDS,
        wait_p50_seconds=words["wait_p50_ns"] / _NANOSECONDS if words["waits"] else None,
        wait_p99_seconds=words["wait_p99_ns"] / _NANOSECONDS if words["waits"] else None,
        recent_used_seconds=words["recent_used_ns"] / _NANOSECONDS,
        recent_seconds=words["recent_ns"] / _NANOSECONDS,
    )
