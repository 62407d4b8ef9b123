from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model import (
    Amount,
    ComputeUse,
    Grant,
    GrantState,
    MemoryTurns,
    Moved,
    Priority,
    Process,
    Request,
    Residence,
    Slice,
    SliceUse,
)
from aliquot.model.errors import InvalidValueError, NoCapacityError, NoGpuError
from aliquot.model.selection import GpuSelection
from aliquot.slices.gpu_choice import find_gpus, free_bytes, free_percent, judge_gpus
from aliquot.slices.named_gpus import with_named_gpus
from aliquot.slices.turn_room import turn_room, with_host_use
from support import GIB, MIB, make_grant, make_shared, uuid_of

if TYPE_CHECKING:
    from aliquot.slices.arbiter_status import SharedGpu


def ask(gpus: int = 1, gib: int | None = 8) -> Request:
    return Request(gpus=gpus, memory=None if gib is None else Amount(bytes=gib * GIB))


def indexes(request: Request, *gpus: SharedGpu) -> list[int]:
    return [gpu.index for gpu in find_gpus(request, gpus, ())]


def test_a_shared_gpu_is_filled_before_a_whole_one_is_shared() -> None:
    gpus = [make_shared(0), make_shared(1, granted=8 * GIB), make_shared(2, granted=40 * GIB)]
    grants = [make_grant(gpu1=8 * GIB), make_grant(gpu2=40 * GIB)]
    assert [gpu.index for gpu in find_gpus(ask(), gpus, grants)] == [2]
    assert [gpu.index for gpu in find_gpus(ask(gib=60), gpus, grants)] == [1]
    assert [gpu.index for gpu in find_gpus(ask(gib=76), gpus, grants)] == [0]


def test_a_gpu_used_outside_all_grants_comes_last() -> None:
    gpus = [make_shared(0), make_shared(1, granted=8 * GIB, outside=GIB)]
    assert [gpu.index for gpu in find_gpus(ask(), gpus, [make_grant(gpu1=8 * GIB)])] == [0]


def test_of_equal_gpus_the_first_is_chosen() -> None:
    assert indexes(ask(), *(make_shared(index) for index in range(4))) == [0]


def test_of_equally_full_gpus_the_one_whose_slices_do_the_least_is_chosen() -> None:
    gpus = [make_shared(number, granted=8 * GIB) for number in range(3)]
    made = make_grant(gpu0=8 * GIB), make_grant(gpu1=8 * GIB), make_grant(gpu2=8 * GIB)
    uses = (ComputeUse(recent_used_seconds=used, recent_seconds=1.0) for used in (0.4, 0.9, 0.1))
    grants = [replace(one, compute=(use,)) for one, use in zip(made, uses, strict=True)]
    assert [gpu.index for gpu in find_gpus(ask(), gpus, grants)] == [2]
    assert [gpu.index for gpu in find_gpus(ask(gpus=2), gpus, grants)] == [0, 1]


def test_an_idle_gpu_comes_before_one_that_is_used_outside_aliquot() -> None:
    assert indexes(ask(), make_shared(0, outside=GIB), make_shared(1)) == [1]


def test_an_idle_gpu_comes_before_one_in_use() -> None:
    assert indexes(ask(), make_shared(0, used=20 * GIB), make_shared(1)) == [1]


def test_two_slices_are_on_two_gpus() -> None:
    assert indexes(ask(gpus=2), make_shared(0), make_shared(1, granted=GIB)) == [0, 1]


def test_a_share_of_compute_asks_for_the_same_share_of_memory() -> None:
    shared = make_shared(0, granted=60 * GIB)
    assert indexes(Request(compute_percent=25), shared) == [0]
    with pytest.raises(NoCapacityError, match="26% of its memory and 26% of its compute time free"):
        indexes(Request(compute_percent=26), shared)


def test_a_gpu_on_which_the_slice_cannot_hold_a_context_is_skipped() -> None:
    small, large = make_shared(0, memory=16 * GIB), make_shared(1, memory=160 * GIB)
    assert indexes(Request(memory=Amount(percent=Fraction(1, 2))), small, large) == [1]
    measured = replace(small, context_bytes=64 * MIB, context_is_measured=True)
    assert indexes(Request(memory=Amount(bytes=70 * MIB)), measured, large) == [0]
    with pytest.raises(NoCapacityError, match=r"60 MiB cannot .* takes 64 MiB of GPU 0"):
        indexes(Request(memory=Amount(bytes=60 * MIB)), measured, large)


def test_two_halves_fill_a_gpu() -> None:
    half = Request(memory=Amount(bytes=40 * GIB))
    assert indexes(half, make_shared(0, granted=40 * GIB)) == [0]


