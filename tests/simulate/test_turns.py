"""Programs that may have more memory together than their GPUs have."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from aliquot.cli.simulate_app import simulate_app
from aliquot.simulate.turns import HOUR, MOVING, Mix, Program, TurnMachine, compare, programs, run
from support import GIB

ONE = TurnMachine(1, 80 * GIB)
PROGRAMS = st.lists(
    st.builds(
        Program,
        came=st.integers(0, 100).map(float),
        limit=st.integers(1, 80).map(lambda gib: gib * GIB),
        used=st.just(GIB),
        steps=st.lists(
            st.tuples(st.integers(1, 50).map(float), st.integers(0, 50).map(float)),
            min_size=1,
            max_size=4,
        ).map(tuple),
    ),
    max_size=12,
)


def training(gib: int, seconds: float = HOUR) -> Program:
    return Program(0.0, gib * GIB, gib * GIB, ((seconds, 0.0),))


@settings(deadline=None)
@given(PROGRAMS, st.sampled_from([1.0, 1.5, 3.0]), st.none() | st.integers(0, 200))
def test_every_program_ends_and_nothing_is_over_a_limit(
    work: list[Program], factor: float, host: int | None
) -> None:
    most = None if host is None else host * GIB
    found = run(TurnMachine(2, 80 * GIB, factor, most), sorted(work, key=lambda one: one.came))
    assert found.most_excess <= (factor - 1) * 80 * GIB
    assert most is None or found.most_host_bytes <= most
    assert found.slowdown >= 1 - 1e-6 or not work


def test_trainings_that_do_not_fit_together_run_one_after_the_other_or_in_turns() -> None:
    work = [training(60), training(60)]
    alone = run(ONE, work)
    assert alone.completion == pytest.approx(1.5 * HOUR)
    assert alone.wait == pytest.approx(HOUR / 2)
    turns = run(replace(ONE, factor=1.5), work)
    assert turns.completion == pytest.approx(2 * HOUR / (1 - MOVING))
    assert turns.wait == 0


def test_those_that_fit_together_share_the_time_and_move_nothing() -> None:
    assert run(ONE, [training(40), training(40)]).completion == pytest.approx(2 * HOUR)


def test_a_program_that_pauses_gives_its_memory_and_waits_until_it_is_back() -> None:
    pauses = Program(0.0, 60 * GIB, GIB, ((10.0, 100.0), (10.0, 0.0)))
    short = replace(training(60, 20.0), came=20.0)
    found = run(replace(ONE, factor=1.5), [pauses, short])
    moved = 40 * GIB / 50e9  # what does not fit
    later = 40 * GIB / 50e9  # the other has ended: only its own memory comes back
    assert found.completion == pytest.approx((120 + later + 20 + moved) / 2)


def test_a_host_without_memory_keeps_programs_waiting() -> None:
    work = [training(60), training(60)]
    assert run(replace(ONE, factor=2.0, host_bytes=79 * GIB), work).wait > 0
    assert run(replace(ONE, factor=2.0, host_bytes=80 * GIB), work).wait == 0


def test_notebooks_gain_and_trainings_lose() -> None:
    machine = TurnMachine(2)
    for mix, gains in ((Mix.NOTEBOOKS, True), (Mix.TRAININGS, False)):
        found = compare(machine, mix, (1.0, 1.5), 42)
        assert (found[1.5].completion < found[1.0].completion) == gains
    assert programs(Mix.HALF, machine, 7) == programs(Mix.HALF, machine, 7)


def test_the_command_compares_factors() -> None:
    words = ["overcommit", "--gpus", "1", "--factors", "1.5", "--seeds", "42"]
    shown = CliRunner().invoke(simulate_app, words, catch_exceptions=False)
    assert "Time (min)" in shown.output
    shown = CliRunner().invoke(simulate_app, [*words, "--json"], catch_exceptions=False)
    rows = json.loads(shown.output)
    assert {(row["programs"], row["overcommit"]) for row in rows} == {
        (str(mix), factor) for mix in Mix for factor in (1.0, 1.5)
    }
    with pytest.raises(Exception, match="no factors"):
        CliRunner().invoke(simulate_app, ["overcommit", "--factors", "0.5"], catch_exceptions=False)
