"""The pool of root, for all users of the machine: real users, real processes."""

from __future__ import annotations

import json
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from aliquot.cli.tables import NOTHING
from aliquot.slices.user_limits import read_limits
from conftest import aliquot_command
from pool.conftest import SHAPE, PoolUp
from support import wait_until
from users import ALICE, BOB, CAROL, User, needs_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Users = Callable[..., User]

ADMINS = 4999

pytestmark = [
    needs_root,
    pytest.mark.timeout(300),
]


def numbers(user: User, *options: str) -> list[int]:
    """The jobs that a user sees, by number."""
    answer = user.aliquot("jobs", "--json", *options)
    assert answer.returncode == 0, answer.stderr
    return [one["number"] for one in json.loads(answer.stdout)["jobs"]]


def test_names_are_per_user(pool: PoolUp, users: Users) -> None:
    alice, bob = users(ALICE), users(BOB)
    for user in (alice, bob):
        answer = user.aliquot("submit", "--name", "train", "--", "/bin/sleep", "1000")
        assert (answer.returncode, answer.stdout) == (0, "train\n"), answer.stderr
    again = alice.aliquot("submit", "--name", "train", "--", "/bin/true")
    assert again.returncode == 1
    assert "a job named train exists" in again.stderr
    shown = json.loads(alice.aliquot("describe", "train", "--json").stdout)
    assert (shown["number"], shown["uid"], shown["user"]) == (1, ALICE, str(ALICE))
    assert pool.job("2")["uid"] == BOB


def test_a_user_cannot_change_jobs_of_others(pool: PoolUp, users: Users) -> None:
    alice, bob = users(ALICE), users(BOB)
    assert alice.aliquot("submit", "--name", "train", "--", "/bin/sleep", "1000").returncode == 0
    answers = {"1": "job 1 belongs to 4001", "train": "no such job", "4001:train": "no such job"}
    for command in ("suspend", "resume", "cancel", "describe", "logs"):
        for name, sentence in answers.items():
            answer = bob.aliquot(command, name)
            assert answer.returncode == 1, command
            assert sentence in answer.stderr
    (row,) = (line for line in bob.aliquot("jobs").stdout.splitlines() if "4001" in line)
    assert row.split()[:3] == ["1", NOTHING, "4001"]
    assert pool.job("1")["state"]["desired"] == "run"
    assert alice.aliquot("cancel", "train").returncode == 0
    pool.wait_for("1", "Cancelled")


def test_programs_in_other_namespaces_are_refused(pool: PoolUp, cli_env: dict[str, str]) -> None:
    env = {**cli_env, "ALIQUOT_SIMULATE": SHAPE}
    for namespace in (["--mount"], ["--pid", "--fork"], ["--user", "--map-root-user"]):
        command = ["unshare", *namespace, aliquot_command(), "jobs"]
        answer = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert answer.returncode == 1, namespace
        assert "not for programs in containers" in answer.stderr
    assert pool.ask("jobs").returncode == 0


FLOOD = """
import itertools, os, socket, sys, threading
path, kind = sys.argv[1:]
head = b"POST /v1/jobs HTTP/1.1\\r\\nContent-Length: %d\\r\\n\\r\\n"
sent = {
    "requests": b"GET /v1/jobs?all=1 HTTP/1.1\\r\\n\\r\\n",
    "silence": b"",
    "halves": b"GET /v1/jo",
    "bodies": head % (1 << 20) + b"[" * (1 << 20),
    "long": head % (1 << 40) + b"[" * (1 << 20),
}[kind]
kept = []
print("floods", flush=True)
while True:
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect(path)
            one.sendall(sent)
            if kind in ("silence", "halves"):
                kept = [*kept[-200:], one.dup()]
            elif kind == "requests":
                one.recv(100)
        except OSError:
            pass
"""

ASK = """
import socket, sys, time
slowest = 0
for _ in range(30):
    begun = time.monotonic()
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(sys.argv[1])
        one.sendall(b"GET /v1/jobs HTTP/1.1\\r\\n\\r\\n")
        assert one.recv(12) == b"HTTP/1.1 200"
    slowest = max(slowest, time.monotonic() - begun)
print(slowest)
"""


