"""A hostile user of root's pool: nobody else is delayed, and nothing of root's is left to it."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aliquot.pool.account import KEYCTL, join_new_keyring
from pool.silent_mount import silent_mount
from support import wait_until
from users import ALICE, BOB, User, needs_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pool.conftest import PoolUp

    Users = Callable[..., User]

pytestmark = [
    needs_root,
    pytest.mark.timeout(300),
]

FOREVER = "while :; do sleep 1; done"


def submit(user: User, *args: str) -> None:
    answer = user.aliquot("submit", *args)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("number", ["Infinity", "1e999", "NaN", "[]", "9" * 5000])
def test_an_index_with_an_invalid_number_stops_nothing(
    pool: PoolUp, users: Users, number: str
) -> None:
    alice, bob = users(ALICE), users(BOB)
    submit(alice, "--name", "one", "--", "/bin/true")
    pool.wait_for("1", "Succeeded")
    index = str(pool.directory / "index" / str(ALICE))
    script = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    content = f'{{"jobs": [{{"number": {number}, "name": "one"}}]}}'
    assert alice.python(script, index, content).communicate(timeout=60)[1] == ""
    submit(alice, "--name", "two", "--", "/bin/true")
    submit(bob, "--name", "three", "--", "/bin/true")
    pool.wait_for("2", "Succeeded")
    pool.wait_for("3", "Succeeded")


LEASE = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
log = os.open(sys.argv[1], os.O_RDONLY)
while True:
    try:
        fcntl.fcntl(log, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        break
    except OSError:  # its worker still writes
        time.sleep(0.01)
print("has it", flush=True)
while fcntl.fcntl(log, fcntl.F_GETLEASE) == fcntl.F_RDLCK:  # until the pool wants to write
    time.sleep(0.01)
print("is asked for it", flush=True)
time.sleep(1000)
"""


def test_a_lease_on_a_log_delays_only_its_own_job(pool: PoolUp, users: Users) -> None:
    alice, bob = users(ALICE), users(BOB)
    submit(alice, "--name", "fails", "--retries", "100", "--", "/bin/false")
    log = pool.directory / "jobs" / "1" / "rank-0.log"
    wait_until(log.exists)
    lease = alice.python(LEASE, str(log))
    try:
        assert lease.stdout is not None
        assert lease.stdout.readline() == "has it\n"
        assert lease.stdout.readline() == "is asked for it\n"
        submit(bob, "--name", "honest", "--", "/bin/true")
        pool.wait_for("2", "Succeeded", seconds=20)  # the kernel ends a lease after 45 s
    finally:
        lease.kill()
        lease.communicate()


MANY_USERS = """
import ctypes, os, socket, sys, time
kept = []
for uid in range(70000, 70064):
    if os.fork() == 0:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        if ctypes.CDLL(None).unshare(0x10000000):  # CLONE_NEWUSER
            os._exit(1)
        for _ in range(32):
            one = socket.socket(socket.AF_UNIX)
            one.connect(sys.argv[1])
            kept.append(one)
        os.write(1, b"x")
        time.sleep(1000)
sys.stdin.read()
"""


