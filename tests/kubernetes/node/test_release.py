"""Which grants the agent ends, when it does not know all pods of its node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.node import processes
from aliquot.kubernetes.node.grants import lifecycle
from aliquot.kubernetes.node.grants.allocations import NodeAllocations
from aliquot.kubernetes.node.grants.checkpoint import Checkpoint, SavedAllocations
from aliquot.kubernetes.node.grants.lifecycle import ArbiterGrants, Releaser
from aliquot.kubernetes.node.pods import ContainerRef, NodePods
from kubernetes.node.builders import SGPU, make_grant, make_host_gpu

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.kubernetes.node.grants.grant import ContainerGrant

UID = "00000000-9388-4c99-9b7a-d63a82235347"
GRANT = "shared-0123456789ab"


class Owners:
    """Owners that nobody can confirm."""

    def __init__(self, saved: SavedAllocations) -> None:
        self._saved = saved

    async def confirm(self, name: str) -> ContainerGrant | None:
        return self._saved.allocations.grants.get(name)

    def may_be_confirmed(self, _: ContainerGrant) -> bool:
        return False


class Arbiter(ArbiterGrants):
    """An arbiter that notes which grants it was told to end."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.ended: list[str] = []

    async def end(self, name: str) -> bool:
        self.ended.append(name)
        return True


@pytest.mark.parametrize(
    ("owner", "confirmed", "behind"),
    [
        (ContainerRef(), False, 0.0),
        (ContainerRef("other", "ns", "other", "main"), False, 0.0),
        (ContainerRef("p", "ns", "p", "main"), True, 4.0),
    ],
    ids=["unknown", "guessed", "missing in an old GPUNode"],
)
def test_the_grant_of_a_running_container_stays_while_its_pod_is_not_known(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: ContainerRef,
    behind: float,
    *,
    confirmed: bool,
) -> None:
    """The scheduler writes its pod later, or not at all while none leads.

    A GPUNode is old if node.readsPods was false before, then true, and is false again.
    """
    proc, gpu = tmp_path / "proc", make_host_gpu(0)
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text(f"0::/kubepods/pod{UID}/c1\n")
    mounts = proc / "7" / "mountinfo"
    mounts.write_text(
        "21 1 0:5 / / rw - overlay overlay rw\n"
        f"36 21 0:6 /aliquot/kept/{GRANT} /run/aliquot/grant rw,nosuid - tmpfs tmpfs rw\n"
    )
    monkeypatch.setattr(processes, "PROC", proc)
    monkeypatch.setattr(lifecycle, "UNKNOWN_SECONDS", -1.0)
    saved = SavedAllocations(NodeAllocations([gpu], 16), Checkpoint(tmp_path / "node.json"))
    grant = make_grant("shared", [gpu], "p", units={SGPU: ["s1"]}, shares=16)
    saved.allocations.add(
        msgspec.structs.replace(grant, name=GRANT, owner=owner, confirmed=confirmed)
    )
    arbiter, pods = Arbiter(tmp_path), NodePods([ALIQUOT], lambda: True, behind_seconds=behind)
    releaser = Releaser(saved, pods, arbiter, Owners(saved), processes.mounted_grants)

    asyncio.run(releaser.release_ended())
    assert (arbiter.ended, list(saved.allocations.grants)) == ([], [GRANT])
    mounts.unlink()  # its last process has ended
    asyncio.run(releaser.release_ended())
    assert (arbiter.ended, list(saved.allocations.grants)) == ([GRANT], [])
