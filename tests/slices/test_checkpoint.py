"""What can be frozen, checked before it is tried."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from aliquot.model import Process, SliceUse
from aliquot.slices import procfs
from aliquot.slices.checkpoint import CannotFreezeError, check
from support import GIB, make_grant


def process(used: int = GIB, *ties: str) -> Process:
    use = (SliceUse("GPU-0", used, 0),)
    return Process(pid=os.getpid(), name="program", state="live", use=use, ties=ties)


def test_a_program_on_one_gpu_can_be_frozen() -> None:
    check(replace(make_grant("a", gpu0=8 * GIB), processes=(process(1),)))


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        ((), "none of its processes uses the GPU yet"),
        ((process(1, "managed"),), "it has used unified memory"),
        ((process(1), process(1, "ipc")), "it shares memory or events with other processes"),
        ((process(1, "shared"),), "it has exported or imported memory"),
        ((process(1, "something new"),), "something new"),
        ((process(1 << 50),), "it uses 1024 TiB of its GPU, and the host has only"),
    ],
)
def test_the_reason_against_freezing_is_named(processes: tuple[Process, ...], words: str) -> None:
    with pytest.raises(CannotFreezeError, match=words):
        check(replace(make_grant("a", gpu0=8 * GIB), processes=processes))


def test_a_grant_on_several_gpus_cannot_be_frozen() -> None:
    grant = replace(make_grant("a", gpu0=GIB, gpu1=GIB), processes=(process(1),))
    with pytest.raises(CannotFreezeError, match="several GPUs"):
        check(grant)


def test_free_host_memory_is_bounded_by_the_machine() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 <= procfs.free_memory(os.getpid()) < total
