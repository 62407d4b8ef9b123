"""The checkpoint: a file with the node's GPUs and grants, which outlives the agent.

The agent replaces the whole file before it answers the kubelet, so every grant that a container was
told of is in it. A grant in the file that the kubelet was never told of belongs to a pod that the
kubelet rejected, and is released with that pod.

A file that cannot be read, or that an agent of another version wrote, is not treated as empty: its
containers may still run. The file stays as it is, and the agent refuses to start.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.node.grants.grant import ContainerGrant  # noqa: TC001 - msgspec reads it
from aliquot.model.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aliquot.kubernetes.node.grants.allocations import NodeAllocations

VERSION = 1


class CheckpointGpu(msgspec.Struct, frozen=True):
    """A GPU that this node has, or has had; `slot` is its PCI address."""

    uuid: str
    index: int
    memory: int
    slot: str = ""


class CheckpointData(msgspec.Struct, frozen=True):
    """The contents of the file."""

    version: int = VERSION
    gpus: tuple[CheckpointGpu, ...] = ()
    grants: tuple[ContainerGrant, ...] = ()


class _Version(msgspec.Struct, frozen=True):
    """The field that every version of the file has."""

    version: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The file."""

    path: Path

    def load(self) -> CheckpointData:
        """Its contents; empty if there is no file. StateError if it cannot be read."""
        try:
            text = self.path.read_bytes()
            version = msgspec.json.decode(text, type=_Version).version
            if version != VERSION:
                raise self._refused(f"has version {version}, and this agent reads {VERSION}")
            return msgspec.json.decode(text, type=CheckpointData)
        except FileNotFoundError:
            return CheckpointData()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._refused(f"cannot be read: {error}") from error

    def save(self, allocations: NodeAllocations) -> None:
        """Write the allocations."""
        gpus = tuple(
            CheckpointGpu(gpu.uuid, gpu.index, gpu.memory, gpu.slot)
            for gpu in allocations.gpus.values()
        )
        self.write(CheckpointData(gpus=gpus, grants=tuple(allocations.grants.values())))

    def write(self, data: CheckpointData) -> None:
        """Replace the file."""
        new = self.path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(data))
            file.flush()
            os.fdatasync(file.fileno())
        new.rename(self.path)

    def _refused(self, why: str) -> StateError:
        return StateError(
            f"{self.path}, the checkpoint of running containers' grants, {why}",
            "Run the version of Aliquot that wrote it. Or drain the node of pods with GPUs and"
            " delete the file: the agent then ends the grants that remain.",
        )


class SavedAllocations:
    """Allocations that are saved to the checkpoint before anybody hears of a change.

    Nothing awaits inside a change, so every reader sees consistent allocations.
    """

    def __init__(self, allocations: NodeAllocations, checkpoint: Checkpoint) -> None:
        self.allocations = allocations
        self._checkpoint = checkpoint
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function after every change."""
        self._listeners.append(listener)

    def announce(self) -> None:
        """Call the listeners: the allocations have changed."""
        for listener in self._listeners:
            listener()

    @contextmanager
    def changing(self) -> Iterator[NodeAllocations]:
        """Change the allocations; a change that fails or cannot be saved is undone."""
        before = self.allocations.saved()
        try:
            yield self.allocations
            if self.allocations.saved() == before:
                return
            self._checkpoint.save(self.allocations)
        except BaseException:
            self.allocations.rewrite(before)
            raise
        self.announce()