def test_a_whole_gpu_is_one_without_grants() -> None:
    gpus = [make_shared(0, granted=MIB), make_shared(1, used=600 * MIB)]
    assert indexes(ask(gib=None), *gpus) == [1]


def test_a_gpu_with_a_desktop_can_be_granted_whole() -> None:
    assert indexes(ask(gib=None), make_shared(0, outside=200 * MIB)) == [0]


def test_memory_used_outside_all_grants_is_not_free() -> None:
    shared = make_shared(0, granted=40 * GIB, outside=34 * GIB)
    assert free_bytes(shared) == 6 * GIB
    with pytest.raises(NoCapacityError, match="no GPU has 8 GiB free"):
        find_gpus(ask(), [shared], ())
    assert free_bytes(make_shared(0, granted=60 * GIB, outside=60 * GIB)) == 0


def test_a_request_larger_than_any_gpu_is_refused() -> None:
    with pytest.raises(NoCapacityError) as caught:
        find_gpus(ask(gib=100), [make_shared(0), make_shared(1, memory=24 * GIB)], ())
    assert caught.value.message == (
        "no GPU has 100 GiB: the largest is GPU 0 (H100 80GB HBM3, 80 GiB)"
    )


def test_a_minimum_strength_that_no_gpu_has_is_refused_with_the_strongest() -> None:
    weak, weaker = (
        replace(one, gpu=replace(one.gpu, strength=strength))
        for one, strength in ((make_shared(1), 286.3), (make_shared(0), 26.1))
    )
    with pytest.raises(NoCapacityError) as caught:
        find_gpus(replace(ask(), min_strength=300.0), [weaker, weak], ())
    assert caught.value.message == (
        "no GPU has strength 300 or more: the strongest is GPU 1 (H100 80GB HBM3, strength 286.3)"
    )
    assert "--min-strength" in str(caught.value.hint)
    with pytest.raises(NoCapacityError, match="2 GPUs requested, 1 has strength 100 or more"):
        find_gpus(replace(ask(gpus=2), min_strength=100.0), [weaker, weak], ())
    assert find_gpus(replace(ask(), min_strength=100.0), [weaker, weak], ()) == [weak.gpu]
    lacks = {
        one.shared.gpu.index: one.why
        for one in judge_gpus(replace(ask(), min_strength=100.0), [weaker, weak], ())
    }
    assert lacks[0] == "it is too weak: strength 26.1"


def test_a_gpu_that_the_request_may_not_use_is_refused_with_the_reason() -> None:
    gpus = [make_shared(0), make_shared(1), make_shared(2, granted=79 * GIB)]
    which = GpuSelection(named=("0", "2"), excluded=("0",))
    asked = replace(ask(), which=which)
    with pytest.raises(NoCapacityError) as caught:
        find_gpus(replace(asked, gpus=2), gpus, ())
    assert caught.value.message == (
        "2 GPUs requested, 1 is allowed by --gpu 0 --gpu 2 --not-gpu 0:\n"
        f"  GPU 0 (H100 80GB HBM3, {uuid_of(0)}): --not-gpu excludes it\n"
        f"  GPU 1 (H100 80GB HBM3, {uuid_of(1)}): --gpu names others"
    )
    with pytest.raises(NoCapacityError) as caught:
        find_gpus(asked, gpus, ())
    assert "no GPU has 8 GiB free" in caught.value.message
    assert "GPU 1: --gpu names others" in caught.value.message
    assert "GPU 2: 1 GiB free" in caught.value.message
    with pytest.raises(NoCapacityError, match="no GPU is allowed by --model A100") as caught:
        find_gpus(replace(ask(), which=GpuSelection(models=("A100",))), gpus, ())
    assert "GPU 0 (H100 80GB HBM3, " in caught.value.message
    assert "it is not of the model A100" in caught.value.message
    assert "--model" in str(caught.value.hint)
    why = {one.shared.gpu.index: one.why for one in judge_gpus(asked, gpus, ())}
    assert (why[0], why[1]) == ("--not-gpu excludes it", "--gpu names others")


