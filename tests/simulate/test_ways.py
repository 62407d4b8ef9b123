"""The same jobs in three ways, and `aliquot simulate ways`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from aliquot.cli.simulate_app import simulate_app
from aliquot.model.errors import InvalidValueError
from aliquot.placement.core.snapshot import NodeHardware
from aliquot.simulate.engine import Discipline, simulate
from aliquot.simulate.generate import DAY, diurnal, plain
from aliquot.simulate.trace import read_gangs
from aliquot.simulate.ways import Stretch, Way, figures_of, parse_stretch, run_way
from simulate.test_elastic import job
from simulate.test_openb import NODES
from simulate.test_openb_jobs import HEAD, pod

FOUR_GPUS = [NodeHardware("a", 2), NodeHardware("b", 2)]

app = typer.Typer()
app.add_typer(simulate_app, name="simulate")


def said(*words: str) -> str:
    result = CliRunner().invoke(app, ["simulate", "ways", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_first_come_lets_nobody_overtake() -> None:
    arrivals = [job("busy", 2, 0, 600), job("four", 4, 10, 900), job("two", 2, 20, 500)]
    run = simulate(FOUR_GPUS, arrivals, discipline=Discipline.FIRST_COME)
    assert {fate.gang.name: fate.start for fate in run.fates} == {
        "busy": 0,
        "four": 600,
        "two": 1500,
    }


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 50), st.integers(1, 60)), max_size=12))
def test_first_come_starts_in_the_order_of_arrival(made: list[tuple[int, int, int]]) -> None:
    arrivals = [job(f"job-{i:02}", *one) for i, one in enumerate(made)]
    run = simulate(FOUR_GPUS, arrivals, discipline=Discipline.FIRST_COME)
    came = sorted(run.fates, key=lambda fate: (fate.gang.submitted, fate.gang.name))
    starts = [fate.start for fate in came if fate.start is not None]
    assert starts == sorted(starts)
    assert len(starts) == sum(workers <= 4 for workers, *_ in made)


def test_first_come_is_not_held_up_by_what_can_never_run() -> None:
    arrivals = [job("five", 5, 0, 100), job("four", 4, 1, 100)]
    run = simulate(FOUR_GPUS, arrivals, discipline=Discipline.FIRST_COME)
    assert [fate.start for fate in run.fates] == [None, 1]
    assert "even where nothing runs" in run.fates[0].reason


def test_the_three_ways_differ_as_they_should() -> None:
    """A job of four waits for the busy one, unless it may begin with two workers."""
    arrivals = [
        job("busy", 2, 0, 600),
        job("four", 4, 10, 900, "2..4"),
        job("two", 2, 20, 500),
    ]
    starts = {
        way: {fate.gang.name: fate.start for fate in run_way(way, FOUR_GPUS, arrivals).fates}
        for way in Way
    }
    assert starts[Way.FIRST_COME] == {"busy": 0, "four": 600, "two": 1500}
    assert starts[Way.BACKFILL] == {"busy": 0, "four": 600, "two": 20}
    assert starts[Way.ELASTIC]["four"] == 10


def test_figures_are_of_what_happened() -> None:
    arrivals = [job("a", 4, 0, 1000, "1..4"), job("b", 4, 500, 1000)]
    found = figures_of(run_way(Way.FIRST_COME, FOUR_GPUS, arrivals), arrivals)
    assert found.completion_mean == (1000 + 1500) / 2
    assert found.wait_mean == 250
    assert (found.used, found.lost, found.restarts) == (1.0, 0.0, 0)
    elastic = figures_of(
        run_way(Way.ELASTIC, FOUR_GPUS, [job("a", 4, 0, 5000, "1..4"), job("b", 2, 900, 60)]),
        [job("a", 4, 0, 5000, "1..4"), job("b", 2, 900, 60)],
    )
    assert elastic.restarts == 2
    assert elastic.resizes_per_job_hour > 0
    assert 0 < elastic.lost < 0.2


def test_which_jobs_can_be_resized_follows_from_the_request() -> None:
    stretch = Stretch(0.5, 2, smallest_job=2)
    jobs = stretch.apply([job("one", 1, 0, 10), job("three", 3, 0, 10)])
    assert [str(one.sizes) for one in jobs] == ["None", "2..6"]
    named = [job("one", 1, 0, 10, "1..2"), job("three", 3, 0, 10)]
    assert stretch.apply(named) == named


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("2..0.5", "the maximum 0.5 is below the minimum 2"),
        ("1.5..2", "could not have the workers that it asks for"),
        ("half", "is no range of sizes"),
        ("0..2", "is no range of sizes"),
        ("1.2.3..4", "is no range of sizes"),
    ],
)
def test_a_range_that_cannot_be_is_refused_with_an_example(text: str, wrong: str) -> None:
    with pytest.raises(InvalidValueError, match=wrong) as caught:
        parse_stretch(text, 2)
    assert "0.5..2" in str(caught.value)


def test_days_are_full_at_noon_and_empty_at_night() -> None:
    jobs = diurnal(8, seed=5, load=0.7, days=3)
    assert jobs == diurnal(8, seed=5, load=0.7, days=3)
    asked = sum(one.gang.milli * one.ran for one in jobs) / 1000
    assert asked / (64 * 3 * DAY) == pytest.approx(0.7, abs=0.01)
    hours = [one.gang.submitted % DAY / 3600 for one in jobs]
    noon = sum(11 <= hour < 17 for hour in hours)
    night = sum(hour >= 23 or hour < 5 for hour in hours)
    assert noon > 3 * night
    assert sum(node.gpus for node in plain(8)) == 64


def test_sizes_are_read_from_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "gangs.csv"
    path.write_text(
        "gang,submitted,seconds,members,least,most\na,0,60,2,1,4\nb,0,60,2,,3\nc,0,9,1,,\n"
    )
    assert [str(one.sizes) for one in read_gangs(path)] == ["1..4", "2..3", "None"]


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        (
            "a,0,60,2,4,3",
            "line 2, column least: it cannot be '4': a gang cannot be resized between 4 and 3",
        ),
        ("a,0,60,2,3,", "a gang cannot be resized between 3 and 2 members"),
        ("a,0,60,2,0,3", "line 2, column least: it cannot be '0'"),
        ("a,0,60,2,0.5,3", "a whole number from 1 to 1024, or leave it empty for 2"),
        ("a,0,60,2,1,9999", "to 1024"),
        (
            "a,0,60,2,1,4\na,0,60,1,1,2",
            "line 3, column least: it cannot be '1': gang 'a' is in line 2",
        ),
    ],
)
def test_sizes_that_cannot_be_are_refused_with_their_line(
    tmp_path: Path, lines: str, wrong: str
) -> None:
    path = tmp_path / "gangs.csv"
    path.write_text(f"gang,submitted,seconds,members,least,most\n{lines}\n")
    with pytest.raises(InvalidValueError) as caught:
        read_gangs(path)
    assert wrong in str(caught.value)


@pytest.fixture
def lists(tmp_path: Path) -> list[str]:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(NODES)
    shapes = ("1,1,1,1000", "2,1,1,1000", "3,1,1,500")
    lines = [pod(f"p{i:02}", 1000 * i, 60 + 40 * i, shapes[i % 3]) for i in range(40)]
    lines += [pod(f"q{i:02}", 1001 * i, 60 + 40 * i, "9,1,2,1000") for i in range(20)]
    pods.write_text(HEAD + "\n".join(lines) + "\n")
    return ["--nodes", str(nodes), "--pods", str(pods), "--keep-nodes", "2"]


def test_openb_lists_are_run_in_three_ways(lists: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "ways.svg"
    words = (*lists, "--seeds", "1-2", "--keep-jobs", "30", "--plot", str(picture))
    answer = json.loads(said(*words, "--json"))
    assert [one["way"] for one in answer["ways"]] == ["first-come", "backfill", "elastic"]
    assert answer["assumed"]["checkpoint_seconds"] == 600
    for one in answer["ways"]:
        assert [run["seed"] for run in one["runs"]] == [1, 2]
        mean = one["completion_mean"]
        assert 0 < mean["least"] <= mean["median"] <= mean["most"]
        assert one["jobs"]["least"] == 30
    assert picture.read_text().count("<polyline") == 3


def test_ways_are_told_as_a_table_with_what_is_assumed() -> None:
    text = said("--diurnal", "1", "--load", "0.2", "--seeds", "1,2", "--checkpoint", "0")
    assert "Completion, 95% (min)" in text
    assert "elastic against first-come, seed by seed: mean" in text
    assert "saves on notice" in text


def test_a_trace_of_ours_is_run_as_it_is_or_pressed(tmp_path: Path) -> None:
    nodes, gangs = tmp_path / "nodes.csv", tmp_path / "gangs.csv"
    nodes.write_text("name,gpus\na,4\n")
    gangs.write_text(
        "gang,submitted,seconds,members,least,most\nbig,0,8000,4,1,4\ngang,1000,600,2,,\n"
    )
    words = ("--nodes", str(nodes), "--pods", str(gangs), "--ways", "elastic", "--seeds", "1")
    one = json.loads(said(*words, "--json"))["ways"][0]["runs"][0]
    assert one["restarts"] == 2
    with pytest.raises(
        InvalidValueError, match=r"--elastic would have no effect: the gangs of .*csv"
    ):
        CliRunner().invoke(
            app, ["simulate", "ways", *words, "--elastic", "1..2"], catch_exceptions=False
        )
    pressed = json.loads(said(*words, "--load", "10", "--json"))["ways"][0]["runs"][0]
    assert pressed["completion_mean"] != one["completion_mean"]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--diurnal", "1", "--elastic", "2..0.5"], "is below the minimum"),
        (["--diurnal", "1", "--ways", "luck"], "There are: first-come, backfill, elastic"),
        (["--diurnal", "1", "--day", "1"], "makes its own"),
        (["--diurnal", "1", "--keep-jobs", "5"], "Leave out --keep-jobs"),
        (["--diurnal", "1", "--efficiency", "2"], "at most 1"),
        (["--diurnal", "1", "--strategy", "luck"], "luck"),
        (["--seeds", "1"], "nothing to simulate"),
    ],
)
def test_wrong_use_is_refused_with_the_way_out(words: list[str], wrong: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        CliRunner().invoke(app, ["simulate", "ways", *words], catch_exceptions=False)
    assert wrong in str(caught.value)


def test_more_nodes_than_there_are_cannot_be_kept(lists: list[str]) -> None:
    with pytest.raises(InvalidValueError, match="there are 2 nodes"):
        CliRunner().invoke(app, ["simulate", "ways", *lists[:5], "9"], catch_exceptions=False)
