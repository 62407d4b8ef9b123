"""Resizing, against a fake arbiter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.model import Amount, GrantChange, Policy, parse_amount
from aliquot.model.errors import (
    AliquotError,
    InvalidValueError,
    MemoryInUseError,
    NoCapacityError,
    NoSuchGrantError,
    UnsupportedError,
)
from aliquot.slices import LocalMachine, StateDirectory, control
from aliquot.slices.grant_resize import ResizeProgress, lower, resize
from slices.played import Played, gpu_words, grant_words, slice_words, status_words
from support import GIB, uuid_of

Play = Callable[..., tuple[LocalMachine, Played]]

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
    """A machine whose arbiter sends these replies to resize, one after the other."""
    playing: list[Played] = []

    def start(*answers: dict[str, Any]) -> tuple[LocalMachine, Played]:
        left = list(answers)
        played = Played(short_tmp, lambda asked: STATUS if asked == "status" else left.pop(0))
        playing.append(played)
        return LocalMachine(StateDirectory(short_tmp), control.status(short_tmp)), played

    yield start
    for one in playing:
        one.end()


def changes_asked(played: Played) -> list[str]:
    uuids = {uuid_of(gpu): f"GPU{gpu}" for gpu in range(2)}
    asked = [question for question in played.questions if question.startswith("resize")]
    for uuid, short in uuids.items():
        asked = [question.replace(uuid, short) for question in asked]
    return asked


def test_every_slice_changes_by_its_own_gpu(play: Play) -> None:
    machine, played = play(answer(40 * GIB, reached=True))
    change = GrantChange(memory=parse_amount("50%"), compute_percent=30, policy=Policy.HARD)
    done = resize(machine, machine.status.grants[0], change)
    assert [part.memory_bytes for part in done] == [40 * GIB] * 2
    (asked,) = changes_asked(played)
    assert asked == (
        f"resize name=a slice=GPU0,memory={40 * GIB},compute=30,policy=hard"
        f" slice=GPU1,memory={40 * GIB},compute=30,policy=hard"
    )


def refused(play: Play, code: str, change: GrantChange) -> AliquotError:
    machine, _ = play({"error": "the arbiter's own words", "code": code})
    with pytest.raises(AliquotError) as caught:
        resize(machine, machine.status.grants[0], change)
    return caught.value


def test_a_limit_below_what_is_in_use_is_refused_with_the_figure(play: Play) -> None:
    error = refused(play, "in-use", GrantChange(memory=parse_amount("600MiB")))
    assert type(error) is MemoryInUseError
    assert error.message.splitlines() == [
        "grant a uses 1 GiB of GPU 0: its limit cannot be 600 MiB",
        "grant a uses 1 GiB of GPU 1: its limit cannot be 600 MiB",
    ]
    assert "--wait" in str(error.hint)


def test_a_stale_refusal_keeps_the_arbiters_message(play: Play) -> None:
    error = refused(play, "in-use", GrantChange(memory=parse_amount("2GiB")))
    assert error.message == "the arbiter's own words"


def test_no_capacity_names_who_has_it(play: Play) -> None:
    error = refused(play, "no-capacity", GrantChange(compute_percent=60))
    assert isinstance(error, NoCapacityError)
    assert error.message.splitlines() == [
        "not enough free capacity for grant a:",
        "  GPU 0: 60% requested, 45% free (grants: other 8 GiB 55%)",
    ]
    assert "aliquot ps" in str(error.hint)


def test_no_capacity_names_what_is_missing(play: Play) -> None:
    error = refused(
        play, "no-capacity", GrantChange(memory=parse_amount("75GiB"), compute_percent=20)
    )
    assert error.message.splitlines()[1:] == [
        "  GPU 0: 75 GiB requested, 72 GiB free (grants: other 8 GiB)",
    ]


def test_more_memory_than_the_gpu_has_is_refused(play: Play) -> None:
    error = refused(play, "no-capacity", GrantChange(memory=parse_amount("200GiB")))
    assert error.message.splitlines()[1:] == [
        "  GPU 0: 200 GiB requested, the GPU has 80 GiB (grants: other 8 GiB)",
        "  GPU 1: 200 GiB requested, the GPU has 80 GiB",
    ]


def test_an_unsupported_change_keeps_the_arbiters_message(play: Play) -> None:
    error = refused(play, "unsupported", GrantChange(compute_percent=30, policy=Policy.HARD))
    assert type(error) is UnsupportedError
    assert error.message == "the arbiter's own words"
    assert "--policy elastic" in str(error.hint)


def test_hard_needs_a_share_given_or_existing(play: Play) -> None:
    machine, played = play({"name": "other", "slices": []})
    equal, shared = machine.status.grants
    with pytest.raises(
        InvalidValueError, match="--policy hard needs a share\n  Add --compute PERCENT"
    ):
        resize(machine, equal, GrantChange(policy=Policy.HARD))
    assert changes_asked(played) == []
    resize(machine, shared, GrantChange(policy=Policy.HARD))
    assert changes_asked(played) == ["resize name=other slice=GPU0,policy=hard"]


def test_the_limit_follows_what_the_program_frees(play: Play) -> None:
    machine, played = play(
        answer(6 * GIB, reached=False), answer(5 * GIB, reached=False), answer(GIB, reached=True)
    )
    change = GrantChange(memory=Amount(bytes=GIB), compute_percent=30)
    seen: list[ResizeProgress] = list(lower(machine, machine.status.grants[0], change))
    assert [one.remaining_bytes for one in seen] == [10 * GIB, 8 * GIB, 0]
    first, *later = changes_asked(played)
    assert first.startswith(f"resize name=a gradual=1 slice=GPU0,memory={GIB},compute=30 ")
    # Somebody may give it another share meanwhile.
    memory_only = f"slice=GPU0,memory={GIB} slice=GPU1,memory={GIB}"
    assert later == [f"resize name=a gradual=1 {memory_only}"] * 2


def test_a_grant_that_ends_while_waiting(play: Play) -> None:
    machine, _ = play(
        answer(6 * GIB, reached=False), {"error": "no grant a", "code": "no-such-grant"}
    )
    with pytest.raises(NoSuchGrantError, match="the grant a has ended"):
        list(lower(machine, machine.status.grants[0], GrantChange(memory=Amount(bytes=GIB))))