def test_a_name_that_means_no_gpu_or_several_is_refused() -> None:
    gpus = [one.gpu for one in (make_shared(0), make_shared(1))]

    def found(**which: tuple[str, ...]) -> GpuSelection:
        return with_named_gpus(replace(ask(), which=GpuSelection(**which)), gpus).which

    assert found(named=("1",), excluded=(uuid_of(0),)).named == (uuid_of(1),)
    with pytest.raises(
        NoGpuError, match="--gpu 7 names no GPU of this machine, which has GPUs 0, 1"
    ):
        found(named=("7",))
    with pytest.raises(NoGpuError, match="--not-gpu GPU-1 names no GPU"):
        found(excluded=("GPU-1",))
    with pytest.raises(NoGpuError, match=r"--gpu GPU-0 is not one GPU: it means GPU 0 .*and GPU 1"):
        found(named=("GPU-0",))
    with pytest.raises(InvalidValueError, match="--not-gpu '' names nothing"):
        found(excluded=("",))


def test_more_gpus_than_exist_are_refused() -> None:
    with pytest.raises(NoCapacityError, match="2 GPUs requested, but there is 1"):
        find_gpus(ask(gpus=2), [make_shared()], ())


def test_no_capacity_names_the_grants_that_have_it() -> None:
    grants = [make_grant("a", gpu0=40 * GIB), make_grant("b", gpu0=37 * GIB, gpu1=78 * GIB)]
    gpus = [
        make_shared(0, granted=77 * GIB + 512 * MIB),
        make_shared(1, granted=78 * GIB, outside=GIB),
    ]
    with pytest.raises(NoCapacityError) as caught:
        find_gpus(ask(), gpus, grants)
    assert caught.value.message.splitlines() == [
        "no GPU has 8 GiB free:",
        "  GPU 0: 2.5 GiB free (grants: a 40 GiB, b 37 GiB)",
        "  GPU 1: 1 GiB free (grants: b 78 GiB; outside Aliquot: 1 GiB)",
    ]
    assert "aliquot run --wait" in str(caught.value.hint)


def test_too_few_gpus_with_capacity_are_refused() -> None:
    gpus = [make_shared(0), make_shared(1, granted=79 * GIB)]
    with pytest.raises(NoCapacityError, match="2 GPUs with 8 GiB free requested, but there is 1"):
        find_gpus(ask(gpus=2), gpus, ())


def test_no_whole_gpu_is_refused() -> None:
    with pytest.raises(NoCapacityError, match="no GPU is whole"):
        find_gpus(ask(gib=None), [make_shared(0, granted=MIB)], ())


def sharing(percent: int, gpu: int = 0, *, name: str = "a", priority: str = "normal") -> Grant:
    """A grant of 8 GiB and that share of a GPU."""
    part = Slice(uuid_of(gpu), 8 * GIB, percent, priority=Priority(priority))
    return replace(make_grant(name, **{f"gpu{gpu}": 8 * GIB}), slices=(part,))


def ask_compute(percent: int, **more: str) -> Request:
    return replace(
        ask(), compute_percent=percent, priority=Priority(more.get("priority", "normal"))
    )


def test_a_gpu_without_free_compute_is_skipped() -> None:
    gpus = [make_shared(0, granted=8 * GIB), make_shared(1, granted=16 * GIB)]
    (chosen,) = find_gpus(ask_compute(50), gpus, [sharing(60)])
    assert chosen.index == 1
    (chosen,) = find_gpus(ask_compute(40), gpus, [sharing(60)])
    assert chosen.index == 0


def test_equal_and_background_slices_need_no_free_compute() -> None:
    gpus, full = [make_shared(0)], [sharing(100)]
    assert find_gpus(ask_compute(0), gpus, full)
    assert find_gpus(ask_compute(50, priority="background"), gpus, full)


def test_a_background_slice_reserves_no_compute() -> None:
    grants = [sharing(80, priority="background"), sharing(70)]
    assert free_percent(make_shared(0), grants) == 30


@pytest.mark.parametrize("state", GrantState)
def test_a_parked_grant_frees_its_capacity(state: GrantState) -> None:
    grant = replace(sharing(60), state=state)
    parked = state is GrantState.PARKED
    uuid = make_shared(0).gpu.uuid
    assert free_percent(make_shared(0), [grant]) == (100 if parked else 40)
    assert (grant.bytes_on(uuid), len(grant.slices_on(uuid))) == (
        (0, 0) if parked else (8 * GIB, 1)
    )
    assert grant.slices[0].memory_bytes == 8 * GIB  # and will ask for it again
    gpus = [make_shared(0, granted=grant.bytes_on(uuid)), make_shared(1, granted=4 * GIB)]
    (chosen,) = find_gpus(ask_compute(0), gpus, [grant, make_grant(gpu1=4 * GIB)])
    assert chosen.index == (1 if parked else 0)


