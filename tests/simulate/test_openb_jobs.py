"""Jobs made of openb's list: the rule, on a list small enough to follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.model.errors import InvalidValueError
from aliquot.placement.core.snapshot import NodeHardware
from aliquot.simulate.openb_jobs import LAST, pressed, read_jobs, some_nodes, some_of
from aliquot.simulate.trace import Arrival

HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"


def read(tmp_path: Path, *lines: str) -> dict[str, Arrival]:
    path = tmp_path / "pods.csv"
    path.write_text(HEAD + "\n".join(lines) + "\n")
    return {one.gang.name: one for one in read_jobs(path)}


def pod(name: str, came: float, ran: float, shape: str = "4000,1024,1,1000") -> str:
    return f"{name},{shape},{came},{came + 5 + ran},{came + 5}"


def test_pods_of_one_shape_that_come_together_are_one_gang(tmp_path: Path) -> None:
    jobs = read(
        tmp_path,
        pod("a", 0, 100),
        pod("b", 900, 200),
        pod("c", 1800, 600),
        pod("late", 2701, 100),
        pod("other", 10, 100, "4000,2048,1,1000"),
        pod("part", 10, 100, "4000,1024,1,500"),
    )
    assert set(jobs) == {"a", "late", "other", "part"}
    gang = jobs["a"]
    assert (len(gang.gang.members), gang.gang.submitted, gang.ran) == (3, 0, 300)
    assert jobs["part"].gang.milli == 500


def test_a_pod_of_several_gpus_is_as_many_workers(tmp_path: Path) -> None:
    lines = [
        pod("x", 0, 100, "8,8,8,1000"),
        pod("y", 1, 300, "8,8,8,1000"),
        pod("z", 2, 60, "8,8,8,1000"),
    ]
    jobs = read(tmp_path, *lines)
    assert [len(jobs[name].gang.members) for name in ("x", "z")] == [16, 8]
    assert jobs["x"].ran == 200
    asked = sum(one.gang.milli * one.ran for one in jobs.values())
    assert asked == 8000 * (100 + 300 + 60)


def test_what_never_ran_or_ran_for_too_short_or_too_long_or_long_ago_is_left_out(
    tmp_path: Path,
) -> None:
    jobs = read(
        tmp_path,
        pod("short", LAST, 59, "1,1,1,1000"),
        pod("long", LAST, 12 * 3600 + 1, "2,1,1,1000"),
        pod("no-gpu", LAST, 100, "3,1,0,0"),
        f"never,4,1,1,1000,{LAST},{LAST + 100},",
        pod("old", 0, 100, "5,1,1,1000"),
        pod("kept", LAST, 100, "6,1,1,1000"),
    )
    assert set(jobs) == {"kept"}


def test_a_list_with_nothing_to_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="no pod with GPUs that ran"):
        read(tmp_path, pod("short", 0, 1))


def test_the_seed_draws_jobs_and_says_what_was_declared(tmp_path: Path) -> None:
    jobs = list(
        read(tmp_path, *(pod(f"p{i}", i, 100, f"{i},1,1,1000") for i in range(20))).values()
    )
    some = some_of(jobs, 5, seed=1)
    assert len(some) == 5
    assert some == some_of(jobs, 5, seed=1)
    assert some != some_of(jobs, 5, seed=2)
    assert all(100 <= one.gang.seconds <= 200 for one in some)
    assert len(some_of(jobs, 50, seed=1)) == 20


def test_times_are_pressed_until_the_load_is_there(tmp_path: Path) -> None:
    jobs = list(
        read(tmp_path, *(pod(f"p{i}", 5000 * i, 100, f"{i},1,1,1000") for i in range(11))).values()
    )
    new = pressed(jobs, 2000, load=0.5)
    assert new[0].gang.submitted == 0
    assert new[-1].gang.submitted == pytest.approx(11 * 100 / (2 * 0.5))
    assert new[5].gang.submitted == pytest.approx(new[-1].gang.submitted / 2)
    assert pressed(jobs[:1], 2000, load=0.5)[0].gang.submitted == 0
    assert pressed([], 2000, load=0.5) == []


def test_nodes_are_taken_at_equal_distances_and_count_by_their_gpus() -> None:
    nodes = [NodeHardware(f"n{i}", 2, cpu_milli=1000) for i in range(10)]
    some = some_nodes(nodes, 3)
    assert [node.name for node in some] == ["n0", "n3", "n6"]
    assert {node.cpu_milli for node in some} == {0}
    with pytest.raises(InvalidValueError, match="from 1 to 10"):
        some_nodes(nodes, 11)
