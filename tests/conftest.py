"""Fixtures: the installed compiled parts, a simulated machine, a state directory, the command."""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import hypothesis
import pytest

import support
from aliquot import devices
from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SHAPE = "h100:1"

# Some programs under test crash on purpose.
resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))

# How long an example takes depends on who else is on the machine.
hypothesis.settings.register_profile("aliquot", deadline=None)
hypothesis.settings.load_profile("aliquot")


class Cli(Protocol):
    """Runs `aliquot` in a process of its own, on the test's own state directory."""

    def __call__(
        self, *args: str, env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where there is no GPU, the tests that need one are skipped, and say so."""
    try:
        devices.find_driver()
    except AliquotError as error:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=error.message))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a failed test to the list that `make test` prints at its end, as soon as it failed."""
    file = os.environ.get("ALIQUOT_FAILED")
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # the main process lists its tests too
    if file and report.failed:
        with Path(file).open("a", encoding="utf-8") as names:
            names.write(f"{report.nodeid} ({report.when})\n")


@pytest.fixture(scope="session", autouse=True)
def _children_end_at_ctrl_c() -> Iterator[None]:
    """Give child processes the default SIGINT action.

    A shell starts a background job (`nohup make test &`) with SIGINT ignored. Children inherit
    that through exec, so a command under test would not react to Ctrl-C. A handler of this process
    is not inherited.
    """
    inherited = signal.getsignal(signal.SIGINT)
    if inherited is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, inherited)


@pytest.fixture(scope="session")
def native_dir() -> Path:
    return devices.native_dir()


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder with a short path: a socket's path has 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="aq-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def sim_env(native_dir: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a program directly on the simulated driver, with no slice."""
    meeting_place = tmp_path / "machine"
    meeting_place.mkdir()
    return support.environment(
        LD_LIBRARY_PATH=str(native_dir / "sim"),
        ALIQUOT_SIMULATE=SHAPE,
        ALIQUOT_SIMULATE_STATE=str(meeting_place),
    )


@pytest.fixture
def aliquot_state(short_tmp: Path) -> Iterator[Path]:
    """A state directory of the test's own; arbiters in it are ended."""
    state = short_tmp / "state"
    yield state
    for folder in (state, *state.glob("simulated/*")):
        _end_arbiter(folder)


@pytest.fixture
def cli_env(aliquot_state: Path) -> dict[str, str]:
    return support.environment(ALIQUOT_STATE=str(aliquot_state), ALIQUOT_CONSOLE="off")


@pytest.fixture
def cli(cli_env: dict[str, str]) -> Cli:
    def run(
        *args: str, env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [aliquot_command(), *args],
            env={**cli_env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


def aliquot_command() -> str:
    return str(Path(sys.executable).with_name("aliquot"))


def _end_arbiter(folder: Path) -> None:
    """End an arbiter and its parent; one that still has grants is a failed test's."""
    try:
        end = os.pidfd_open(int((folder / "arbiter.pid").read_text("ascii")))
    except (FileNotFoundError, ProcessLookupError):
        return
    try:
        signal.pidfd_send_signal(end, signal.SIGTERM)
        assert select.select([end], [], [], 60)[0], f"the arbiter in {folder} does not end"
    finally:
        os.close(end)
