"""The brain on one machine."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from aliquot.model import Amount, Link, Request
from aliquot.model.selection import GpuSelection
from aliquot.placement.choose.machine import GpuCapacity, choose_gpus
from support import GIB, make_gpu, uuid_of


def gpu(
    index: int, *, left: int = 80, percent: int = 100, holders: int = 0, strength: float = 0.0
) -> GpuCapacity:
    gpu = replace(make_gpu(index), strength=strength)
    return GpuCapacity(gpu, left * GIB, percent, left * GIB, holders)


def chosen(request: Request, *gpus: GpuCapacity) -> list[int] | None:
    found = choose_gpus(request, gpus)
    return None if found is None else [gpu.index for gpu in found]


def part(gib: int = 8, gpus: int = 1, compute: int = 0) -> Request:
    return Request(gpus=gpus, memory=Amount(bytes=gib * GIB), compute_percent=compute)


def test_a_slice_goes_to_a_gpu_that_is_already_sliced() -> None:
    assert chosen(part(), gpu(0), gpu(1, left=40, holders=1)) == [1]


def test_a_gpu_in_trouble_comes_last_even_if_sliced() -> None:
    cut = gpu(1, left=40, holders=1)
    assert chosen(part(), gpu(0), replace(cut, strangers=True)) == [0]
    assert chosen(part(), gpu(0), replace(cut, gpu=replace(cut.gpu, exclusive=True))) == [0]
    assert chosen(part(), replace(cut, strangers=True)) == [1]


def test_of_sliced_gpus_the_tightest_that_fits_is_taken() -> None:
    gpus = [gpu(0, left=60, holders=1), gpu(1, left=20, holders=1), gpu(2, left=4, holders=1)]
    assert chosen(part(), *gpus) == [1]


def test_of_equally_full_gpus_the_one_that_is_used_the_least_is_taken() -> None:
    heavy, light = (replace(gpu(n, left=20, holders=1), busy=7 - 5 * n) for n in (0, 1))
    assert chosen(part(), heavy, light) == [1]
    assert chosen(part(), replace(heavy, bytes_free=16 * GIB), light) == [0], "fuller comes first"


def test_slices_go_to_the_weaker_model_and_whole_gpus_are_of_the_stronger() -> None:
    weak, strong = gpu(1, strength=26.0), gpu(0, strength=286.0)
    assert chosen(part(), strong, weak) == [1]
    assert chosen(Request(), weak, strong) == [0]
    assert chosen(part(), gpu(0, strength=286.0, holders=1, left=60), weak) == [0]


def test_no_gpu_weaker_than_asked_is_chosen() -> None:
    weak, strong, unknown = gpu(0, strength=26.1), gpu(1, strength=286.3), gpu(2)
    for asked in (part(), Request()):
        least = replace(asked, min_strength=100.0)
        assert chosen(least, weak, strong, unknown) == [1]
        assert chosen(least, weak, unknown) is None
    assert chosen(replace(part(), min_strength=26.1), weak) == [0]


def of_model(one: GpuCapacity, name: str) -> GpuCapacity:
    return replace(one, gpu=replace(one.gpu, name=name))


def test_only_gpus_that_the_request_may_use_are_chosen() -> None:
    gpus = [gpu(0), gpu(1), of_model(gpu(2), "Tesla T4")]

    def selected(**which: tuple[str, ...]) -> list[int] | None:
        return chosen(replace(part(), which=GpuSelection(**which)), *gpus)

    assert selected(models=("t4",)) == [2]
    assert selected(models=("A100", "H100")) == [0]
    assert selected(named=("1",)) == [1]
    assert selected(named=(uuid_of(2), uuid_of(1))) == [1]
    assert selected(excluded=("0", uuid_of(1))) == [2]
    assert selected(named=("0",), excluded=("GPU-",)) is None
    assert selected(models=("T4",), named=("0", "1")) is None


@given(
    named=st.sets(st.integers(0, 4)),
    excluded=st.sets(st.integers(0, 4)),
    models=st.sets(st.sampled_from(["T4", "H100", "A100"])),
    held=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    count=st.integers(1, 3),
    whole=st.booleans(),
)
def test_no_placement_uses_a_gpu_that_was_excluded_or_not_named(
    *,
    named: set[int],
    excluded: set[int],
    models: set[str],
    held: list[int],
    count: int,
    whole: bool,
) -> None:
    names = ("Tesla T4", "NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA H100 80GB HBM3")
    gpus = [
        of_model(gpu(index, left=80 - 20 * holders, holders=holders), name)
        for index, (holders, name) in enumerate(zip(held, names, strict=True))
    ]
    which = GpuSelection(
        tuple(models),
        tuple(uuid_of(one) if one % 2 else str(one) for one in named),
        tuple(map(str, excluded)),
    )
    asked = Request(gpus=count) if whole else part(gpus=count)
    may = {
        index
        for index, name in enumerate(names)
        if index not in excluded
        and (not named or index in named)
        and (not models or any(model in name for model in models))
        and not (whole and held[index])
    }
    found = chosen(replace(asked, which=which), *gpus)
    assert (found is not None) == (len(may) >= count)
    assert found is None or set(found) <= may


def test_free_compute_counts_too() -> None:
    gpus = [gpu(0, percent=10, holders=1), gpu(1, percent=50, holders=1)]
    assert chosen(part(compute=30), *gpus) == [1]
    assert chosen(part(compute=60), *gpus) is None


def test_a_whole_gpu_is_one_that_nobody_holds() -> None:
    assert chosen(Request(), gpu(0, left=79, holders=1), gpu(1)) == [1]
    assert chosen(Request(gpus=2), gpu(0, holders=1), gpu(1)) is None


def test_a_gpu_that_other_programs_use_comes_last() -> None:
    used = replace(gpu(0, holders=1), unused_bytes=0)
    assert chosen(part(), used, gpu(1)) == [1]


def test_two_gpus_are_the_two_with_the_best_link() -> None:
    pairs = {0: 2, 2: 0, 1: 3, 3: 1}
    gpus = [
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
        for one in map(gpu, range(4))
    ]
    assert chosen(Request(gpus=2), *gpus) == [0, 2]
    assert chosen(Request(gpus=2), *gpus[1:]) == [1, 3]


def test_it_needs_no_numpy() -> None:
    code = "import sys; sys.modules['numpy'] = None; import aliquot.placement.choose.machine"
    subprocess.run([sys.executable, "-c", code], check=True)
