"""`aliquot logs` while no pool is up: of one's own pool, and of root's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aliquot.devices import Shape
from aliquot.pool.directory import directory_of, on_disk
from aliquot.pool.index import index_path
from aliquot.slices import StateDirectory, state_directory
from conftest import aliquot_command
from pool.conftest import SHAPE, PoolUp
from support import wait_until
from users import ALICE, BOB, User, needs_root

if TYPE_CHECKING:
    from collections.abc import Callable

    Users = Callable[..., User]

pytestmark = pytest.mark.timeout(300)


LINES = "for i in 1 2 3; do echo $RANK-$i; done"


class TestOwnPool:
    def test_every_way_to_read_a_log_works_while_it_is_down(self, pool: PoolUp) -> None:
        pool.submit("--name", "two", "--workers", "2", "--", "sh", "-c", LINES)
        pool.submit("--name", "sweep", "--array", "1-2", "--", "sh", "-c", "echo of $ALIQUOT_JOB")
        for number in "123":
            pool.wait_for(number, "Succeeded")
        asked = (
            ("two",), ("1",), ("two", "--rank", "1"), ("two", "--tail", "2"),
            ("two", "--rank", "all", "--tail", "1"), ("two", "--since", "1h", "--timestamps"),
            ("two", "--since", "0"), ("sweep",), ("sweep-2",), ("sweep", "-t"),
            (f"{os.geteuid()}:two",), (f"{os.geteuid()}:sweep",),
        )  # fmt: skip
        up = [pool.ask("logs", *args) for args in asked]
        pool.down()
        for args, before in zip(asked, up, strict=True):
            answer = pool.ask("logs", *args)
            assert (answer.returncode, answer.stderr) == (0, ""), args
            assert sorted(answer.stdout.splitlines()) == sorted(before.stdout.splitlines()), args
        assert pool.ask("logs", "two").stdout == "0-1\n0-2\n0-3\n"

    def test_an_unknown_job_or_rank_is_refused(self, pool: PoolUp) -> None:
        pool.submit("--name", "one", "--", "true")
        pool.wait_for("one", "Succeeded")
        pool.down()
        for name in ("other", "7", "nobody-here:one", "4002:one"):
            answer = pool.ask("logs", name)
            assert answer.returncode == 1, name
            assert f"no job {name} of yours is known" in answer.stderr
            assert f"aliquot up --simulate {SHAPE}" in answer.stderr
        answer = pool.ask("logs", "one", "--rank", "1")
        assert (answer.returncode, "no worker of rank 1" in answer.stderr) == (2, True)

    def test_following_ends_with_a_note(self, pool: PoolUp) -> None:
        script = "echo begun; while :; do sleep 1; done"
        pool.submit("--name", "runs", "--", "sh", "-c", script)
        wait_until(lambda: pool.log("runs") == "begun\n")
        pool.kill()
        answer = pool.ask("logs", "-f", "runs")
        assert (answer.returncode, answer.stdout) == (0, "begun\n")
        assert "is not followed" in answer.stderr
        assert "aliquot logs -f runs" in answer.stderr

    def test_following_goes_on_while_the_pool_is_killed_and_back(
        self, pool: PoolUp, cli_env: dict[str, str], tmp_path: Path
    ) -> None:
        waits = "while ! test -e {0}; do sleep 0.1; done; echo {1}"
        first, last = tmp_path / "first", tmp_path / "last"
        script = f"echo begun; {waits.format(first, 'down')}; {waits.format(last, 'back')}"
        pool.submit("--name", "runs", "--", "sh", "-c", script)
        errors = tmp_path / "errors"
        command = [aliquot_command(), "logs", "--simulate", SHAPE, "-f", "runs"]
        with (
            errors.open("wb") as file,
            subprocess.Popen(command, env=cli_env, stdout=subprocess.PIPE, stderr=file) as follow,
        ):
            assert follow.stdout is not None
            assert follow.stdout.readline() == b"begun\n"
            pool.kill()
            first.touch()
            assert follow.stdout.readline() == b"down\n"
            pool.up()
            last.touch()
            assert follow.stdout.read() == b"back\n"
        assert follow.returncode == 0
        assert errors.read_text().count("until it is back") == 1

    def test_a_pruned_job_is_gone(self, pool: PoolUp) -> None:
        for name in ("old", "new"):
            pool.submit("--name", name, "--", "echo", name)
            pool.wait_for(name, "Succeeded")
            if name == "old":
                assert pool.ask("prune", "--older", "0").stdout.startswith("Forgot 1 finished job ")
        pool.down()
        assert pool.ask("logs", "old").returncode == 1
        assert pool.ask("logs", "1").returncode == 1
        assert pool.ask("logs", "new").stdout == "new\n"

    def test_a_pool_killed_before_it_wrote_the_index_is_repaired_by_the_next(
        self, pool: PoolUp
    ) -> None:
        pool.submit("--name", "one", "--", "echo", "one")
        pool.wait_for("one", "Succeeded")
        pool.kill()
        index = index_path(pool.directory, os.geteuid())
        index.rename(index.with_name(f".{index.name}-1"))  # as if the last step were missing
        assert pool.ask("logs", "one").returncode == 1
        pool.up()
        wait_until(index.exists)
        pool.kill()
        assert pool.ask("logs", "one").stdout == "one\n"
        assert [one.name for one in index.parent.iterdir()] == [index.name]

    def test_the_newest_job_or_array_of_a_name_is_meant(self, pool: PoolUp) -> None:
        for number, word in enumerate(("first", "second"), 1):
            pool.submit("--name", "again", "--array", "1", "--", "echo", word)
            pool.wait_for(str(number), "Succeeded")
        pool.down()
        assert pool.ask("logs", "again").stdout == "second\n"
        assert pool.ask("logs", "again-1").stdout == "second\n"
        assert pool.ask("logs", "1").stdout == "first\n"


@needs_root
class TestRootsPool:
    @pytest.fixture
    def down(self, pool: PoolUp, users: Users) -> tuple[User, User]:
        """Alice with the jobs 1 and 2 and Bob with job 3, of a pool that is down."""
        alice, bob = users(ALICE), users(BOB)
        for user, name in ((alice, "train"), (alice, "other"), (bob, "train")):
            script = f"echo {name} $RANK of {user.uid}"
            answer = user.aliquot(
                "submit", "--name", name, "--workers", "2", "--", "sh", "-c", script
            )
            assert answer.returncode == 0, answer.stderr
        for number in "123":
            pool.wait_for(number, "Succeeded")
        pool.down()
        return alice, bob

    def test_a_user_reads_own_jobs(self, down: tuple[User, User]) -> None:
        for user, number in zip(down, "13", strict=True):
            for name in ("train", number, f"{user.uid}:train"):
                answer = user.aliquot("logs", name)
                assert (answer.returncode, answer.stdout) == (0, f"train 0 of {user.uid}\n")
            answer = user.aliquot("logs", "train", "--rank", "all", "--timestamps")
            lines = sorted(line.split(" ", 1)[1] for line in answer.stdout.splitlines())
            assert lines == [f"[{rank}] train {rank} of {user.uid}" for rank in (0, 1)]

    def test_another_users_job_is_refused(self, down: tuple[User, User]) -> None:
        alice, bob = down
        for user, names in (
            (bob, ("1", "other", f"{ALICE}:train")),
            (alice, ("3", f"{BOB}:train")),
        ):
            for name in names:
                answer = user.aliquot("logs", name)
                assert (answer.returncode, answer.stdout) == (1, ""), name
                assert f"no job {name} of yours is known" in answer.stderr

    @pytest.mark.usefixtures("down")
    def test_root_reads_the_jobs_of_all(self, pool: PoolUp) -> None:
        for name in ("2", f"{ALICE}:other"):
            assert pool.ask("logs", name).stdout == f"other 0 of {ALICE}\n"
        assert pool.ask("logs", f"{BOB}:train", "--rank", "1").stdout == f"train 1 of {BOB}\n"
        assert pool.ask("logs", "train").returncode == 1, "it is no job of root's"

    def test_an_index_that_names_another_users_job_gives_nothing_away(
        self, pool: PoolUp, down: tuple[User, User]
    ) -> None:
        """Neither to its writer, nor to root under the writer's name."""
        alice, _bob = down
        index = index_path(pool.directory, ALICE)
        jobs = [
            {"number": 3, "name": "train", "workers": 2, "array": None, "submitted": 0},
            {"number": "../3", "name": "path", "workers": 2, "array": None, "submitted": 0},
        ]
        script = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
        written = alice.python(script, str(index), json.dumps({"jobs": jobs}))
        assert written.communicate(timeout=60)[1] == ""
        for answer in (alice.aliquot("logs", "train"), pool.ask("logs", f"{ALICE}:train")):
            assert (answer.returncode, answer.stdout) == (1, "")
            assert "belongs to another user" in answer.stderr
        assert alice.aliquot("logs", "path").returncode == 1
        assert pool.ask("logs", "3").stdout == f"train 0 of {BOB}\n"


