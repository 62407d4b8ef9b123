"""`aliquot.submit` and the job that it returns."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pool.conftest import PoolUp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Cli
    from python.conftest import Python


@pytest.fixture
def pool(cli: Cli, cli_env: dict[str, str], aliquot_state: Path) -> Iterator[PoolUp]:
    pool = PoolUp(cli, cli_env, aliquot_state)
    pool.up()
    yield pool
    pool.clean_up()


@pytest.mark.usefixtures("pool")
def test_a_job_is_suspended_resumed_and_cancelled(python: Python) -> None:
    done = python("""
import aliquot, time
def until(job, *phases):
    while job.status not in phases:
        time.sleep(0.02)
    print(job.status)
job = aliquot.submit(["sleep", "3600"], memory="8GiB", name="sleeps", notice=0, grace=1)
until(job, "Running")
try:
    job.wait(timeout=0.1)
except TimeoutError as error:
    print(error)
job.suspend()
until(job, "Suspended")
assert aliquot.job("sleeps") == job == aliquot.job(job.number) == aliquot.jobs()[0]
job.resume()
until(job, "Running")
job.cancel()
print(job.wait(), aliquot.jobs(), len(aliquot.jobs(with_finished=True)))
""")
    assert done.stdout.splitlines() == [
        "Running",
        "job sleeps is not finished after 0.1 s",
        "Suspended",
        "Running",
        "Cancelled () 1",
    ], done.stderr


@pytest.mark.usefixtures("pool")
def test_folder_and_environment_of_a_job_can_be_chosen(python: Python, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    done = python("""
import aliquot, os
job = aliquot.submit(
    ["sh", "-c", "pwd; echo $COLOUR"],
    memory="1GiB", directory="inner", environment={**os.environ, "COLOUR": "blue"},
)
print(job.wait())
print(job.logs(), end="")
""")
    assert done.stdout == f"Succeeded\n{tmp_path}/inner\nblue\n", done.stderr


def test_waiting_goes_on_while_the_pool_restarts(
    pool: PoolUp, python_env: dict[str, str], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    until_go = f"while [ ! -e {go} ]; do sleep 0.05; done"
    pool.submit("--name", "reads", "--memory", "1GiB", "--", "sh", "-c", until_go)
    pool.wait_for("reads", "Running")
    code = "import aliquot; job = aliquot.job('reads'); print(flush=True); print(job.wait())"
    waiting = subprocess.Popen(
        [sys.executable, "-c", code], env=python_env, stdout=subprocess.PIPE, text=True
    )
    with waiting:
        assert waiting.stdout is not None
        waiting.stdout.readline()
        pool.kill()
        pool.up()
        go.touch()
        assert waiting.stdout.read() == "Succeeded\n"


def test_without_a_pool_the_error_says_how_to_start_one(python: Python) -> None:
    done = python("""
import aliquot
for ask in (lambda: aliquot.submit(["true"]), aliquot.jobs):
    try:
        ask()
    except aliquot.AliquotError as error:
        print(type(error).__name__, "aliquot up" in error.hint)
try:
    aliquot.submit("python train.py")
except aliquot.AliquotError as error:
    print(error.message)
""")
    assert done.stdout.splitlines() == [
        "NoPoolError True",
        "NoPoolError True",
        "'python train.py' is not a command",
    ], done.stderr


@pytest.mark.usefixtures("pool")
def test_a_job_has_the_exit_code_of_aliquot_wait(python: Python) -> None:
    done = python("""
import aliquot
slow = aliquot.submit(["sleep", "3600"], memory="1GiB", time="0.5", notice=0, grace=1)
print(slow.exit_code)
bad = aliquot.submit(["sh", "-c", "exit 3"], memory="1GiB")
good = aliquot.submit(["true"], memory="1GiB")
for job in (slow, bad, good):
    print(job.wait(), job.exit_code)
""")
    assert done.stdout.splitlines() == ["None", "Failed 124", "Failed 3", "Succeeded 0"], (
        done.stderr
    )


@pytest.mark.usefixtures("pool")
def test_a_job_starts_after_others_by_job_name_number_or_condition(python: Python) -> None:
    done = python("""
import aliquot
bad = aliquot.submit(["false"], memory="1GiB", name="bad")
good = aliquot.submit(["true"], memory="1GiB", name="good")
ways = (good, [good], "good", good.number, [good, "bad:any"], f"{bad.number}:any", bad)
for after in ways:
    job = aliquot.submit(["true"], memory="1GiB", after=after)
    print(job.wait(), job.reason if job.exit_code else "")
""")
    lines = done.stdout.splitlines()
    assert lines[:-1] == ["Succeeded "] * 6, done.stderr
    assert lines[-1] == "Cancelled job 1, which it starts after, is Failed"


@pytest.mark.usefixtures("pool")
def test_an_array_gives_a_job_for_each_index(python: Python) -> None:
    done = python("""
import aliquot
show = ["sh", "-c", "echo $ALIQUOT_ARRAY_INDEX"]
for indices in ("1,3%1", range(4, 6)):
    sweep = aliquot.submit(show, memory="1GiB", name="sweep", array=indices)
    print([(job.name, str(job.wait()), job.logs().strip()) for job in sweep])
print(aliquot.submit(["true"], memory="1GiB", after="sweep").wait())
try:
    aliquot.submit(show, array="3-1")
except aliquot.AliquotError as error:
    print(error.message)
""")
    assert done.stdout.splitlines() == [
        "[('sweep-1', 'Succeeded', '1'), ('sweep-3', 'Succeeded', '3')]",
        "[('sweep-4', 'Succeeded', '4'), ('sweep-5', 'Succeeded', '5')]",
        "Succeeded",
        "'3-1': 3-1 is no range of at most 1000",
    ], done.stderr


def test_types_tell_a_job_from_an_array(tmp_path: Path) -> None:
    program = tmp_path / "typed.py"
    program.write_text(
        "import aliquot\n"
        "reveal_type(aliquot.submit(['true'], time='2h', after=['a', 3]))\n"
        "reveal_type(aliquot.submit(['true'], array='1-3', memory='1GiB'))\n"
        "reveal_type(aliquot.submit(['true']).exit_code)\n"
        "aliquot.submit(['true'], hurry=1)\n"
    )
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-incremental", "--strict", str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r'Revealed type is "(.*)"', checked.stdout)
    job = "aliquot.api.PoolJob"
    assert found == [job, f"tuple[{job}, ...]", "int | None"], checked.stdout
    wrong = re.findall(r"^typed\.py:(\d+): error: ", checked.stdout, re.MULTILINE)
    assert set(wrong) == {"5"}, checked.stdout
