"""Containers whose memory can leave their GPU: the annotations aliquot.io/swap and park-after."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.model import Slice
from aliquot.model.errors import NoCapacityError
from aliquot.slices import control
from kubernetes.builders import make_pod
from kubernetes.node.rig import Node, grant_of, on_node
from support import MIB, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.model import Grant

LOOKS = Path(__file__).parents[2] / "pool" / "looks_when_asked.py"
SWAPS = {"aliquot.io/swap": "true", "aliquot.io/park-after": "1s,always"}
COPIER = MEMORY_UNIT  # of a T4, whose context has 102 MiB
UNITS = 40


def found(node: Node, pod: Pod) -> Grant:
    return node.grants()[grant_of(node, pod)]


@contextmanager
def program(node: Node, pod: Pod, native_dir: Path, folder: Path) -> Iterator[tuple[Path, Path]]:
    """A program in the pod's grant, as in its container; the file that asks it, and its log."""
    inside = {
        "LD_LIBRARY_PATH": str(native_dir / "lib"),
        "ALIQUOT_DRIVER_DIR": str(native_dir / "sim"),
        "ALIQUOT_GRANT": str(node.state / "kept" / grant_of(node, pod)),
        "ALIQUOT_SIMULATE": "t4:4",
        "ALIQUOT_SIMULATE_STATE": str(node.state / "machine"),
    }
    asked, log = folder / "asked", folder / "log"
    command = [sys.executable, str(LOOKS), str(100 * MIB), str(asked)]
    with log.open("w") as output:
        running = subprocess.Popen(command, env=inside, stdout=output, stderr=output)
    try:
        wait_until(lambda: "ready" in log.read_text() or running.poll() is not None)
        assert running.poll() is None, log.read_text()
        yield asked, log
        asked.with_suffix(".end").touch()
        assert running.wait(60) == 0
    finally:
        running.kill()


def test_an_idle_container_is_parked_and_returns_with_all_bytes(
    short_tmp: Path, native_dir: Path
) -> None:
    async def parks(node: Node) -> None:
        node.start_agent("--host-memory", "1GiB")
        await node.ready()
        pod = make_pod("idle", memory=UNITS, annotations=SWAPS)
        await node.run(pod)
        node.set_phase(pod, "Running")
        made = found(node, pod)
        assert made.is_swappable
        assert made.slices[0].memory_bytes == UNITS * MEMORY_UNIT - COPIER
        free = node.counts()["vcuda-memory"]
        large = [Slice(made.slices[0].gpu_uuid, UNITS * MEMORY_UNIT)]
        with pytest.raises(NoCapacityError):
            control.make(node.state, "other", large, kept=True)
        with program(node, pod, native_dir, short_tmp) as (asked, log):
            await node.until(lambda: found(node, pod).is_idle_parked)
            await node.until(lambda: "Parked" in dict(node.events(pod)))
            assert node.counts()["vcuda-memory"] == free, "for the scheduler nothing is free"
            control.make(node.state, "other", large, kept=True)
            control.end(node.state, "other")
            asked.touch()
            await node.until(lambda: "same" in log.read_text())
            await node.until(lambda: "Returned" in dict(node.events(pod)))
        text = dict(node.events(pod))["Parked"]
        assert text.startswith("container 'main' has had no GPU work for 1 s: ")

    on_node(parks, short_tmp, agent=False)


def test_what_is_left_of_the_gpu_fits_beside_it(short_tmp: Path) -> None:
    async def full(node: Node) -> None:
        node.start_agent("--host-memory", "1GiB", "--swap", "--park-after", "1h")
        await node.ready()
        pod, other = make_pod("half", memory=29), make_pod("rest", memory=29)
        for one in (pod, other):
            await node.run(one)
        has = [found(node, one) for one in (pod, other)]
        assert has[0].slices[0].gpu_uuid == has[1].slices[0].gpu_uuid
        assert [one.is_swappable for one in has] == [True, True]
        parking = has[0].parking
        assert parking is not None
        assert (parking.after_seconds, parking.if_wanted) == (3600.0, True)
        node.annotate(pod, memory="20")
        await node.until(
            lambda: found(node, pod).slices[0].memory_bytes == 20 * MEMORY_UNIT - COPIER
        )
        node.annotate(pod, memory="1")
        await node.until(lambda: any("are for copying" in text for _, text in node.events(pod)))
        said = {"aliquot.io/swap": "false"}
        no = make_pod("no", memory=4, annotations=said)
        await node.run(no)
        assert not found(node, no).is_swappable
        whole = make_pod("whole", gpu=1)
        await node.run(whole)
        assert not found(node, whole).is_swappable

    on_node(full, short_tmp, agent=False)


def test_a_node_without_memory_for_it_says_so(short_tmp: Path) -> None:
    async def none(node: Node) -> None:
        pod = make_pod("a", memory=UNITS, annotations=SWAPS)
        await node.run(pod)
        assert not found(node, pod).is_swappable
        assert found(node, pod).slices[0].memory_bytes == UNITS * MEMORY_UNIT
        await node.until(lambda: "SwapNotPossible" in dict(node.events(pod)))
        text = dict(node.events(pod))["SwapNotPossible"]
        assert "aliquot.io/swap: true and aliquot.io/park-after: 1 s, always" in text
        assert "node.hostMemory" in text

    on_node(none, short_tmp)
