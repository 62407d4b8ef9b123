"""An arbiter with movers on a simulated machine, and programs in its grants."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arbiter.rig import Arbiter
from mover.wire import MIB
from support import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from mover.rig import Client

    Programs = Callable[[], Client]

PIECE = 4 * MIB
SLICE = 128 * MIB


class SimulatedMachine:
    """What an arbiter needs to know of the simulated machine (arbiter.rig.Machine)."""

    def __init__(self, env: dict[str, str]) -> None:
        self.environment = env
        self.library = Path(env["LD_LIBRARY_PATH"]) / "libnvidia-ml.so.1"


class Rig:
    """An arbiter, in the foreground or in the background, that knows where the driver is."""

    def __init__(self, arbiter: Arbiter, gpu: str, cuda: Path) -> None:
        self.arbiter, self.gpu, self.cuda = arbiter, gpu, cuda

    def start(self, *options: str) -> None:
        self.arbiter.start("--cuda", str(self.cuda), *options)

    def make(self, name: str = "a", memory: int = SLICE, *, swap: bool = True) -> Path:
        line = f"make name={name} kept=1 slice={self.gpu},memory={memory}{' swap=1' * swap}"
        answer = self.arbiter.ask(line)
        assert "directory" in answer, answer
        return Path(answer["directory"])

    def mover(self) -> dict[str, Any]:
        (gpu,) = self.arbiter.status()["gpus"]
        found = gpu["mover"]
        assert isinstance(found, dict)
        return found

    def copies(self) -> int:
        return int(self.mover()["copies"])

    def driver_bytes(self, name: str = "a") -> int:
        """What NVML says that a grant's programs use."""
        grant = self.arbiter.grant(name)
        assert grant
        return int(grant["slices"][0]["driver_bytes"])

    def has_replaced(self, killed: dict[str, int]) -> bool:
        """Whether the arbiter answers, with others in place of its processes that were killed."""
        try:
            pids = self.arbiter.pids()
        except (OSError, AssertionError):
            return False
        return all(pids[name] != pid for name, pid in killed.items())

    def kill_mover(self) -> int:
        pid = int(self.mover()["pid"])
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.mover()["pid"] != pid)
        return pid


def make_rig(kind: type[Arbiter], native: Path, env: dict[str, str], gpu: str, folder: Path) -> Rig:
    machine: Any = SimulatedMachine(env)
    arbiter = kind(folder / "state", native / "bin" / "aliquot-arbiter", machine)
    return Rig(arbiter, gpu, Path(env["LD_LIBRARY_PATH"]) / "libcuda.so.1")


def join(programs: Programs, directory: Path) -> Client:
    client = programs()
    client("join", str(directory))
    assert client("mover", str(directory)) == ""
    return client
