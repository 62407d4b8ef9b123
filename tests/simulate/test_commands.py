"""`aliquot simulate`, `compare` and `explain`, by their options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from aliquot.cli.simulate_app import explain, simulate_app
from aliquot.model.errors import InvalidValueError
from aliquot.simulate.report import percentile_95
from simulate.test_openb import NODES, PODS

app = typer.Typer()
app.add_typer(simulate_app, name="simulate")
app.command()(explain)


@pytest.fixture
def lists(tmp_path: Path) -> list[str]:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(NODES)
    pods.write_text(PODS)
    return ["--nodes", str(nodes), "--pods", str(pods)]


def said(*words: str) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_replay_is_one_json_object(lists: list[str]) -> None:
    answer = json.loads(said("simulate", *lists, "--strategy", "pack", "--seed", "7", "--json"))
    assert {"allocated", "placed", "refused", "seconds"} <= set(answer)
    assert answer["strategy"] == "pack"
    assert 0 < answer["allocated"] <= 1


def test_a_replay_is_a_table_and_a_plot(lists: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "course.svg"
    assert "Allocated" in said("simulate", *lists, "--plot", str(picture))
    assert picture.read_text().startswith("<svg")


def test_a_made_up_day_needs_no_files() -> None:
    answer = json.loads(said("simulate", "--day", "1", "--json"))
    assert answer["placed"] > 0
    assert answer["wait_p95_seconds"] >= 0


@pytest.fixture
def trace(tmp_path: Path) -> list[str]:
    """Four GPUs, of which a guest has all when the owner of two comes."""
    files = {
        "nodes": "name,gpus\na,2\nb,2\n",
        "pods": "gang,submitted,seconds,members,queue\n"
        "g1,0,1000,2,guest\ng2,1,1000,2,guest\nmine,100,50,2,own\n",
        "queues": "name,weight,quota_gpus\nown,1,2\nguest,1,2\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return [word for name in files for word in (f"--{name}", str(tmp_path / f"{name}.csv"))]


def test_queues_keep_their_quota_and_each_shows_how_long_it_waited(trace: list[str]) -> None:
    answer = json.loads(said("simulate", *trace, "--json"))
    assert answer["queues"]["own"]["wait_mean_seconds"] == 0
    assert answer["queues"]["guest"]["evictions"] == 1
    assert answer["queues"]["guest"]["wait_mean_seconds"] == (0 + 149) / 2
    assert [(one["gang"], one["time"]) for one in answer["preemptions"]] == [
        ("g2", 100),
        ("mine", 100),
    ]
    without = json.loads(said("simulate", *trace[:4], "--json"))
    assert without["queues"]["own"]["wait_mean_seconds"] == 900
    assert without["preemptions"] == []


def test_queues_and_both_sides_of_a_preemption_are_told_to_people(trace: list[str]) -> None:
    text = said("simulate", *trace)
    assert "guest" in text
    assert "mine, at 100 s: starts in place of g2" in text
    why = "preempted for mine: queue guest borrows from the quota of queue own"
    assert f"g2, at 100 s: {why}" in text


def test_strategies_are_compared_with_queues(trace: list[str]) -> None:
    rows = json.loads(said("simulate", "compare", *trace, "--seeds", "1", "--json"))
    assert {run["evictions"] for row in rows for run in row["runs"]} == {1}
    assert rows[0]["runs"][0]["queues"]["own"]["wait_mean_seconds"] == 0


def test_a_made_up_day_can_have_queues(tmp_path: Path) -> None:
    path = tmp_path / "queues.csv"
    path.write_text("name,weight,quota_gpus\ninference,1,4\ntraining,1,4\nexperiments,1,\n")
    answer = json.loads(said("simulate", "--day", "1", "--queues", str(path), "--json"))
    assert set(answer["queues"]) == {"inference", "training", "experiments"}


def test_a_gang_in_a_queue_that_nobody_described_is_told(trace: list[str], tmp_path: Path) -> None:
    (tmp_path / "queues.csv").write_text("name\nown\n")
    with pytest.raises(InvalidValueError, match="no queue 'guest', which gang 'g1' is in"):
        CliRunner().invoke(app, ["simulate", *trace], catch_exceptions=False)


def test_pods_that_know_no_queues_are_told(lists: list[str]) -> None:
    with pytest.raises(InvalidValueError, match="have no queues"):
        CliRunner().invoke(app, ["simulate", *lists, "--queues", lists[1]], catch_exceptions=False)


def test_strategies_are_compared(lists: list[str]) -> None:
    words = ("compare", *lists, "--strategies", "pack,random", "--seeds", "1-2,9", "--json")
    rows = json.loads(said("simulate", *words))
    assert [row["strategy"] for row in rows] == ["pack", "random"]
    assert [run["seed"] for run in rows[0]["runs"]] == [1, 2, 9]


def test_a_request_is_explained(lists: list[str]) -> None:
    found = json.loads(said("explain", *lists[:2], "--model", "A10", "--json"))
    assert (found["node"], found["gpus"]) == ("n1", [0])
    assert found["refused"] == {"another GPU model": 1}
    nowhere = CliRunner().invoke(app, ["explain", *lists[:2], "--gpus", "3"])
    assert nowhere.exit_code == 1
    assert "nowhere" in nowhere.output
    assert "1 node: " in said("explain", *lists[:2], "--model", "A10")


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--model", "Voodoo2"], "There are: A10"),
        (["--memory", "8GiB"], "Leave out --memory"),
        (["--memory", "50%"], "Write for example 8GiB"),
    ],
)
def test_a_request_that_no_node_can_answer_is_told(
    lists: list[str], words: list[str], wrong: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        CliRunner().invoke(app, ["explain", *lists[:2], *words], catch_exceptions=False)
    assert wrong in str(caught.value)


@pytest.mark.parametrize("words", [["--gpus", "0"], ["--compute", "0"]])
def test_nothing_is_no_request(lists: list[str], words: list[str]) -> None:
    done = CliRunner().invoke(app, ["explain", *lists[:2], *words])
    assert done.exit_code == 2 or isinstance(done.exception, InvalidValueError)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--strategy", "luck"], "luck"),
        (["--nodes", "/nowhere.csv"], "nowhere"),
        (["--pods", "/nowhere.csv"], "/nowhere.csv cannot be read: No such file or directory"),
        (["--day", "1"], "--day makes its own"),
        (["compare"], "--nodes and --pods before compare would have no effect"),
    ],
)
def test_wrong_use_is_refused(lists: list[str], words: list[str], wrong: str) -> None:
    with pytest.raises(InvalidValueError, match=wrong):
        CliRunner().invoke(app, ["simulate", *lists, *words], catch_exceptions=False)


def test_invalid_seeds_are_refused(lists: list[str]) -> None:
    with pytest.raises(InvalidValueError, match="'5-1'"):
        CliRunner().invoke(
            app, ["simulate", "compare", *lists, "--seeds", "5-1"], catch_exceptions=False
        )


def test_nothing_to_simulate_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="nothing to simulate"):
        CliRunner().invoke(app, ["simulate", "--seed", "1"], catch_exceptions=False)


@pytest.fixture
def three(tmp_path: Path) -> list[str]:
    """One GPU, and three gangs of a hundred seconds at once: they wait for 0, 100 and 200 s."""
    (tmp_path / "one.csv").write_text("name,gpus\na,1\n")
    lines = "".join(f"g{number},0,100\n" for number in range(3))
    (tmp_path / "three.csv").write_text(f"gang,submitted,seconds\n{lines}")
    return ["--nodes", str(tmp_path / "one.csv"), "--pods", str(tmp_path / "three.csv")]


def test_the_longest_of_few_waits_is_the_95_percent_one(three: list[str]) -> None:
    assert json.loads(said("simulate", *three, "--json"))["wait_p95_seconds"] == 200
    assert "3.3 min" in said("simulate", *three)


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (19, 19), (20, 19), (21, 20), (100, 95)])
def test_the_95_percent_value_is_by_nearest_rank(count: int, expected: int) -> None:
    assert percentile_95(range(1, count + 1)) == expected
    assert percentile_95(()) == 0


def test_a_comparison_over_time_has_one_row_a_strategy_and_a_plot(
    three: list[str], tmp_path: Path
) -> None:
    picture = tmp_path / "both.svg"
    words = ("simulate", "compare", *three, "--strategies", "pack,spread", "--seeds", "1-3")
    text = said(*words, "--plot", str(picture))
    assert [text.count(name) for name in ("pack", "spread")] == [1, 1]
    assert "GPU time used (median)" in text
    svg = picture.read_text()
    assert svg.count("<polyline") == 2
    assert "0:01</text>" in svg
    rows = json.loads(said(*words, "--json"))
    assert [row["strategy"] for row in rows] == ["pack", "spread"]
    assert rows[0]["least"] <= rows[0]["median"] <= rows[0]["most"]
    assert [run["seed"] for run in rows[0]["runs"]] == [1, 2, 3]


def test_a_comparison_tells_each_queue(trace: list[str]) -> None:
    text = said("simulate", "compare", *trace, "--strategies", "pack,spread", "--seeds", "1")
    assert [text.count(name) for name in ("guest", "own")] == [2, 2]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["simulate", "--day", "1", "--arrive", "2"], "--arrive is for openb's lists"),
        (["simulate", "compare", "--day", "1", "--arrive", "2"], "--arrive is for openb's lists"),
        (["simulate", "--seed", "3", "compare", "--day", "1"], "--seed before compare"),
        (["simulate", "--day", "1", "--plot", "day.png"], "Write day.svg"),
        (["simulate", "--day", "1", "--plot", "/nowhere/day.svg"], "no folder /nowhere"),
        (["simulate", "ways", "--day", "1", "--ways", "backfill", "--notice", "1"], "--notice"),
    ],
)
def test_options_that_have_no_effect_are_refused(words: list[str], wrong: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert wrong in str(caught.value)


def test_a_share_of_a_list_that_is_not_there_is_refused(lists: list[str]) -> None:
    with pytest.raises(InvalidValueError, match="--arrive says how much of a list comes before"):
        CliRunner().invoke(app, ["explain", *lists[:2], "--arrive", "1"], catch_exceptions=False)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_an_amount_without_end_is_wrong_use(lists: list[str], value: str) -> None:
    assert CliRunner().invoke(app, ["simulate", *lists, "--arrive", value]).exit_code == 2


def test_every_node_is_accounted_for(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    nodes = "".join(f"n{number},{number % 5 + 1},81920\n" for number in range(20))
    path.write_text(f"name,gpus,gpu_memory_mib\n{nodes}")
    words = ("explain", "--nodes", str(path), "--gpus", "3", "--compute", "50", "--memory", "8GiB")
    text = said(*words, "--strategy", "pack")
    assert text.startswith("3 GPUs (50% and 8 GiB of each): n")
    assert "  8 nodes: fewer GPUs than asked for" in text
    assert "  8 more nodes fit as well, and would cost more" in text
    found = json.loads(said(*words, "--strategy", "pack", "--json"))
    fit = 1 + len(found["others"]) + found["more_as_good"] + found["more_dearer"]
    assert fit + sum(found["refused"].values()) == 20
    dearer = said(*words[:3], "--gpus", "5", "--compute", "50")
    assert dearer.startswith("5 GPUs (50% of each): n")
    assert said(*words[:3], "--compute", "50").startswith("1 GPU (50%): n")
    assert "points of best-fit more" in said(
        "explain", "--nodes", str(uneven(tmp_path)), "--strategy", "best-fit"
    )


def uneven(folder: Path) -> Path:
    path = folder / "uneven.csv"
    path.write_text("name,gpus\na,1\nb,2\n")
    return path