def test_of_equally_full_gpus_the_first_is_chosen() -> None:
    gpus = [make_shared(0, granted=16 * GIB), make_shared(1, granted=16 * GIB)]
    grants = [make_grant(gpu0=8 * GIB), make_grant(gpu0=8 * GIB), make_grant(gpu1=16 * GIB)]
    (chosen,) = find_gpus(ask(), gpus, grants)
    assert chosen.index == 0


def test_no_free_compute_names_the_grants_that_have_it() -> None:
    grants = [sharing(60), sharing(30, name="b"), make_grant("c", gpu0=GIB)]
    with pytest.raises(NoCapacityError) as caught:
        find_gpus(ask_compute(20), [make_shared(0, granted=17 * GIB)], grants)
    assert caught.value.message.splitlines() == [
        "no GPU has 8 GiB and 20% of its compute time free:",
        "  GPU 0: 63 GiB and 10% free (grants: a 8 GiB 60%, b 8 GiB 30%, c 1 GiB)",
    ]
    assert str(caught.value.hint).startswith("Request less with --compute (or")


def test_a_hint_names_memory_and_compute() -> None:
    gpus = [make_shared(0, granted=8 * GIB), make_shared(1, granted=79 * GIB)]
    with pytest.raises(NoCapacityError) as caught:
        find_gpus(ask_compute(50), gpus, [sharing(60)])
    assert str(caught.value.hint).startswith("Request less with --memory or --compute (or")


SHARED = st.builds(
    make_shared,
    index=st.integers(0, 15),
    memory=st.integers(1, 96).map(lambda gib: gib * GIB),
    granted=st.integers(0, 96).map(lambda gib: gib * GIB),
    outside=st.integers(0, 96).map(lambda gib: gib * GIB),
    used=st.integers(0, 96).map(lambda gib: gib * GIB),
)
MACHINES = st.lists(SHARED, min_size=1, max_size=16, unique_by=lambda one: one.gpu.index)
REQUESTS = st.builds(
    Request,
    gpus=st.integers(1, 16),
    memory=st.none() | st.integers(1, 96).map(lambda gib: Amount(bytes=gib * GIB)),
)


@given(REQUESTS, MACHINES)
def test_a_choice_fits_and_is_deterministic(request_: Request, machine: list[SharedGpu]) -> None:
    by_uuid = {one.gpu.uuid: one for one in machine}
    try:
        chosen = find_gpus(request_, machine, ())
    except NoCapacityError as error:
        assert error.hint
        return
    assert len({gpu.uuid for gpu in chosen}) == request_.gpus
    for gpu in chosen:
        shared = by_uuid[gpu.uuid]
        if request_.memory is None:
            assert shared.granted_bytes == 0
        else:
            assert request_.bytes_on(gpu) <= free_bytes(shared)
    assert find_gpus(request_, list(reversed(machine)), ()) == chosen


