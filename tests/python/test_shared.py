"""Slices and notebooks of ordinary users, where root's pool admits every grant."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from jupyter_client.manager import KernelManager

from aliquot.slices import control
from pool.conftest import SHAPE, PoolUp, strict_arbiter
from python.conftest import TRAIN
from python.notebook import Notebook
from support import wait_until
from users import ALICE, BOB, User, everyones_python, needs_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Cli

    Users = Callable[[int], User]

POLICY = "[queues.default]\n[queues.small]\nlimit = 1\n"
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
KERNEL = "from ipykernel import kernelapp; kernelapp.launch_new_instance()"

pytestmark = needs_root


@pytest.fixture
def env(cli_env: dict[str, str]) -> dict[str, str]:
    return {**cli_env, "ALIQUOT_SIMULATE": SHAPE}


@pytest.fixture
def pool(cli: Cli, env: dict[str, str], aliquot_state: Path, short_tmp: Path) -> Iterator[PoolUp]:
    """Root's pool with two queues, beside an arbiter that gives users nothing directly."""
    short_tmp.chmod(0o755)
    policy = short_tmp / "pool.toml"
    policy.write_text(POLICY)
    pool = PoolUp(cli, env, aliquot_state)
    with strict_arbiter(pool, env):
        pool.up("--config", str(policy))
        yield pool


@pytest.fixture
def users(pool: PoolUp, env: dict[str, str], short_tmp: Path) -> Iterator[Users]:
    with everyones_python(short_tmp) as python:
        yield lambda uid: User(uid, python, short_tmp / str(uid), env)


class KernelOfAlice(KernelManager):
    """Starts a kernel that reads its connection file as Alice."""

    def write_connection_file(self, **settings: Any) -> None:
        super().write_connection_file(**settings)
        os.chown(self.connection_file, ALICE, ALICE)


def run(user: User, program: str) -> str:
    """What a program of a user prints."""
    with user.start(user.python_command(program), **PIPES) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def fill(user: User) -> subprocess.Popen[str]:
    """A command that has all GPUs."""
    sleeps = ("--", "sh", "-c", "echo runs; exec sleep 1000")
    process = user.start(user.command("run", "--gpus", "4", *sleeps), **PIPES)
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n", process.communicate()[1]
    return process


def waits(user: User) -> bool:
    """Whether one request waits already before one of this user's."""
    options = ("--gpus", "4", "--wait", "--dry-run")
    return "place 2 of 2" in user.aliquot("run", *options, "--", "/bin/true").stdout


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_slice_of_an_ordinary_user_is_made_by_the_pool_and_ends_with_the_block(
    pool: PoolUp, users: Users
) -> None:
    alice = users(ALICE)
    (alice.home / "train.py").write_text(TRAIN)
    packages = alice.python_command("exec(open('train.py').read())")
    said = run(
        alice,
        f"""
import aliquot, os, subprocess, time
with aliquot.slice(memory="8GiB", name="mine"):
    subprocess.run({packages!r}, check=True)
    (grant,) = aliquot.grants()
    print(grant.name, grant.owner_pid == os.getpid(), grant.owner_uid, flush=True)
while aliquot.grants():
    time.sleep(0.01)
""",
    )
    assert said == f"a GPU of 8 GiB\nmine True {ALICE}\n"


def test_a_slice_waits_in_a_queue_of_the_pool(pool: PoolUp, users: Users) -> None:
    alice, bob = users(ALICE), users(BOB)
    has_all = fill(bob)
    said = run(
        alice,
        """
import aliquot
from aliquot.model import errors
for settings in ({}, {"wait": 0.2}, {"wait": "0.2s", "queue": "default"}, {"queue": "none"}):
    try:
        with aliquot.slice(gpus=4, **settings):
            print("not refused")
    except aliquot.AliquotError as error:
        print(type(error).__name__)
try:
    with aliquot.slice(gpus=2, queue="small"):
        print("not refused")
except errors.NoCapacityError:
    print("NoCapacityError")
""",
    )
    late = ["WaitTimeoutError"] * 2
    assert said.split() == ["NoCapacityError", *late, "InvalidValueError", "NoCapacityError"]
    program = (
        "import aliquot\n"
        "with aliquot.slice(gpus=4, wait=True, name='mine'): print(flush=True); input()"
    )
    with alice.start(alice.python_command(program), **PIPES) as process:
        wait_until(lambda: waits(alice), 60)
        end(has_all)
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        (grant,) = control.status(pool.state).grants
        assert (grant.plain_name, grant.owner_uid) == ("mine", ALICE)
        end(process)


def test_slices_that_were_waited_for_too_shortly_leave_no_grants(
    pool: PoolUp, users: Users
) -> None:
    alice = users(ALICE)
    program = """
import aliquot, random
for _ in range(60):
    try:
        with aliquot.slice(memory="1%", wait=random.uniform(0.005, 0.15)):
            pass
    except aliquot.AliquotError:
        pass
print(flush=True)
input()
"""
    with alice.start(alice.python_command(program), **PIPES) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        wait_until(lambda: not control.status(pool.state).grants)
        end(process)


def test_a_kernel_of_an_ordinary_user_waits_and_restarts_in_a_slice(
    pool: PoolUp, users: Users
) -> None:
    alice, bob = users(ALICE), users(BOB)
    has_all = fill(bob)
    manager = KernelOfAlice(connection_file=str(alice.home / "kernel.json"))
    assert manager.kernel_spec is not None
    manager.kernel_spec.argv = [*alice.python_command(KERNEL), "-f", "{connection_file}"]
    env = {**alice.env, "IPYTHONDIR": str(alice.home), "JUPYTER_RUNTIME_DIR": str(alice.home)}
    ids = {"user": ALICE, "group": ALICE, "extra_groups": []}
    manager.start_kernel(env=env, cwd=str(alice.home), **ids)
    notebook = Notebook(manager)
    try:
        notebook.run("%load_ext aliquot")
        assert "the time to wait is over" in notebook.run("%aliquot gpus=4 wait=0.2")
        assert "queue 'none' does not exist" in notebook.run("%aliquot gpus=4 queue=none wait")
        line = "%aliquot memory=8GiB wait queue=default name=mine"
        notebook.starts_to_print(line, "waiting for GPUs: place 1 of 1")
        end(has_all)
        notebook.restarts(in_a_slice=True)
        notebook.run("%load_ext aliquot")
        again = notebook.run("%aliquot memory=8GiB wait queue=default")
        assert "This kernel is in the slice mine: 8 GiB of GPU" in again
        (grant,) = control.status(pool.state).grants
        assert (grant.owner_uid, grant.owner_pid) == (ALICE, notebook.pid)
        assert "without the slice mine" in notebook.run("%aliquot off")
        notebook.restarts(in_a_slice=False)
        wait_until(lambda: not control.status(pool.state).grants)
    finally:
        notebook.close()
