"""The cgroups of a pool and its workers, as a service manager starts it. Needs root.

What limits workers needs the controller `pids` in version 2 of cgroups, which not every machine
has: `pytest -rs` says which tests were left out.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aliquot.cli import up as up_command
from cgroups import Cgroup, make_cgroup
from support import wait_until
from users import needs_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pool.conftest import PoolUp

pytestmark = needs_root

LIMIT = 64
FOREVER = "while :; do sleep 0.1; done"
# Forks for ever, and each of its processes too.
BOMB = """
import os, time
while True:
    try:
        os.fork()
    except BlockingIOError:
        time.sleep(0.01)
"""


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[Cgroup]:
    """The cgroup of a service, of version 2."""
    with make_cgroup(f"aliquot-{os.getpid()}-{request.node.name[:40]}.service") as cgroup:
        if cgroup is None or not (cgroup.folder / "cgroup.controllers").exists():
            pytest.skip("needs cgroups of version 2 that can be made")
        yield cgroup


@pytest.fixture
def limited(service: Cgroup) -> Cgroup:
    """The same, where workers can have limits. It has one itself, in case theirs fails."""
    above = service.folder.parent / "cgroup.subtree_control"
    try:
        above.write_text("+pids", "ascii")
    except OSError as error:
        pytest.skip(f"needs the controller pids: {above}: {error.strerror}")
    (service.folder / "pids.max").write_text("2000", "ascii")
    return service


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "pool.toml"
    file.write_text(f"[workers]\nprocesses = {LIMIT}\n")
    return file


def start_in(pool: PoolUp, cgroup: Cgroup) -> None:
    """Let the pool be started in a cgroup as systemd does it: it enters, then becomes the pool."""
    procs = shlex.quote(str(cgroup.folder / "cgroup.procs"))
    script = f'echo $$ >{procs} && SYSTEMD_EXEC_PID=$$ exec "$@"'
    pool.launcher = ["sh", "-ec", script, "sh"]


def place_of(pid: int) -> str:
    """The cgroup of version 2 that a process is in."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line.removeprefix("0::") for line in lines if line.startswith("0::"))


def pids_in(folder: Path) -> set[int]:
    return set(map(int, (folder / "cgroup.procs").read_text().split()))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def pid_of(pool: PoolUp) -> int:
    assert pool.process is not None
    return pool.process.pid


def workers_in(service: Cgroup) -> list[Path]:
    return sorted(service.folder.glob("aliquot-*"))


def worker_cgroup(pool: PoolUp, service: Cgroup, name: str) -> Path:
    """Start a job that runs until it is ended; its worker's cgroup."""
    before = set(workers_in(service))
    pool.submit("--name", name, "--grace", "1", "--memory", "1GiB", "--", "sh", "-c", FOREVER)
    pool.wait_for(name, "Running")
    (made,) = set(workers_in(service)) - before
    wait_until(lambda: pids_in(made))
    return made


def limit_of(cgroup: Path) -> str:
    try:
        return (cgroup / "pids.max").read_text().strip()
    except FileNotFoundError:
        return "none"


def end_all(pool: PoolUp, service: Cgroup) -> None:
    pool.ask("cancel", "--all")
    pool.leaves_nothing()
    wait_until(lambda: workers_in(service) == [])