class TestOvercommit:
    """A GPU of 80 GiB on which slices take turns with 1.5 times its memory."""

    def grants(self, *sizes: int) -> list[Grant]:
        turns = {"residence": Residence.GPU, "turns": MemoryTurns(15.0)}
        return [replace(make_grant(gpu0=size * GIB), **turns) for size in sizes]  # type: ignore[arg-type]

    def finds(self, gib: int, grants: list[Grant], *, swap: bool = True) -> bool:
        granted = sum(grant.bytes_on(uuid_of(0)) for grant in grants)
        one = replace(make_shared(0, granted=granted), overcommit=1.5)
        request = Request(memory=Amount(bytes=gib * GIB), swap=swap)
        try:
            return bool(find_gpus(request, [one], grants))
        except NoCapacityError:
            return False

    def test_slices_that_take_turns_have_more_than_the_gpu_together(self) -> None:
        assert self.finds(50, self.grants(50))
        assert self.finds(70, self.grants(50))
        assert not self.finds(71, self.grants(50))

    def test_a_slice_that_takes_no_turns_gets_what_all_others_leave(self) -> None:
        assert self.finds(30, self.grants(50), swap=False)
        assert not self.finds(31, self.grants(50), swap=False)
        assert not self.finds(1, self.grants(50, 50), swap=False)

    def test_each_fits_by_itself_beside_what_does_not_move(self) -> None:
        fixed = [make_grant(gpu0=20 * GIB)]
        assert self.finds(59, [*fixed, *self.grants(40)])
        assert not self.finds(60, [*fixed, *self.grants(40)])  # and 1 GiB that the other leaves
        assert not self.finds(2, [make_grant(gpu0=40 * GIB), *self.grants(40)])

    def test_without_it_nothing_changes(self) -> None:
        one = make_shared(0, granted=50 * GIB)
        with pytest.raises(NoCapacityError):
            find_gpus(Request(memory=Amount(bytes=31 * GIB), swap=True), [one], self.grants(50))

    def test_a_gpu_with_room_is_chosen_before_one_with_turns(self) -> None:
        grants = self.grants(50)
        gpus = [
            replace(one, overcommit=1.5)
            for one in (make_shared(0, granted=50 * GIB), make_shared(1))
        ]
        wanted = Request(memory=Amount(bytes=40 * GIB), swap=True)
        assert [gpu.index for gpu in find_gpus(wanted, gpus, grants)] == [1]
        small = replace(wanted, memory=Amount(bytes=20 * GIB))
        assert [gpu.index for gpu in find_gpus(small, gpus, grants)] == [0]

    def test_of_gpus_with_turns_the_one_whose_programs_use_least_is_chosen(self) -> None:
        busy, calm = (
            replace(one, turns=MemoryTurns(15.0))
            for one in (make_grant(gpu0=60 * GIB), make_grant(gpu1=60 * GIB))
        )
        busy = replace(busy, use=(SliceUse(uuid_of(0), 55 * GIB, 0),))
        calm = replace(calm, use=(SliceUse(uuid_of(1), 5 * GIB, 0),))
        gpus = [replace(make_shared(index, granted=60 * GIB), overcommit=1.5) for index in range(2)]
        wanted = Request(memory=Amount(bytes=40 * GIB), swap=True)
        assert [gpu.index for gpu in find_gpus(wanted, gpus, [busy, calm])] == [1]

    def test_the_hosts_memory_is_set_aside_once(self) -> None:
        def machine(*sizes: int, spill: int = 0) -> tuple[list[SharedGpu], list[Grant]]:
            first, second = (size * GIB for size in sizes)
            grants = [
                replace(one, turns=MemoryTurns(15.0), spill_bytes=spill * GIB)
                for one in (make_grant(gpu0=first), make_grant(gpu1=second))
            ]
            gpus = [
                replace(one, overcommit=2.0, host_limit=90 * GIB)
                for one in (make_shared(0, granted=first), make_shared(1, granted=second))
            ]
            return list(with_host_use(gpus, grants)), grants

        def most(index: int, gpus: list[SharedGpu], grants: list[Grant]) -> int:
            return turn_room(gpus[index], grants).bytes // GIB

        assert most(0, *machine(60, 60)) == 65  # 45 GiB more than the GPU has
        assert most(0, *machine(60, 100)) == 45  # 40 GiB of the host are set aside for GPU 1
        assert most(0, *machine(60, 60, spill=10)) == 55
        gpus, grants = machine(60, 60)
        moved = Moved(Residence.HOST, settled=True, away_bytes=10 * GIB)
        copies = (Process(7, "x", "live", moved=moved),)
        parked = replace(make_grant(gpu1=GIB), state=GrantState.PARKED, processes=copies)
        grants = [*grants, parked]
        assert most(0, list(with_host_use(gpus, grants)), grants) == 60
        gpus, grants = machine(70, 125)
        assert most(0, gpus, grants) == 10  # what is free needs nothing of the host
        with pytest.raises(NoCapacityError, match="the host has no more memory") as caught:
            find_gpus(Request(memory=Amount(bytes=30 * GIB), swap=True), gpus, grants)
        assert "--host-memory" in str(caught.value.hint)

    def test_a_slice_allows_no_more_beside_it_than_its_queue_does(self) -> None:
        limited = [replace(one, turns=MemoryTurns(15.0, most=1.25)) for one in self.grants(60)]
        assert self.finds(40, limited)
        assert not self.finds(41, limited)
        assert self.finds(60, self.grants(60))

    def test_it_is_said_that_a_request_fits_only_in_turns(self) -> None:
        grants = self.grants(50)
        one = replace(make_shared(0, granted=50 * GIB), overcommit=1.5)
        wanted = Request(memory=Amount(bytes=40 * GIB), swap=True)
        (verdict,) = judge_gpus(wanted, [one], grants)
        assert verdict.fits
        assert verdict.why == (
            "fits only with over-commit: then slices have 90 GiB of its 80 GiB in turns"
            " (1.12 times), and the host keeps 20 GiB for what leaves"
        )
        (verdict,) = judge_gpus(replace(wanted, memory=Amount(bytes=75 * GIB)), [one], grants)
        assert verdict.why.startswith("70 GiB free in turns: slices may have 1.5 times its memory")
        with pytest.raises(NoCapacityError) as caught:
            find_gpus(replace(wanted, swap=False), [one], grants)
        assert "with --swap: then it fits in turns" in str(caught.value.hint)
