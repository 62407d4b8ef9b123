"""Workers of root's pool run as the users of their jobs, and are apart from each other."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aliquot.pool.index import read_index
from aliquot.pool.logs import read
from aliquot.slices import control
from pool.conftest import PoolUp
from support import GIB, wait_until
from users import ALICE, BOB, CAROL, User, needs_root

if TYPE_CHECKING:
    from collections.abc import Callable

    Users = Callable[..., User]

pytestmark = [
    needs_root,
    pytest.mark.timeout(300),
]

TENANT = Path(__file__).parents[2] / "demo" / "tenant.py"
FOREVER = "while :; do sleep 1; done"


def submit(user: User, *args: str) -> str:
    answer = user.aliquot("submit", *args)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def fails_with(user: User, script: str, *args: object) -> str:
    """The last line of the error with which a Python program of the user ends."""
    error = user.python(script, *map(str, args)).communicate(timeout=60)[1]
    return error.strip().splitlines()[-1] if error.strip() else ""


def worker_of(pool: PoolUp, number: int) -> tuple[int, int]:
    """The supervisor of a job's first worker, and the process of its command."""
    owner = json.loads(next(pool.directory.glob(f"jobs/{number}/*.0/owner")).read_text())
    supervisor = int(owner["supervisor"])
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children")
    wait_until(lambda: bool(children.read_text().split()))
    return supervisor, int(children.read_text().split()[0])


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_job_runs_as_its_user_in_that_users_folder(pool: PoolUp, users: Users) -> None:
    script = "id -u; id -g; id -G; pwd; umask; echo $HOME; grep -h ^Uid /proc/self/status"
    for number, uid in enumerate((ALICE, BOB, CAROL), 1):
        user = users(uid)
        submit(user, "--name", "me", "--", "sh", "-c", script)
        pool.wait_for(str(number), "Succeeded")
        lines = pool.log(str(number)).splitlines()
        assert lines[:3] == [str(uid)] * 3
        assert lines[3:6] == [str(user.home), "0022", str(user.home)]
        assert lines[6].split()[1:] == [str(uid)] * 4


def test_a_worker_uses_its_slice_of_the_gpu(
    pool: PoolUp, users: Users, python_of_users: Path
) -> None:
    alice = users(ALICE)
    name = submit(alice, "--memory", "2GiB", "--", str(python_of_users), str(TENANT), "1000000")
    pool.wait_for("1", "Succeeded")
    seen = [json.loads(line) for line in pool.log("1").splitlines() if '"sees"' in line]
    assert seen[0]["bytes"] == 2 * GIB, name


def test_a_grant_belongs_to_the_user_of_the_job(pool: PoolUp, users: Users) -> None:
    submit(users(ALICE), "--name", "train", "--memory", "1GiB", "--", "sh", "-c", FOREVER)
    pool.wait_for("1", "Running")
    grant = control.status(pool.state).grants[0]
    assert (grant.owner_uid, grant.name) == (ALICE, f"{ALICE}:train.1.1.0")


def test_a_folder_that_only_the_user_can_enter_is_entered(pool: PoolUp, users: Users) -> None:
    alice, bob = users(ALICE), users(BOB)
    private = alice.home / "private"
    private.mkdir(mode=0o700)
    os.chown(private, ALICE, ALICE)
    program = private / "program"
    program.write_text("#!/bin/sh\npwd\n")
    program.chmod(0o700)
    os.chown(program, ALICE, ALICE)
    submit(alice, "--", "sh", "-c", f"cd {private} && ./program")
    pool.wait_for("1", "Succeeded")
    assert pool.log("1") == f"{private}\n"
    submit(bob, "--", "sh", "-c", f"cd {private}")
    pool.wait_for("2", "Failed")


