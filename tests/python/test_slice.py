"""`aliquot.slice`: who runs in it, when it ends, and what it changes in the program."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aliquot.api import read_wait
from aliquot.model.errors import InvalidValueError
from support import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Cli
    from python.conftest import Python

NAMES = "[one.name for one in aliquot.grants()]"
SEES = "subprocess.run([sys.executable, 'train.py'])"


@pytest.mark.parametrize("wait", [-1, "-1s", math.nan, -math.inf])
def test_a_time_to_wait_that_is_no_time_is_refused(wait: str | float) -> None:
    with pytest.raises(InvalidValueError):
        read_wait(wait)


def test_infinity_is_to_wait_without_limit() -> None:
    assert read_wait(math.inf) == read_wait(wait=True)


def test_the_environment_leads_to_the_slice_only_inside_the_block(python: Python) -> None:
    done = python(f"""
import aliquot, os, subprocess, sys, time
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
before = dict(os.environ)
with aliquot.slice(memory="8GiB", name="mine") as part:
    assert part.gpus[0].index == 1, part
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert dict(os.environ) == part.environment
    os.environ["OTHER"] = "stays"
    {SEES}
assert dict(os.environ) == {{**before, "OTHER": "stays"}}
while {NAMES} != []:  # until the arbiter has noticed that the last process ended
    time.sleep(0.01)
""")
    assert (done.stdout, done.stderr) == ("a GPU of 8 GiB\n", "")


def test_a_slice_is_on_the_gpus_that_it_names(python: Python) -> None:
    done = python("""
import aliquot
with aliquot.slice(memory="8GiB", gpu=1, export=False) as one:
    assert one.gpus[0].index == 1, one
    with aliquot.slice(memory="8GiB", not_gpu=[1], model="h100", export=False) as two:
        assert two.gpus[0].index == 0, two
    try:
        aliquot.slice(memory="8GiB", gpu=[0, 7]).__enter__()
    except aliquot.AliquotError as error:
        print(error.message)
""")
    assert "--gpu 7 names no GPU of this machine, which has GPUs 0, 1" in done.stdout, done


def test_slices_are_apart_from_each_other(python: Python) -> None:
    done = python("""
import aliquot
with aliquot.slice(memory="8GiB", name="one", export=False) as one:
    with aliquot.slice(memory="8GiB", apart_from="one", export=False) as two:
        assert two.gpus[0].index != one.gpus[0].index
        with aliquot.slice(memory="8GiB", with_="one", label="x", export=False) as three:
            assert three.gpus[0].index == one.gpus[0].index
        try:
            here = one.gpus[0].index
            aliquot.slice(memory="8GiB", name="three", alone=True, gpu=here).__enter__()
        except aliquot.AliquotError as error:
            print(error.message)
""")
    assert "has the slice one, and three asks to be alone" in done.stdout, done


def test_memory_can_be_let_leave_the_gpu(python: Python) -> None:
    done = python("""
import aliquot, json, subprocess
with aliquot.slice(memory="8GiB", name="one", swap=True, park_after="10m"):
    shown = subprocess.run(["aliquot", "ps", "--json"], capture_output=True, check=True).stdout
    found = [one for one in json.loads(shown)["grants"] if one["name"] == "one"]
    print([(one["swap"], one["park_after_ms"]) for one in found])
""")
    assert "[(True, 600000)]" in done.stdout, done


def test_a_slice_can_have_memory_of_the_host(python: Python) -> None:
    done = python("""
import aliquot, json, subprocess
with aliquot.slice(memory="8GiB", name="one", spill="64MiB"):
    shown = subprocess.run(["aliquot", "ps", "--json"], capture_output=True, check=True).stdout
    print([one["spill_bytes"] for one in json.loads(shown)["grants"] if one["name"] == "one"])
""")
    assert "[67108864]" in done.stdout, done


def test_spawned_processes_of_multiprocessing_are_in_it(python: Python, tmp_path: Path) -> None:
    (tmp_path / "sees.py").write_text("def sees(_):\n    import train\n")
    done = python("""
import aliquot, multiprocessing, sys
sys.path.insert(0, ".")
import sees
if __name__ == "__main__":
    with aliquot.slice(memory="6GiB"), multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(sees.sees, [0])
""")
    assert (done.stdout, done.stderr) == ("a GPU of 6 GiB\n", "")


def test_the_grant_ends_when_the_block_raises(python: Python) -> None:
    done = python(f"""