@pytest.mark.shares
def test_others_are_answered_while_a_user_floods_the_pool(pool: PoolUp, users: Users) -> None:
    alice, bob = users(ALICE), users(BOB)
    path = str(pool.state / "pool" / "socket")
    kinds = ("requests", "silence", "halves", "bodies", "long")
    floods = [bob.python(FLOOD, path, kind) for kind in kinds]
    try:
        for flood in floods:
            assert flood.stdout is not None
            assert flood.stdout.readline() == "floods\n"
        asks = alice.python(ASK, path)
        said, errors = asks.communicate(timeout=120)
        assert asks.returncode == 0, errors
        assert float(said) < 1.0
        assert pool.ask("jobs").returncode == 0
    finally:
        for flood in floods:
            flood.kill()
            flood.communicate()
    assert bob.aliquot("jobs").returncode == 0, "it is served again"


def test_a_slow_client_is_cut_off(pool: PoolUp) -> None:
    with socket.socket(socket.AF_UNIX) as slow:
        slow.settimeout(60)
        slow.connect(str(pool.state / "pool" / "socket"))
        slow.sendall(b"GET /v1")
        assert slow.recv(1) == b""


POLICY = """
[queues.default]
[queues.night]
users = ["{alice}"]
[limits.everybody]
memory = "10GiB"
jobs = {jobs}
[limits.users.{bob}]
grants = 3
[admins]
groups = ["{admins}"]
"""


def test_one_file_decides_about_queues_limits_and_admins(
    down_pool: PoolUp, users: Users, short_tmp: Path
) -> None:
    pool, file = down_pool, short_tmp / "pool.toml"

    def decide(jobs: int) -> None:
        file.write_text(POLICY.format(alice=ALICE, bob=BOB, admins=ADMINS, jobs=jobs))

    decide(jobs=1)
    pool.up("--config", str(file))
    alice, bob, admin = users(ALICE), users(BOB), users(CAROL, ADMINS)
    assert (
        alice.aliquot("submit", "--queue", "night", "--name", "one", "--", "true").returncode == 0
    )
    refused = bob.aliquot("submit", "--queue", "night", "--", "true")
    assert refused.returncode == 2
    assert "queue 'night' is not for you" in refused.stderr
    refused = alice.aliquot("submit", "--", "true")
    assert refused.returncode == 1
    assert "and may have 1 of" in refused.stderr

    shown = admin.aliquot("describe", f"{ALICE}:one")
    assert (shown.returncode, "one (1)" in shown.stdout) == (0, True), shown.stderr
    report = read_limits(pool.state)
    assert report.file == str(pool.state / "users")
    assert (pool.state / "users").read_text().splitlines()[1:] == [
        "user * memory 10240MiB",
        f"user {BOB} grants 3",
    ]

    file.write_text("[queues")
    wait_until(lambda: "is not valid TOML" in pool.output.read_text())
    assert "Nothing has changed." in pool.output.read_text()
    assert alice.aliquot("submit", "--", "true").returncode == 1
    decide(jobs=2)
    wait_until(lambda: f"read {file}" in pool.output.read_text())
    assert alice.aliquot("submit", "--", "true").returncode == 0
    assert admin.aliquot("cancel", f"{ALICE}:one").returncode == 0
    pool.wait_for("1", "Cancelled")


def test_only_root_reaches_the_files_of_the_pool(pool: PoolUp, users: Users) -> None:
    alice = users(ALICE)
    assert alice.aliquot("submit", "--name", "train", "--", "/bin/true").returncode == 0
    script = "import os, sys; os.listdir(sys.argv[1])"
    process = alice.python(script, str(pool.directory))
    assert "PermissionError" in process.communicate(timeout=60)[1]
    assert (pool.directory / "pool.sqlite").stat().st_mode & 0o777 == 0o600


def test_other_users_cannot_bring_a_pool_up_beside_roots(pool: PoolUp, users: Users) -> None:
    answer = users(ALICE).aliquot("up")
    assert answer.returncode == 1
    assert "belongs to root" in answer.stderr
    assert pool.process is not None
    assert pool.process.poll() is None