class TestNobodyElse:
    @pytest.fixture
    def secret(self, pool: PoolUp, users: Users) -> User:
        """Alice, whose job runs."""
        alice = users(ALICE)
        alice.env["WHOSE"] = "of alice"
        submit(alice, "--name", "train", "--", "sh", "-c", f"echo of alice; {FOREVER}")
        pool.wait_for("1", "Running")
        wait_until(lambda: pool.log("1") == "of alice\n")
        return alice

    @pytest.mark.usefixtures("secret")
    def test_reads_the_files_of_a_job(self, pool: PoolUp, users: Users) -> None:
        bob, job = users(BOB), pool.directory / "jobs" / "1"
        slot = job / "1.0"
        opened = "import sys; open(sys.argv[1]).read()"
        for path in (job / "rank-0.log", slot / "launch", slot / "grant", slot / "owner"):
            assert path.exists()
            assert "PermissionError" in fails_with(bob, opened, path), path
        listed = "import os, sys; os.listdir(sys.argv[1])"
        for path in (pool.directory, job.parent, job, slot, slot / "notices", slot / "worker"):
            assert "PermissionError" in fails_with(bob, listed, path), path
        made = "import sys; open(sys.argv[1] + '/x', 'w')"
        for path in (job, slot, slot / "notices", slot / "worker", pool.directory / "index"):
            assert "PermissionError" in fails_with(bob, made, path), path
        assert "PermissionError" in fails_with(bob, opened, pool.directory / "index" / str(ALICE))

    @pytest.mark.usefixtures("secret")
    def test_reads_the_environment_or_signals_a_process(self, pool: PoolUp, users: Users) -> None:
        supervisor, command = worker_of(pool, 1)
        opened = "import sys; open(f'/proc/{sys.argv[1]}/environ').read()"
        killed = "import os, sys; os.kill(int(sys.argv[1]), 9)"
        for user in (users(BOB), users(CAROL)):
            for script in (opened, killed):
                for pid in (supervisor, command):
                    assert "PermissionError" in fails_with(user, script, pid)
        assert is_alive(command)

    def test_signals_the_supervisor_or_changes_its_files(self, pool: PoolUp, secret: User) -> None:
        """Not even the user of the job does, who could then end the job's bookkeeping."""
        supervisor, _ = worker_of(pool, 1)
        killed = "import os, sys; os.kill(int(sys.argv[1]), 9)"
        assert "PermissionError" in fails_with(secret, killed, supervisor)
        slot = pool.directory / "jobs" / "1" / "1.0"
        for path in (slot / "end", slot / "notices" / "notice", slot.parent / "rank-0.log.new"):
            script = "import sys; open(sys.argv[1], 'w')"
            assert "PermissionError" in fails_with(secret, script, path)


class TestFiles:
    def test_the_log_is_the_users_alone_in_a_folder_of_roots(
        self, pool: PoolUp, users: Users
    ) -> None:
        alice = users(ALICE)
        submit(alice, "--name", "train", "--", "sh", "-c", "echo hello")
        pool.wait_for("1", "Succeeded")
        log = pool.directory / "jobs" / "1" / "rank-0.log"
        found = log.stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (ALICE, 0o600)
        folder = log.parent.stat()
        assert (folder.st_uid, stat.S_IMODE(folder.st_mode)) == (0, 0o711)

    def test_a_user_reads_only_the_own_index(self, pool: PoolUp, users: Users) -> None:
        alice, bob = users(ALICE), users(BOB)
        for user, name in ((alice, "one"), (bob, "two"), (alice, "three")):
            submit(user, "--name", name, "--", "sh", "-c", f"echo {name}")
        for number in "123":
            pool.wait_for(number, "Succeeded")
        pool.down()
        os.seteuid(ALICE)
        try:
            found = read_index(pool.directory, ALICE)
            assert [(one.number, one.name) for one in found] == [(1, "one"), (3, "three")]
            assert read_index(pool.directory, BOB) == []
        finally:
            os.seteuid(0)

    def test_notices_reach_the_worker_and_reports_the_pool(
        self, pool: PoolUp, users: Users
    ) -> None:
        program = (
            "import sys, time\n"
            "from aliquot import worker\n"
            "worker.report(step=7, samples_per_second=2.5)\n"
            "print('reported', flush=True)\n"
            "while not worker.notice():\n"
            "    time.sleep(0.01)\n"
            "worker.ready()\n"
            "print(worker.notice().kind, flush=True)\n"
        )
        alice = users(ALICE)
        submit(
            alice, "--name", "train", "--gpus", "2", "--notice", "60", "--",
            *alice.python_command(program),
        )  # fmt: skip
        wait_until(lambda: pool.job("1")["progress"].get("step") == 7)
        assert alice.aliquot("suspend", "train").returncode == 0
        pool.wait_for("1", "Suspended")
        assert pool.log("1").splitlines() == ["reported", "suspend"]

    @pytest.mark.parametrize("kind", ["symlink", "fifo", "folder", "huge", "deep"])
    def test_a_worker_that_plays_tricks_with_its_files_delays_nobody(
        self, pool: PoolUp, users: Users, kind: str
    ) -> None:
        tricks = {
            "symlink": "ln -s /etc/shadow $F",
            "fifo": "mkfifo $F",
            "folder": "mkdir $F",
            "huge": "truncate -s 1T $F",
            "deep": "head -c 10000 /dev/zero | tr '\\0' '[' > $F",
        }
        script = f"cd $ALIQUOT_WORKER; for F in report ready; do {tricks[kind]}; done; echo done"
        submit(users(ALICE), "--name", "trick", "--", "sh", "-c", f"{script}; {FOREVER}")
        wait_until(lambda: pool.log("1") == "done\n")
        submit(users(BOB), "--name", "honest", "--", "sh", "-c", "echo fine")
        pool.wait_for("2", "Succeeded")
        assert pool.job("1")["progress"].get("step") is None


