"""`aliquot simulate`, `compare` and `explain`, by their options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from aliquot.cli.simulate_app import explain, simulate_app
from aliquot.model.errors import BadValueError
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


def test_a_replay_is_told_as_one_object(lists: list[str]) -> None:
    answer = json.loads(said("simulate", *lists, "--strategy", "pack", "--seed", "7", "--json"))
    assert {"allocated", "placed", "refused", "seconds"} <= set(answer)
    assert answer["strategy"] == "pack"
    assert 0 < answer["allocated"] <= 1


def test_a_replay_is_told_as_a_table_and_a_picture(lists: list[str], tmp_path: Path) -> None:
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
    assert "g2, at 100 s: ended for mine: queue 'guest' borrowed what is 'own''s own" in text


def test_strategies_are_compared_with_queues(trace: list[str]) -> None:
    rows = json.loads(said("simulate", "compare", *trace, "--seeds", "1", "--json"))
    assert {row["evictions"] for row in rows} == {1}


def test_a_made_up_day_can_have_queues(tmp_path: Path) -> None:
    path = tmp_path / "queues.csv"
    path.write_text("name,weight,quota_gpus\ninference,1,4\ntraining,1,4\nexperiments,1,\n")
    answer = json.loads(said("simulate", "--day", "1", "--queues", str(path), "--json"))
    assert set(answer["queues"]) == {"inference", "training", "experiments"}


def test_a_gang_in_a_queue_that_nobody_described_is_told(trace: list[str], tmp_path: Path) -> None:
    (tmp_path / "queues.csv").write_text("name\nown\n")
    with pytest.raises(BadValueError, match="no queue 'guest', which gang 'g1' is in"):
        CliRunner().invoke(app, ["simulate", *trace], catch_exceptions=False)


def test_pods_that_know_no_queues_are_told(lists: list[str]) -> None:
    with pytest.raises(BadValueError, match="have no queues"):
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
    with pytest.raises(BadValueError) as caught:
        CliRunner().invoke(app, ["explain", *lists[:2], *words], catch_exceptions=False)
    assert wrong in str(caught.value)


@pytest.mark.parametrize("words", [["--gpus", "0"], ["--compute", "0"]])
def test_nothing_is_no_request(lists: list[str], words: list[str]) -> None:
    assert CliRunner().invoke(app, ["explain", *lists[:2], *words]).exit_code == 2


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--strategy", "luck"], "luck"),
        (["--nodes", "/nowhere.csv"], "nowhere"),
        (["--pods", "/nowhere.csv"], "cannot be read: No such file or directory$"),
        (["--day", "1"], "--day makes its own"),
        (["compare", "--seeds", "5-1"], "'5-1'"),
    ],
)
def test_wrong_use_is_told(lists: list[str], words: list[str], wrong: str) -> None:
    with pytest.raises(BadValueError, match=wrong):
        CliRunner().invoke(app, ["simulate", *lists, *words], catch_exceptions=False)


def test_nothing_to_simulate_is_told() -> None:
    with pytest.raises(BadValueError, match="nothing to simulate"):
        CliRunner().invoke(app, ["simulate", "--seed", "1"], catch_exceptions=False)