class TestPlaces:
    def test_a_pool_has_a_cgroup_of_its_own_beside_those_of_its_workers(
        self, service: Cgroup, down_pool: PoolUp
    ) -> None:
        start_in(down_pool, service)
        down_pool.up()
        worker = worker_cgroup(down_pool, service, "one")
        own = f"{service.path}/pool"
        (supervisor,) = down_pool.supervisors()
        assert (place_of(pid_of(down_pool)), place_of(supervisor)) == (own, own)
        assert pids_in(service.folder) == set()
        assert (worker / "cgroup.type").read_text() == "domain\n"
        assert pids_in(worker)
        end_all(down_pool, service)

    def test_a_pool_that_was_started_in_its_own_cgroup_stays_there(
        self, service: Cgroup, down_pool: PoolUp
    ) -> None:
        start_in(down_pool, service.below("pool"))
        down_pool.up()
        worker_cgroup(down_pool, service, "one")
        assert place_of(pid_of(down_pool)) == f"{service.path}/pool"
        end_all(down_pool, service)

    @pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
    def test_the_next_pool_starts_in_the_same_place_while_workers_run(
        self, service: Cgroup, down_pool: PoolUp, end: signal.Signals
    ) -> None:
        start_in(down_pool, service)
        down_pool.up()
        worker = worker_cgroup(down_pool, service, "one")
        inside = pids_in(worker)
        end_pool(down_pool, end)
        start_again(down_pool)
        assert place_of(pid_of(down_pool)) == f"{service.path}/pool"
        assert down_pool.phase_of("one") == "Running"
        assert inside & pids_in(worker)
        end_all(down_pool, service)

    def test_programs_of_others_are_not_moved(self, service: Cgroup, down_pool: PoolUp) -> None:
        """As when root brings a pool up in a shell."""
        with subprocess.Popen(["sleep", "1000"]) as other:
            service.enter(other.pid)
            start_in(down_pool, service)
            down_pool.launcher[2] = down_pool.launcher[2].replace("SYSTEMD_EXEC_PID=$$", "")
            down_pool.up()
            worker = worker_cgroup(down_pool, service, "one")
            assert place_of(other.pid) == place_of(pid_of(down_pool)) == service.path
            assert pids_in(worker)
            end_all(down_pool, service)
            other.kill()

    def test_supervisors_of_an_earlier_version_are_moved(
        self, service: Cgroup, down_pool: PoolUp
    ) -> None:
        worker, supervisor = as_before(down_pool, service)
        inside = pids_in(worker)
        down_pool.kill()
        start_in(down_pool, service)
        start_again(down_pool)
        assert place_of(supervisor) == f"{service.path}/pool"
        assert pids_in(service.folder) == set()
        assert down_pool.phase_of("one") == "Running"
        assert inside & pids_in(worker)
        end_all(down_pool, service)

    def test_down_names_the_service_of_a_pool_in_its_own_cgroup(self, service: Cgroup) -> None:
        with subprocess.Popen(["sleep", "1000"]) as pool:
            service.below("pool").enter(pool.pid)
            assert up_command.unit_of(pool.pid) == service.folder.name
            pool.kill()


def end_pool(pool: PoolUp, number: signal.Signals) -> None:
    if number is signal.SIGTERM:
        pool.down()
    else:
        pool.kill()


