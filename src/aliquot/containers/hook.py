"""The OCI hook of a container of a named size: it makes the container's own grant.

    python -I -m aliquot.containers.hook SIZE STATE HOME

The runtime runs it when it has made the container's mounts, and before any program of the container
starts (`createRuntime`). It reads the container's state, as OCI defines it, from its input, makes a
grant and mounts it where the stand-ins look. The grant ends when the kernel says that the
container's first process is dead: no step of a runtime that ends a container is needed.

If anything fails, the exit code is 1 and the runtime shows why: without a grant no container.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from aliquot.containers import published
from aliquot.containers.mounting import mount_in_container
from aliquot.model.errors import AliquotError, NameInUseError, StateError
from aliquot.slices import control, state_directory
from aliquot.slices.grant_creation import make_grant
from aliquot.slices.tenant import CONTAINER_GRANT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.model import Request

_PROC = Path("/proc")
_NAMES = 8  # a container that starts again may still have a grant that is ending
_LONGEST = 37  # characters of a size in the name of a grant
_HEX_ID = re.compile(r"[0-9a-f]{32,}")  # Docker's, Podman's and nerdctl's: its beginning will do
_SHORT = 12
_CRUN = "/container"  # crun's own cgroup for the processes, below the container's


@dataclass(frozen=True, slots=True)
class NewContainer:
    """A container that is being created: its id, its first process, its files."""

    id: str
    pid: int
    root: Path


def read_container(data: IO[str]) -> NewContainer:
    """The container whose state a runtime tells. StateError if it is none."""
    try:
        state: dict[str, Any] = json.load(data)
        bundle = Path(state["bundle"])
        config = json.loads((bundle / "config.json").read_text("utf-8"))
        return NewContainer(
            str(state["id"]), int(state["pid"]), bundle / str(config["root"]["path"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"the runtime does not tell the state of a container: {error!r}"
        ) from error


def give_grant(size: str, state: Path, home: Path, container: NewContainer) -> str:
    """Make a grant of that size for the container, and mount it there; the grant's name."""
    known = published.read(home).sizes.get(size)
    if known is None:
        raise StateError(
            f"the size {size} is not published any more",
            f"Publish it: aliquot slice publish {size}",
        )
    name = _make(state, known.request, size, container)
    try:
        if cgroup := own_cgroup(container.pid):
            control.set_cgroup(state, name, cgroup)
        folder = state / state_directory.KEPT / name
        mount_in_container(
            container.pid, container.root, folder, CONTAINER_GRANT, home / published.PLACEHOLDER
        )
    except AliquotError:
        control.end(state, name)
        raise
    return name


def own_cgroup(pid: int) -> str | None:
    """The cgroup that a process has and this one has not; None if there is none."""
    own = set(_cgroups("self"))
    found = [path for path in _cgroups(str(pid)) if path not in own and len(path) > 1]
    longest = max(found, key=len, default=None)
    return None if longest is None else longest.removesuffix(_CRUN)


def grant_names(size: str, container: str) -> list[str]:
    """The names that the grants of a container may have. No other container has one of them."""
    short = re.sub(r"[^A-Za-z0-9_-]", "-", container, flags=re.ASCII)[:_SHORT]
    if short != container and not _HEX_ID.fullmatch(container):
        short += f"-{hashlib.sha256(container.encode()).hexdigest()[:8]}"
    base = f"{name_prefix(size)}{short}"
    return [base, *(f"{base}-{number}" for number in range(2, _NAMES + 1))]


def name_prefix(size: str) -> str:
    """With what the names of all grants of a size begin."""
    return f"{size[:_LONGEST]}-"


def _make(state: Path, request: Request, size: str, container: NewContainer) -> str:
    for name in grant_names(size, container.id):
        try:
            make_grant(state, None, request, name, name, kept=True, pid=container.pid)
        except NameInUseError:
            continue
        except control.NoArbiterError as error:
            raise StateError(
                f"no arbiter answers in {state}: {error.message}",
                "Start it as a service (sudo aliquot install), or with: sudo aliquot arbiter",
            ) from error
        return name
    raise NameInUseError(f"the container {container.id} has {_NAMES} grants already")


def _cgroups(process: str) -> Iterator[str]:
    for line in (_PROC / process / "cgroup").read_text("utf-8", "replace").splitlines():
        yield line.split(":", 2)[2]


def main() -> int:
    """Run the hook; its exit code."""
    size, state, home = sys.argv[1:]
    try:
        give_grant(size, Path(state), Path(home), read_container(sys.stdin))
    except AliquotError as error:
        sys.stderr.write(f"aliquot: no slice of size {size}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
