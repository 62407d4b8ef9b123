"""The control client: one question to the arbiter of a state directory, one answer.

The socket is `control` in the directory: one line out, one JSON object back, then both close. The
process that asks for a grant is its owner by the kernel's word; so `make` is called by the process
that will become the tenant.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.model import Gpu, GpuProcess, Grant, Policy, Priority, Process, Slice, SliceUse
from aliquot.model.errors import AliquotError, ArbiterError, NameInUseError, NoRoomError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROTOCOL = 1
ASK_DOCTOR = "See what is wrong with: aliquot doctor"


class NoArbiterError(ArbiterError):
    """Nobody listens in this state directory."""


class RoomTakenError(NoRoomError):
    """What was asked for is not there: another maker may have been quicker."""


_TIMEOUT = 20.0
_LARGEST_ANSWER = 64 << 20
_REFUSALS: dict[str, type[AliquotError]] = {
    "name-in-use": NameInUseError,
    "no-room": RoomTakenError,
    "cannot-make": StateError,
}


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """A GPU, what of it is granted, and who uses it outside every grant."""

    gpu: Gpu
    granted_bytes: int
    strangers: tuple[GpuProcess, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """All an arbiter knows, at one instant; `answer` is its own words."""

    pid: int
    gpus: tuple[SharedGpu, ...]
    grants: tuple[Grant, ...]
    answer: dict[str, Any]


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
                "End all grants, so that it ends too, and try again.",
            )
        return Status(
            pid=answer["pid"],
            gpus=tuple(map(_gpu, answer["gpus"])),
            grants=tuple(map(_grant, answer["grants"])),
            answer=answer,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArbiterError(
            f"the arbiter in {directory} answers what cannot be read: {error!r}", ASK_DOCTOR
        ) from error


def make(directory: Path, name: str, slices: Sequence[Slice]) -> str:
    """Make a grant that this process owns; what names it to a tenant: `DIRECTORY#MARK`.

    The mark tells it from a later grant of the same name.
    """
    answer = ask(directory, " ".join([f"make name={name}", *map(_slice_words, slices)]))
    try:
        return str(answer["grant"])
    except KeyError as error:
        raise ArbiterError(f"the arbiter in {directory} made no grant: {answer}") from error


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
        kind = _REFUSALS.get(answer.get("code", ""), ArbiterError)
        raise kind(str(answer["error"]))
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


def _slice_words(part: Slice) -> str:
    return (
        f"slice={part.gpu_uuid},memory={part.memory_bytes},compute={part.compute_percent},"
        f"policy={part.policy},priority={part.priority}"
    )


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
    )


def _grant(words: dict[str, Any]) -> Grant:
    return Grant(
        name=words["name"],
        directory=words["directory"],
        owner_pid=words["owner_pid"],
        owner_alive=words["owner_alive"],
        owner_uid=words["owner_uid"],
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
        processes=tuple(
            Process(
                pid=one["pid"],
                name=one["name"],
                state=one["state"],
                use=tuple(map(_use, one["slices"])),
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