import aliquot
try:
    with aliquot.slice(memory="8GiB"):
        raise KeyError("mine")
except KeyError:
    print({NAMES})
""")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_process_that_outlives_the_block_keeps_its_limits_and_the_grant(python: Python) -> None:
    done = python(f"""
import aliquot, subprocess, sys
from aliquot.model.errors import NameInUseError
code = open("train.py").read() + "print(flush=True); input(); print('goes on')"
with aliquot.slice(memory="8GiB", name="mine") as part:
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    child.stdout.readline()
print({NAMES}, aliquot.grants()[0].life)
late = subprocess.run([sys.executable, "train.py"], env=part.environment, capture_output=True)
print("refused" if late.returncode else "joined")
print(child.communicate("\\n")[0].split()[-1])
while aliquot.grants():
    pass
""")
    assert done.stdout == "['mine'] ended\nrefused\non\n", done.stderr


def test_the_grant_ends_with_a_program_that_is_killed(
    cli: Cli, python_env: dict[str, str], tmp_path: Path
) -> None:
    code = "import aliquot\nwith aliquot.slice(memory='8GiB', name='mine'): print(flush=1); input()"
    program = subprocess.Popen(
        [sys.executable, "-c", code],
        env=python_env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with program:
        assert program.stdout is not None
        program.stdout.readline()
        assert "mine" in cli("ps").stdout
        os.kill(program.pid, signal.SIGKILL)
    wait_until(lambda: "mine" not in cli("ps").stdout)


def test_a_second_exported_slice_is_refused_with_the_way_out(python: Python) -> None:
    done = python(f"""
import aliquot
from aliquot.model.errors import NestedGrantError
with aliquot.slice(memory="8GiB", name="first"):
    for export in (True, False):
        try:
            with aliquot.slice(memory="8GiB", export=export):
                print("not refused")
        except NestedGrantError as error:
            print(error.message, "|", "export=False" in error.hint)
    print({NAMES})
""")
    wrong = "this program's environment leads to the slice first already | True\n"
    assert done.stdout == wrong + wrong + "['first']\n", done.stderr


def test_a_slice_inside_aliquot_run_is_refused(cli: Cli, python_env: dict[str, str]) -> None:
    code = "import aliquot\nwith aliquot.slice(memory='1GiB'): pass"
    run = ("run", "--memory", "8GiB", "--name", "outer", "--", sys.executable, "-c", code)
    done = cli(*run, env=python_env)
    assert "NestedGrantError: already inside the grant outer" in done.stderr


def test_a_forked_child_that_leaves_the_block_does_not_end_the_grant(python: Python) -> None:
    done = python(f"""
import aliquot, os
with aliquot.slice(memory="8GiB", name="mine"):
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        print({NAMES}, flush=True)
        print(aliquot.grants()[0].life, flush=True)
if child:
    print({NAMES})
""")
    assert done.stdout == "['mine']\nowned\n[]\n", done.stderr


def test_the_arbiter_may_be_killed_inside_the_block(python: Python, aliquot_state: Path) -> None:
    done = python(f"""
import aliquot, os, signal
from pathlib import Path
from aliquot.slices import control
state = Path({str(aliquot_state)!r}) / "simulated" / "h100-4"
with aliquot.slice(memory="8GiB", name="mine"):
    answer = control.status(state).answer
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for key in ("guard_pid", "pid", "serving_pid"):
            os.kill(answer[key], number)
    while control.answers(state):
        pass
print({NAMES})
""")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_invalid_settings_raise_the_errors_of_the_command(cli: Cli, python: Python) -> None:
    for setting, option in (
        ("memory='8 apples'", "--memory=8 apples"),
        ("memory='8GiB', compute=101", "--compute=101"),
        ("memory='8GiB', name='-'", "--name=-"),
        ("gpus=17", "--gpus=17"),
    ):
        told = python(f"""
import aliquot
try:
    with aliquot.slice({setting}): pass
except aliquot.AliquotError as error:
    print(f"aliquot: {{error}}")
""")
        said = cli("run", "--simulate", "h100:4", option, "--", "true")
        assert said.returncode == 2
        if option != "--gpus=17":  # typer refuses that by itself
            assert said.stderr == told.stdout, told.stderr
        assert told.stdout
