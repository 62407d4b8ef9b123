"""The slices and sizes that `aliquot slice` has published, in a file that outlives a reboot.

    HOME/published.json    what is published
    HOME/published.lock    held by the command that changes it
    HOME/no-grant/         an empty folder, over which the hook mounts a container's own grant

A command that changes the file holds the lock meanwhile, so two cannot publish the same name.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.model import Policy, Priority, Request, Slice, parse_amount
from aliquot.model.errors import StateError
from aliquot.model.selection import GpuSelection

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACEHOLDER = "no-grant"

_FILE, _LOCK = "published.json", "published.lock"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class PublishedSlice:
    """A grant that containers use by its name, and the folder that has its CDI spec."""

    name: str
    slices: tuple[Slice, ...]
    cdi_dir: Path


@dataclass(frozen=True, slots=True)
class PublishedSize:
    """What every container of a named size gets, and the folder that has its CDI spec."""

    name: str
    request: Request
    cdi_dir: Path


@dataclass(slots=True)
class Published:
    """All that is published, by name. No slice has the name of a size."""

    slices: dict[str, PublishedSlice] = field(default_factory=dict)
    sizes: dict[str, PublishedSize] = field(default_factory=dict)


def read(home: Path) -> Published:
    """What is published; nothing if there is no file. StateError if it cannot be read."""
    path = home / _FILE
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["version"] != _VERSION:
            raise ValueError(f"it is of version {stored['version']}")  # noqa: TRY301 - told below
        return Published(
            {one["name"]: _slice(one) for one in stored["slices"]},
            {one["name"]: _size(one) for one in stored["sizes"]},
        )
    except FileNotFoundError:
        return Published()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"the list of published slices {path} cannot be read: {error}",
            "Correct or remove the file. Grants of slices that it named are kept until: aliquot"
            " slice delete NAME",
        ) from error


@contextmanager
def changing(home: Path) -> Iterator[Published]:
    """What is published, to be changed; it is stored at the end, unless that is an error."""
    try:
        lock = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(home, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = read(home)
        yield found
        _store(home, found)
    finally:
        os.close(lock)


def _store(home: Path, published: Published) -> None:
    content = {
        "version": _VERSION,
        "slices": [asdict(one) for one in published.slices.values()],
        "sizes": [_stored_size(one) for one in published.sizes.values()],
    }
    new = home / f".{_FILE}.new"
    try:
        with new.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=2, default=str)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # whatever the umask: all may read the list
            os.fsync(file.fileno())
        new.replace(home / _FILE)
    except OSError as error:
        raise _unwritable(home, error) from error


def _unwritable(home: Path, error: OSError) -> StateError:
    return StateError(
        f"the list of published slices in {home} cannot be written: {error.strerror}",
        "Run the command as root, or free space on the disk.",
    )


def _slice(stored: dict[str, Any]) -> PublishedSlice:
    return PublishedSlice(
        name=str(stored["name"]),
        slices=tuple(
            Slice(
                str(part["gpu_uuid"]),
                int(part["memory_bytes"]),
                int(part["compute_percent"]),
                Policy(part["policy"]),
                Priority(part["priority"]),
            )
            for part in stored["slices"]
        ),
        cdi_dir=Path(stored["cdi_dir"]),
    )


def _stored_size(one: PublishedSize) -> dict[str, Any]:
    request = one.request
    amount = request.memory
    memory = None
    if amount is not None:
        memory = f"{float(amount.percent)}%" if amount.percent is not None else str(amount.bytes)
    return {
        "name": one.name,
        "gpus": request.gpus,
        "memory": memory,
        "compute_percent": request.compute_percent,
        "policy": str(request.policy),
        "priority": str(request.priority),
        "min_strength": request.min_strength,
        "which": asdict(request.which),
        "cdi_dir": str(one.cdi_dir),
    }


def _size(stored: dict[str, Any]) -> PublishedSize:
    memory = stored["memory"]
    request = Request(
        gpus=int(stored["gpus"]),
        memory=None if memory is None else parse_amount(memory),
        compute_percent=int(stored["compute_percent"]),
        policy=Policy(stored["policy"]),
        priority=Priority(stored["priority"]),
        min_strength=float(stored["min_strength"]),
        which=GpuSelection(**{key: tuple(words) for key, words in stored["which"].items()}),
    )
    return PublishedSize(str(stored["name"]), request, Path(stored["cdi_dir"]))