class TestLeftovers:
    LEAVE = "setsid sh -c 'echo $$ >> {0}; exec sleep 1000' </dev/null >/dev/null 2>&1 &"

    def pids(self, file: Path) -> list[int]:
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def test_daemons_end_with_the_job(self, pool: PoolUp, users: Users) -> None:
        alice = users(ALICE)
        file = alice.home / "left"
        wait = f"while [ ! -s {file} ]; do sleep 0.01; done"
        submit(alice, "--", "sh", "-c", f"({self.LEAVE.format(file)}); {wait}")
        pool.wait_for("1", "Succeeded")
        pids = self.pids(file)
        assert len(pids) == 1
        assert not is_alive(pids[0])
        pool.leaves_nothing()

    def test_daemons_end_also_if_the_supervisor_was_killed(
        self, pool: PoolUp, users: Users
    ) -> None:
        alice = users(ALICE)
        file = alice.home / "left"
        submit(alice, "--", "sh", "-c", f"({self.LEAVE.format(file)}); {FOREVER}")
        wait_until(lambda: len(self.pids(file)) == 1)
        supervisor, command = worker_of(pool, 1)
        os.kill(supervisor, signal.SIGKILL)
        pool.wait_for("1", "Failed")
        wait_until(lambda: not is_alive(command) and not is_alive(self.pids(file)[0]))
        pool.leaves_nothing()

    def test_the_kernel_kills_the_command_of_a_killed_supervisor(
        self, pool: PoolUp, users: Users
    ) -> None:
        submit(users(ALICE), "--", "sh", "-c", FOREVER)
        pool.wait_for("1", "Running")
        supervisor, command = worker_of(pool, 1)
        pool.kill()  # so that nobody else ends it
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: not is_alive(command))


def test_a_job_runs_with_the_groups_that_its_user_has_now(short_tmp: Path) -> None:
    """In a mount namespace where the machine knows alice and her groups."""
    folder = short_tmp / "jobs" / "1" / "1.0"
    for path in (folder, folder.parent, folder.parent.parent):
        path.mkdir(parents=True, exist_ok=True)
    (short_tmp / "passwd").write_text(
        Path("/etc/passwd").read_text() + f"alice:x:{ALICE}:{ALICE}::/:/bin/sh\n"
    )
    (short_tmp / "group").write_text(
        Path("/etc/group").read_text() + f"alice:x:{ALICE}:\nresearch:x:5001:alice\n"
    )
    launch = {
        "program": "/bin/sh",
        "command": ["sh", "-c", "id -G; id -un"],
        "directory": "/",
        "environment": {"PATH": "/usr/bin:/bin"},
        "state": str(short_tmp / "none"),
        "grant": "none",
        "user": {"uid": ALICE, "gid": 5009},
    }
    (folder / "launch").write_text(json.dumps(launch))
    mounts = " && ".join(
        f"mount --bind {short_tmp}/{name} /etc/{name}" for name in ("passwd", "group")
    )
    supervise = f"exec {sys.executable} -m aliquot.pool.supervisor {folder}"
    subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mounts} && {supervise}"], check=True, timeout=60
    )
    assert read(folder.parent / "rank-0.log", 0, 1000).content.decode().splitlines() == [
        f"{ALICE} 5001",
        "alice",
    ]


class TestSpawner:
    def spawner(self, pool: PoolUp) -> int | None:
        assert pool.process
        children = Path(f"/proc/{pool.process.pid}/task/{pool.process.pid}/children")
        for pid in map(int, children.read_text().split()):
            with suppress(OSError):
                if b"aliquot.pool.spawner" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return None

    def test_another_one_is_started_if_it_dies(self, pool: PoolUp, users: Users) -> None:
        alice = users(ALICE)
        submit(alice, "--", "sh", "-c", FOREVER)
        pool.wait_for("1", "Running")
        first = self.spawner(pool)
        assert first
        os.kill(first, signal.SIGKILL)
        submit(alice, "--", "sh", "-c", "echo hello")
        pool.wait_for("2", "Succeeded")
        assert pool.phase_of("1") == "Running"
        assert self.spawner(pool) not in {None, first}

    def test_it_ends_with_the_pool_and_workers_do_not(self, pool: PoolUp, users: Users) -> None:
        submit(users(ALICE), "--", "sh", "-c", FOREVER)
        pool.wait_for("1", "Running")
        spawner, (_, command) = self.spawner(pool), worker_of(pool, 1)
        assert spawner
        pool.kill()
        wait_until(lambda: not is_alive(spawner))
        assert is_alive(command)
        pool.up()
        pool.wait_for("1", "Running")
        assert is_alive(command)
