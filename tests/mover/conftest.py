"""Fixtures: a mover and programs on one simulated GPU."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aliquot import devices
from arbiter.rig import Arbiter, BackgroundArbiter
from mover.arbiter_rig import Rig, make_rig
from mover.rig import Client, Mover
from sim.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def native_dir() -> Path:
    """The compiled parts: those of a build named by ALIQUOT_TEST_NATIVE, or the installed ones."""
    named = os.environ.get("ALIQUOT_TEST_NATIVE")
    return Path(named) if named else devices.native_dir()


@pytest.fixture
def gpu(sim_env: dict[str, str]) -> str:
    """The UUID of the simulated GPU."""
    program = Program("nvml", sim_env)
    try:
        assert program("call", "nvmlInit") is None
        uuid = program("of", 0, "nvmlDeviceGetUUID")
    finally:
        program.end()
    return str(uuid)


@pytest.fixture
def stopped_mover(
    native_dir: Path, sim_env: dict[str, str], gpu: str, tmp_path: Path
) -> Iterator[Mover]:
    """A mover that is not yet started."""
    mover = Mover(native_dir / "bin" / "aliquot-mover", sim_env, gpu, tmp_path / "mover.log")
    yield mover
    mover.close()


@pytest.fixture
def mover(stopped_mover: Mover) -> Mover:
    stopped_mover.start()
    return stopped_mover


@pytest.fixture
def programs(sim_env: dict[str, str]) -> Iterator[Callable[[], Client]]:
    """Starts programs on the GPU."""
    with ExitStack() as ends:

        def start() -> Client:
            client = Client(sim_env)
            ends.callback(client.close)
            return client

        yield start


@pytest.fixture
def clients(mover: Mover, programs: Callable[[], Client]) -> Callable[..., Client]:
    """Starts programs that are connected to the mover."""

    def start(grant: int = 1, most: int = 1 << 30) -> Client:
        client = programs()
        connection = mover.serve(client.pid, grant, most)
        mover.start_again_if_it_ended()  # nobody needed it while the program started
        client.connect(connection)
        return client

    return start


@pytest.fixture
def stopped_rig(
    native_dir: Path, sim_env: dict[str, str], gpu: str, short_tmp: Path
) -> Iterator[Rig]:
    """An arbiter that is not yet started."""
    rig = make_rig(Arbiter, native_dir, sim_env, gpu, short_tmp)
    yield rig
    rig.arbiter.close()


@pytest.fixture
def background_rig(
    native_dir: Path, sim_env: dict[str, str], gpu: str, short_tmp: Path
) -> Iterator[Rig]:
    """An arbiter whose guard takes over."""
    rig = make_rig(BackgroundArbiter, native_dir, sim_env, gpu, short_tmp)
    rig.start()
    yield rig
    rig.arbiter.close()


@pytest.fixture
def rig(stopped_rig: Rig) -> Rig:
    stopped_rig.start()
    return stopped_rig
