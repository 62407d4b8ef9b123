"""Resizing, against an arbiter that is played."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.model import Amount, Change, Policy, parse_amount
from aliquot.model.errors import (
    AliquotError,
    InvalidValueError,
    MemoryInUseError,
    NoCapacityError,
    NoSuchGrantError,
    UnsupportedError,
)
from aliquot.slices import Machine, State, control
from aliquot.slices.resize import Progress, lower, resize
from slices.played import Played, gpu_words, grant_words, slice_words, status_words
from support import GIB, uuid_of

Play = Callable[..., tuple[Machine, Played]]

STATUS = status_words(
    grant_words("a", slice_words(0), slice_words(1)),
    grant_words("other", slice_words(0, compute_percent=55)),
    gpus=[gpu_words(0), gpu_words(1)],
)


def answer(limit: int, *, reached: bool) -> dict[str, Any]:
    parts = [{"gpu": uuid_of(gpu), "memory_bytes": limit, "reached": reached} for gpu in range(2)]
    return {"name": "a", "slices": parts}


@pytest.fixture
def play(short_tmp: Path) -> Iterator[Play]:
    """A machine whose arbiter gives these answers to changes, one after the other."""
    playing: list[Played] = []

    def start(*answers: dict[str, Any]) -> tuple[Machine, Played]:
        left = list(answers)
        played = Played(short_tmp, lambda asked: STATUS if asked == "status" else left.pop(0))
        playing.append(played)
        return Machine(State(short_tmp), control.status(short_tmp)), played

    yield start
    for one in playing:
        one.end()


def changes_asked(played: Played) -> list[str]:
    uuids = {uuid_of(gpu): f"GPU{gpu}" for gpu in range(2)}
    asked = [question for question in played.questions if question.startswith("resize")]
    for uuid, short in uuids.items():
        asked = [question.replace(uuid, short) for question in asked]
    return asked


def test_every_slice_is_changed_and_percent_are_of_its_gpu(play: Play) -> None:
    machine, played = play(answer(40 * GIB, reached=True))
    change = Change(memory=parse_amount("50%"), compute_percent=30, policy=Policy.HARD)
    done = resize(machine, machine.seen.grants[0], change)
    assert [part.memory_bytes for part in done] == [40 * GIB] * 2
    (asked,) = changes_asked(played)
    assert asked == (
        f"resize name=a slice=GPU0,memory={40 * GIB},compute=30,policy=hard"
        f" slice=GPU1,memory={40 * GIB},compute=30,policy=hard"
    )


def refused(play: Play, code: str, change: Change) -> AliquotError:
    machine, _ = play({"error": "the arbiter's own words", "code": code})
    with pytest.raises(AliquotError) as caught:
        resize(machine, machine.seen.grants[0], change)
    return caught.value


def test_a_limit_below_what_is_in_use_is_refused_with_the_figure(play: Play) -> None:
    error = refused(play, "in-use", Change(memory=parse_amount("512MiB")))
    assert type(error) is MemoryInUseError
    assert error.message.splitlines() == [
        "grant a uses 1 GiB of GPU 0: its limit cannot be 512 MiB",
        "grant a uses 1 GiB of GPU 1: its limit cannot be 512 MiB",
    ]
    assert "--wait" in str(error.hint)


def test_where_the_program_has_freed_meanwhile_the_arbiters_words_stand(play: Play) -> None:
    error = refused(play, "in-use", Change(memory=parse_amount("2GiB")))
    assert error.message == "the arbiter's own words"


def test_no_room_says_who_has_it(play: Play) -> None:
    error = refused(play, "no-room", Change(compute_percent=60))
    assert isinstance(error, NoCapacityError)
    assert error.message.splitlines() == [
        "no room for what grant a should get:",
        "  GPU 0: 60% asked, 45% left (grants: other 8 GiB 55%)",
    ]
    assert "aliquot ps" in str(error.hint)


def test_no_room_says_which_part_is_short(play: Play) -> None:
    error = refused(play, "no-room", Change(memory=parse_amount("75GiB"), compute_percent=20))
    assert error.message.splitlines()[1:] == [
        "  GPU 0: 75 GiB asked, 72 GiB left (grants: other 8 GiB)",
    ]


def test_more_memory_than_the_gpu_has(play: Play) -> None:
    error = refused(play, "no-room", Change(memory=parse_amount("200GiB")))
    assert error.message.splitlines()[1:] == [
        "  GPU 0: 200 GiB asked, the GPU has 80 GiB (grants: other 8 GiB)",
        "  GPU 1: 200 GiB asked, the GPU has 80 GiB",
    ]


def test_what_this_gpu_cannot_do_is_refused_in_the_arbiters_words(play: Play) -> None:
    error = refused(play, "unsupported", Change(compute_percent=30, policy=Policy.HARD))
    assert type(error) is UnsupportedError
    assert error.message == "the arbiter's own words"
    assert "--policy elastic" in str(error.hint)


def test_hard_without_a_share_is_refused_and_with_the_slices_own_is_not(play: Play) -> None:
    machine, played = play({"name": "other", "slices": []})
    equal, shared = machine.seen.grants
    with pytest.raises(
        InvalidValueError, match="--policy hard needs a share: add --compute PERCENT"
    ):
        resize(machine, equal, Change(policy=Policy.HARD))
    assert changes_asked(played) == []
    resize(machine, shared, Change(policy=Policy.HARD))
    assert changes_asked(played) == ["resize name=other slice=GPU0,policy=hard"]


def test_waiting_goes_down_as_the_program_frees(play: Play) -> None:
    machine, played = play(
        answer(6 * GIB, reached=False), answer(5 * GIB, reached=False), answer(GIB, reached=True)
    )
    change = Change(memory=Amount(bytes=GIB), compute_percent=30)
    seen: list[Progress] = list(lower(machine, machine.seen.grants[0], change))
    assert [one.left_bytes for one in seen] == [10 * GIB, 8 * GIB, 0]
    first, *later = changes_asked(played)
    assert first.startswith(f"resize name=a gradual=1 slice=GPU0,memory={GIB},compute=30 ")
    # Somebody may give it another share meanwhile.
    memory_only = f"slice=GPU0,memory={GIB} slice=GPU1,memory={GIB}"
    assert later == [f"resize name=a gradual=1 {memory_only}"] * 2


def test_a_grant_that_ends_while_one_waits(play: Play) -> None:
    machine, _ = play(
        answer(6 * GIB, reached=False), {"error": "no grant a", "code": "no-such-grant"}
    )
    with pytest.raises(NoSuchGrantError, match="the grant a has ended"):
        list(lower(machine, machine.seen.grants[0], Change(memory=Amount(bytes=GIB))))