def start_again(pool: PoolUp, *options: str) -> None:
    """Start the pool as `Restart=always` does: again and again until it is there."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return pool.up(*options)
        except AssertionError:
            assert time.monotonic() < deadline, pool.output.read_text()


def as_before(pool: PoolUp, service: Cgroup) -> tuple[Path, int]:
    """A pool as it was before it moved: all in one cgroup. A worker's cgroup, its supervisor.

    Another program in the same cgroup makes a pool behave so, and is then gone.
    """
    with subprocess.Popen(["sleep", "1000"]) as other:
        service.enter(other.pid)
        start_in(pool, service)
        pool.launcher[2] = pool.launcher[2].replace("SYSTEMD_EXEC_PID=$$", "")
        pool.up()
        worker = worker_cgroup(pool, service, "one")
        other.kill()
    (supervisor,) = pool.supervisors()
    assert place_of(supervisor) == service.path
    return worker, supervisor


class TestLimits:
    def test_a_fork_bomb_stops_at_the_limit_and_harms_no_other_job(
        self, limited: Cgroup, down_pool: PoolUp, settings: Path
    ) -> None:
        start_in(down_pool, limited)
        down_pool.up("--config", str(settings))
        other = worker_cgroup(down_pool, limited, "other")
        down_pool.submit("--name", "bomb", "--grace", "1", "--", "python3", "-c", BOMB)
        down_pool.wait_for("bomb", "Running")
        (bomb,) = set(workers_in(limited)) - {other}
        wait_until(lambda: (bomb / "pids.events").read_text() != "max 0\n")
        assert int((bomb / "pids.current").read_text()) <= LIMIT
        said = f"it reached its limit of {LIMIT} processes and threads"
        wait_until(lambda: said in down_pool.log("bomb"))

        forks = "for i in 1 2 3; do sleep 0 & done; wait"
        down_pool.submit("--name", "next", "--", "sh", "-c", forks)
        down_pool.wait_for("next", "Succeeded")
        assert down_pool.phase_of("other") == "Running"
        end_all(down_pool, limited)

    def test_the_reason_of_a_failed_job_says_that_it_reached_the_limit(
        self, limited: Cgroup, down_pool: PoolUp, settings: Path
    ) -> None:
        start_in(down_pool, limited)
        down_pool.up("--config", str(settings))
        fork = "import os\nwhile True:\n  if os.fork() == 0: os.execvp('sleep', ['sleep', '1000'])"
        down_pool.submit("--name", "bomb", "--", "python3", "-c", fork)
        down_pool.wait_for("bomb", "Failed")
        reason = down_pool.job("bomb")["state"]["reason"]
        said = f"it reached its limit of {LIMIT} processes and threads"
        assert reason == f"worker 0 ended with exit code 1 ({said})"
        wait_until(lambda: workers_in(limited) == [])

    def test_without_a_setting_a_worker_has_a_quarter_of_what_all_have(
        self, limited: Cgroup, down_pool: PoolUp
    ) -> None:
        start_in(down_pool, limited)
        down_pool.up()
        assert limit_of(worker_cgroup(down_pool, limited, "one")) == "500"
        end_all(down_pool, limited)

    def test_another_limit_holds_for_running_workers(
        self, limited: Cgroup, down_pool: PoolUp, settings: Path
    ) -> None:
        start_in(down_pool, limited)
        down_pool.up("--config", str(settings))
        worker = worker_cgroup(down_pool, limited, "one")
        settings.write_text("[workers]\nprocesses = 99\n")
        wait_until(lambda: limit_of(worker) == "99")
        end_all(down_pool, limited)

    @pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
    def test_workers_have_their_limit_again_after_a_restart(
        self, limited: Cgroup, down_pool: PoolUp, settings: Path, end: signal.Signals
    ) -> None:
        start_in(down_pool, limited)
        down_pool.up("--config", str(settings))
        worker = worker_cgroup(down_pool, limited, "one")
        inside = pids_in(worker)
        assert limit_of(worker) == str(LIMIT)
        end_pool(down_pool, end)
        start_again(down_pool, "--config", str(settings))
        assert limit_of(worker) == str(LIMIT)
        assert inside & pids_in(worker)
        assert limit_of(worker_cgroup(down_pool, limited, "two")) == str(LIMIT)
        end_all(down_pool, limited)

    def test_limits_that_a_killed_pool_left_do_not_hinder_the_next_one(
        self, limited: Cgroup, down_pool: PoolUp, settings: Path
    ) -> None:
        """Its spawner was killed too, and its workers have ended since."""
        (limited.folder / "cgroup.subtree_control").write_text("+pids", "ascii")
        start_in(down_pool, limited)
        down_pool.up("--config", str(settings))
        worker = worker_cgroup(down_pool, limited, "one")
        assert (worker / "cgroup.type").read_text() == "domain\n"
        assert limit_of(worker) == str(LIMIT)
        end_all(down_pool, limited)

    def test_the_limit_holds_while_a_pool_with_a_subgroup_of_systemd_is_down(
        self, limited: Cgroup, down_pool: PoolUp, settings: Path
    ) -> None:
        start_in(down_pool, limited.below("pool"))
        down_pool.up("--config", str(settings))
        worker = worker_cgroup(down_pool, limited, "one")
        pool = limited.folder / "pool"
        spawners = {one for one in pids_in(pool) if parent_of(one) == pid_of(down_pool)}
        assert spawners
        down_pool.kill()
        wait_until(lambda: not spawners & pids_in(pool))
        assert limit_of(worker) == str(LIMIT)
        start_again(down_pool, "--config", str(settings))
        assert limit_of(worker) == str(LIMIT)
        assert down_pool.phase_of("one") == "Running"
        end_all(down_pool, limited)

    def test_workers_of_an_earlier_version_get_a_limit(
        self, limited: Cgroup, down_pool: PoolUp, settings: Path
    ) -> None:
        worker, _ = as_before(down_pool, limited)
        assert limit_of(worker) == "none"
        inside = pids_in(worker)
        down_pool.kill()
        start_in(down_pool, limited.below("pool"))  # by the unit of the new version
        start_again(down_pool, "--config", str(settings))
        assert limit_of(worker) == str(LIMIT)
        assert (worker / "cgroup.type").read_text() == "domain\n"
        assert down_pool.phase_of("one") == "Running"
        assert inside & pids_in(worker)
        end_all(down_pool, limited)