@pytest.mark.parametrize("socket", ["socket", "runs"])
def test_the_many_uids_of_a_user_namespace_count_as_one_user(
    pool: PoolUp, users: Users, socket: str
) -> None:
    """A user has 65536 of them by /etc/subuid; here root takes them."""
    alice = users(ALICE)
    path = str(pool.state / "pool" / socket)
    names = subprocess.Popen(
        [sys.executable, "-c", MANY_USERS, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert names.stdout is not None
        assert names.stdout.read(64) == b"x" * 64
        if socket == "runs":
            run = alice.aliquot("run", "--memory", "1GiB", "--", "/bin/true")
            assert run.returncode == 0, run.stderr
        else:
            asked = alice.python(ASK_ONCE, path).communicate(timeout=60)
            assert asked == ("HTTP/1.1 200", "")
    finally:
        os.killpg(names.pid, signal.SIGKILL)
        names.communicate()


ASK_ONCE = """
import socket, sys
with socket.socket(socket.AF_UNIX) as one:
    one.connect(sys.argv[1])
    one.sendall(b"GET /v1/jobs HTTP/1.1\\r\\n\\r\\n")
    print(one.recv(12).decode(), end="")
"""


def test_a_worker_can_open_its_output_by_name(pool: PoolUp, users: Users) -> None:
    submit(users(ALICE), "--", "sh", "-c", "echo out > /dev/stdout; echo err > /dev/stderr")
    pool.wait_for("1", "Succeeded", "Failed")
    assert pool.log("1") == "out\nerr\n"


KEYRING = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
search, session = 10, -3
print(libc.syscall(int(sys.argv[1]), search, session, b"user", b"aliquot-test", 0))
"""


def test_a_worker_does_not_have_the_keys_of_roots_session(
    down_pool: PoolUp, users: Users, python_of_users: Path
) -> None:
    if KEYCTL is None or join_new_keyring() < 0:
        pytest.skip("this machine has no keyrings")
    add_key = {"x86_64": 248, "aarch64": 217}[platform.machine()]
    libc = ctypes.CDLL(None)
    assert libc.syscall(add_key, b"user", b"aliquot-test", b"secret", 6, -3) > 0
    down_pool.up()
    submit(users(ALICE), "--", str(python_of_users), "-c", KEYRING, str(KEYCTL))
    down_pool.wait_for("1", "Succeeded", "Failed")
    assert down_pool.log("1") == "-1\n"


def test_no_job_takes_longer_to_stop_than_an_admin_can_wait(pool: PoolUp, users: Users) -> None:
    alice = users(ALICE)
    for option, most in (("--grace", "an hour"), ("--notice", "a day")):
        answer = alice.aliquot("submit", option, "1e12", "--", "/bin/true")
        assert answer.returncode == 1, option
        assert f"at most {most}" in answer.stderr
    assert pool.ask("submit", "--grace", "1e6", "--", "/bin/true").returncode == 0, "root's own"


def test_a_user_cannot_make_up_queues_which_would_each_get_a_share(
    pool: PoolUp, users: Users
) -> None:
    alice = users(ALICE)
    for queue in ("other", "default/4002", "\x1b[2J", ""):
        answer = alice.aliquot("submit", "--queue", queue, "--", "/bin/true")
        assert answer.returncode == 2, queue
        assert "does not exist" in answer.stderr
        assert "Your queues are: default." in answer.stderr
    assert "No unfinished jobs" in pool.ask("jobs").stdout


def test_a_command_does_not_control_the_terminal_of_an_admin(pool: PoolUp, users: Users) -> None:
    submit(users(ALICE), "--name", "evil", "--", "/bin/sh", "-c", "sleep 1000; \x1b[2J\x9b2J\x07")
    for command in (("describe", f"{ALICE}:evil"), ("jobs",), ("jobs", "--all")):
        answer = pool.ask(*command)
        assert (answer.returncode, "evil" in answer.stdout) == (0, True), answer.stderr
        assert not set(answer.stdout) & set("\x1b\x9b\x07")


def test_a_mount_that_never_answers_delays_only_its_own_job(pool: PoolUp, users: Users) -> None:
    """As fusermount makes them over all that a user owns; root can enter it: `allow_other`."""
    alice, bob = users(ALICE), users(BOB)
    submit(alice, "--name", "runs", "--", "/bin/sh", "-c", FOREVER)
    pool.wait_for("1", "Running")
    job = pool.directory / "jobs" / "1"
    (slot,) = (one for one in job.iterdir() if one.is_dir())
    index = pool.directory / "index" / str(ALICE)
    assert pool.process is not None
    unfinished = index.with_name(f".{ALICE}-{pool.process.pid}")  # as an earlier version named it
    unfinished.touch()
    os.chown(unfinished, ALICE, ALICE)
    with (
        silent_mount(slot / "worker", ALICE),
        silent_mount(job / "rank-0.log", ALICE),
        silent_mount(index, ALICE),
        silent_mount(unfinished, ALICE),
    ):
        for user in (alice, bob):
            submit(user, "--name", f"of-{user.uid}", "--retries", "3", "--", "/bin/true")
        pool.wait_for("3", "Succeeded")
        answer = pool.ask("logs", f"{ALICE}:runs")
        assert (answer.returncode, "cannot be read" in answer.stderr) == (1, True), answer.stderr
        assert pool.ask("describe", f"{ALICE}:runs").returncode == 0
        assert alice.aliquot("cancel", "runs").returncode == 0
        pool.wait_for("1", "Cancelled")
        assert pool.ask("prune", "--older", "0s").returncode == 0


def test_the_pool_can_open_more_files_than_its_workers(down_pool: PoolUp, users: Users) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        down_pool.up()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert down_pool.process is not None
    limits = resource.prlimit(down_pool.process.pid, resource.RLIMIT_NOFILE)
    assert limits == (hard, hard)
    submit(users(ALICE), "--", "/bin/sh", "-c", "ulimit -Sn")
    down_pool.wait_for("1", "Succeeded", "Failed")
    assert down_pool.log("1") == "512\n"


def test_roots_pool_says_if_users_can_get_gpus_past_it(pool: PoolUp) -> None:
    wait_until(lambda: "users can get GPUs past this pool" in pool.output.read_text())