@needs_root
def test_a_long_log_of_roots_pool_is_whole(
    pool: PoolUp, users: Users, python_of_users: Path
) -> None:
    """A user may not list the folder in which its older parts are."""
    alice, count = users(ALICE), 10 << 20
    program = f"print('begin'); print('x' * {count}); print('end')"
    answer = alice.aliquot("submit", "--name", "long", "--", str(python_of_users), "-c", program)
    assert answer.returncode == 0, answer.stderr
    pool.wait_for("1", "Succeeded")
    pool.down()
    lines = alice.aliquot("logs", "long").stdout.splitlines()
    assert [len(line) for line in lines] == [len("begin"), count, len("end")]
    assert alice.aliquot("logs", "long", "--tail", "1").stdout == "end\n"


class TestPlaces:
    @pytest.fixture
    def places(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
        """The folders for root's pools and for a user's."""
        tmp_path.chmod(0o755)
        monkeypatch.delenv("ALIQUOT_STATE", raising=False)
        monkeypatch.setattr(state_directory, "SYSTEM", tmp_path / "run")
        monkeypatch.setattr("aliquot.pool.directory._SYSTEM", tmp_path / "var")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        uid = os.getuid() or ALICE
        monkeypatch.setattr("os.geteuid", lambda: uid)
        return tmp_path / "var" / "pool", tmp_path / "home" / "aliquot" / "pool"

    def test_an_ordinary_user_finds_the_directory_of_roots_pool(
        self, places: tuple[Path, Path]
    ) -> None:
        roots, own = places
        assert directory_of(StateDirectory(state_directory.SYSTEM)).path == roots
        assert directory_of(StateDirectory(state_directory.own_directory())).path == own

    def test_naming_the_machines_own_state_directory_changes_nothing(
        self, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ALIQUOT_STATE", str(state_directory.SYSTEM))
        assert directory_of(StateDirectory(state_directory.SYSTEM)).path == places[0]

    def test_pools_are_found_on_disk_unless_others_can_write_there(
        self, places: tuple[Path, Path]
    ) -> None:
        roots, own = places
        for folder in (roots, own, own / "simulated" / "h100-2", own / "simulated" / "other"):
            folder.mkdir(parents=True, exist_ok=True)
        found = [(one.path, one.state.shape) for one in on_disk()]
        expected = [(roots, None), (own, None), (own / "simulated" / "h100-2", Shape("h100", 2))]
        assert found == expected
        own.chmod(0o777)
        assert own not in [one.path for one in on_disk()]
