"""The brain on one machine."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from aliquot.model import Amount, Link, Request
from aliquot.placement.choose.machine import GpuCapacity, choose_gpus
from support import GIB, make_gpu


def card(index: int, *, left: int = 80, percent: int = 100, holders: int = 0) -> GpuCapacity:
    gpu = make_gpu(index)
    return GpuCapacity(gpu, left * GIB, percent, left * GIB, holders)


def chosen(request: Request, *cards: GpuCapacity) -> list[int] | None:
    found = choose_gpus(request, cards)
    return None if found is None else [gpu.index for gpu in found]


def part(gib: int = 8, gpus: int = 1, compute: int = 0) -> Request:
    return Request(gpus=gpus, memory=Amount(bytes=gib * GIB), compute_percent=compute)


def test_a_slice_goes_to_a_gpu_that_is_already_sliced() -> None:
    assert chosen(part(), card(0), card(1, left=40, holders=1)) == [1]


def test_a_gpu_in_trouble_comes_last_even_if_sliced() -> None:
    cut = card(1, left=40, holders=1)
    assert chosen(part(), card(0), replace(cut, strangers=True)) == [0]
    assert chosen(part(), card(0), replace(cut, gpu=replace(cut.gpu, exclusive=True))) == [0]
    assert chosen(part(), replace(cut, strangers=True)) == [1]


def test_of_sliced_gpus_the_tightest_that_fits_is_taken() -> None:
    cards = [card(0, left=60, holders=1), card(1, left=20, holders=1), card(2, left=4, holders=1)]
    assert chosen(part(), *cards) == [1]


def test_free_compute_counts_too() -> None:
    cards = [card(0, percent=10, holders=1), card(1, percent=50, holders=1)]
    assert chosen(part(compute=30), *cards) == [1]
    assert chosen(part(compute=60), *cards) is None


def test_a_whole_gpu_is_one_that_nobody_holds() -> None:
    assert chosen(Request(), card(0, left=79, holders=1), card(1)) == [1]
    assert chosen(Request(gpus=2), card(0, holders=1), card(1)) is None


def test_a_gpu_that_other_programs_use_comes_last() -> None:
    used = replace(card(0, holders=1), unused_bytes=0)
    assert chosen(part(), used, card(1)) == [1]


def test_two_gpus_are_the_two_with_the_best_link() -> None:
    pairs = {0: 2, 2: 0, 1: 3, 3: 1}
    cards = [
        replace(
            one,
            gpu=replace(
                one.gpu,
                links=tuple(
                    Link(other, "NV4" if pairs[one.gpu.index] == other else "SYS")
                    for other in range(4)
                    if other != one.gpu.index
                ),
            ),
        )
        for one in map(card, range(4))
    ]
    assert chosen(Request(gpus=2), *cards) == [0, 2]
    assert chosen(Request(gpus=2), *cards[1:]) == [1, 3]


def test_it_needs_no_numpy() -> None:
    code = "import sys; sys.modules['numpy'] = None; import aliquot.placement.choose.machine"
    subprocess.run([sys.executable, "-c", code], check=True)
