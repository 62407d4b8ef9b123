"""How much memory slices have together that take turns with it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from aliquot.placement.core.overcommit import FIXED_BYTES, GpuLoad, RoomBound, TurnSlice
from support import GIB

HALVES = st.integers(0, 200).map(lambda half: half * GIB // 2)
SLICES = st.builds(TurnSlice, HALVES, HALVES, st.none() | st.sampled_from([1.0, 1.2, 1.5, 2.0]))
ASKED = st.lists(SLICES, max_size=12)


def grown(load: GpuLoad, asked: list[TurnSlice], host: int | None) -> GpuLoad:
    """The load with each slice in turn, as large as it may be."""
    for one in asked:
        room = load.room(host, one.most)
        load = load.beside(replace(one, limit=min(one.limit, room.bytes)))
    return load


def loads(memory: int, rigid: int, factor: float) -> GpuLoad:
    return GpuLoad(memory, min(memory, rigid), (), factor)


@given(HALVES, HALVES, st.sampled_from([1.0, 1.1, 1.5, 3.0]), ASKED, st.none() | HALVES)
def test_what_is_granted_is_within_every_limit(
    memory: int, rigid: int, factor: float, asked: list[TurnSlice], host: int | None
) -> None:
    load = grown(loads(memory, rigid, factor), asked, host)
    assert load.granted <= load.memory * factor
    turning = [one for one in load.turns if one.limit]
    if load.excess:
        for one in turning:
            assert one.most is None or load.granted <= load.memory * max(1.0, one.most)
    assert host is None or load.host_bytes <= host


@given(HALVES, HALVES, st.sampled_from([1.1, 1.5, 3.0]), ASKED)
def test_each_slice_fits_beside_what_is_fixed(
    memory: int, rigid: int, factor: float, asked: list[TurnSlice]
) -> None:
    # What is fixed is known only after a slice was made: before that it counts as 1 GiB.
    unknown = [replace(one, fixed=0) for one in asked]
    load = grown(loads(memory, rigid, factor), unknown, None)
    for one in load.turns:
        others = sum(other.stays for other in load.turns) - one.stays
        assert load.rigid + one.limit + others <= load.memory


@given(HALVES, HALVES, st.sampled_from([1.1, 1.5, 3.0]), ASKED, st.none() | HALVES)
def test_all_that_is_fixed_and_1_gib_fit(
    memory: int, rigid: int, factor: float, asked: list[TurnSlice], host: int | None
) -> None:
    small = [replace(one, limit=one.limit // 64, fixed=0) for one in asked]
    load = grown(loads(memory, rigid, factor), small * 8, host)
    stays = sum(one.stays for one in load.turns)
    assert load.excess == 0 or load.rigid + stays + GIB <= load.memory


@given(HALVES, HALVES, ASKED, HALVES, st.none() | HALVES)
def test_a_larger_slice_than_the_room_would_break_a_rule(
    memory: int, rigid: int, asked: list[TurnSlice], host: int, left: int | None
) -> None:
    load = grown(loads(memory, rigid, 1.5), asked, host)
    room = load.room(left)
    after = load.beside(TurnSlice(room.bytes + 1))
    stays = sum(one.stays for one in after.turns)
    movable = max((GIB, *(one.limit - one.stays for one in after.turns)))
    lowest = min([1.5, *(one.most for one in load.turns if one.most is not None)])
    assert (
        after.granted > int(memory * lowest)
        or after.rigid + stays + movable > memory
        or (left is not None and after.host_bytes > left)
    )


@given(HALVES, HALVES, st.sampled_from([1.0, 1.5]), ASKED, st.integers(-GIB, GIB))
def test_what_is_free_needs_no_turns_and_nothing_of_the_host(
    memory: int, rigid: int, factor: float, asked: list[TurnSlice], host: int
) -> None:
    load = grown(loads(memory, rigid, factor), asked, 0)
    assert load.excess == 0
    assert load.room(host).bytes >= load.free


def test_the_reason_is_what_bounds_the_slice() -> None:
    load = GpuLoad(140 * GIB, 10 * GIB, (TurnSlice(80 * GIB),), 1.5)
    assert load.room() == load.room(1000 * GIB)
    assert (load.room().bytes, load.room().bound) == (120 * GIB, RoomBound.FACTOR)
    assert load.room(62 * GIB).bytes == 81 * GIB
    assert load.room(62 * GIB).bound is RoomBound.HOST
    assert load.room(most=1.0).bytes == load.free == 50 * GIB
    crowded = replace(load, rigid=50 * GIB)
    assert crowded.room().bound is RoomBound.FACTOR
    wide = replace(crowded, factor=3.0)
    assert (wide.room().bytes, wide.room().bound) == (89 * GIB, RoomBound.ALONE)
    assert replace(load, factor=1.0).room().bound is RoomBound.GPU


def test_memory_that_a_program_cannot_move_counts_as_what_it_is() -> None:
    moves, pinned = TurnSlice(60 * GIB), TurnSlice(60 * GIB, fixed=40 * GIB)
    assert GpuLoad(80 * GIB, 0, (moves,), 2.0).room().bytes == 80 * GIB - FIXED_BYTES
    assert GpuLoad(80 * GIB, 0, (pinned,), 2.0).room().bytes == 40 * GIB
