"""What can be frozen, found out before it is tried."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from aliquot.model import Process, SliceUse
from aliquot.slices import host
from aliquot.slices.checkpoint import CannotFreezeError, check
from support import GIB, make_grant


def process(used: int = GIB, *ties: str) -> Process:
    use = (SliceUse("GPU-0", used, 0),)
    return Process(pid=os.getpid(), name="program", state="live", use=use, ties=ties)


def test_a_program_on_one_gpu_can() -> None:
    check(replace(make_grant("a", gpu0=8 * GIB), processes=(process(1),)))


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        ((), "nothing of it has begun to use its GPU"),
        ((process(1, "managed"),), "it has used unified memory"),
        ((process(1), process(1, "ipc")), "it shares memory or events with other processes"),
        ((process(1, "shared"),), "it has exported or imported memory"),
        ((process(1, "something new"),), "something new"),
        ((process(1 << 50),), "it has 1024 TiB on its GPU, and the host has room for"),
    ],
)
def test_what_the_driver_cannot_move_is_named(processes: tuple[Process, ...], words: str) -> None:
    with pytest.raises(CannotFreezeError, match=words):
        check(replace(make_grant("a", gpu0=8 * GIB), processes=processes))


def test_one_with_several_gpus_cannot() -> None:
    grant = replace(make_grant("a", gpu0=GIB, gpu1=GIB), processes=(process(1),))
    with pytest.raises(CannotFreezeError, match="several GPUs"):
        check(grant)


def test_room_in_the_host_is_what_machine_and_cgroups_leave() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 <= host.memory_left(os.getpid()) < total
