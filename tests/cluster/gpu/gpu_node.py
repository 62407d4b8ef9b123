"""A node with one GPU, and Aliquot on it by the chart: this machine's own GPU, or a simulated one.

ALIQUOT_TORCH names the Python whose PyTorch the pods use on a GPU of this machine.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aliquot
from aliquot.devices import Driver, find_driver, parse_shape, read_inventory
from aliquot.model import ComputeUse, Turn
from aliquot.model.errors import ArbiterError, NoGpuError
from aliquot.slices import control
from aliquot.slices.state_directory import StateDirectory
from cluster.cluster import Cluster
from cluster.gpu.image import NAME as TORCH_IMAGE
from cluster.gpu.image import Torch, find_torch
from cluster.installed import IMAGE, SPACE, allocatable, install, pods_of, wait_for_ready
from cluster.manifests import pod
from cluster.registry import ClusterError
from credit.measuring import PATIENCE_SECONDS

_log = logging.getLogger(__name__)

ROOT = Path(__file__).parents[3]
SIMULATED = "h100:1"
STATE = "/run/aliquot"
_PROGRAMS, _BENCH, _EXCHANGE = "/programs", "/bench", "/exchange"


def machine_driver() -> Driver | None:
    """The driver of this machine; None: it has no GPU."""
    try:
        return find_driver()
    except NoGpuError:
        return None


@dataclass(frozen=True)
class Step:
    """A step of a training, as its pod says it."""

    number: int
    loss: str
    at: float


@dataclass
class GpuNode:
    """The node. `torch` is None where its GPU is simulated."""

    cluster: Cluster
    torch: Torch | None

    @property
    def is_real(self) -> bool:
        return self.torch is not None

    @property
    def state(self) -> Path:
        """The arbiter's directory, as the host sees it."""
        return self.cluster.node.machine.path(STATE)

    def report(self, line: str) -> None:
        """A figure for people: pytest shows it with `--log-cli-level=INFO`."""
        _log.info(line)

    # --- pods -------------------------------------------------------------------------------------

    def train(
        self, name: str, steps: int, seed: int, limits: Mapping[str, int], *more: str
    ) -> None:
        """Create a pod that trains; `fill`: and that takes all the memory that it can get."""
        program = f"{_BENCH}/work_resnet.py" if self.is_real else f"{_PROGRAMS}/train_simulated.py"
        self.create(name, [program, str(steps), str(seed), *more], limits)

    def fill(self, name: str, limits: Mapping[str, int]) -> None:
        """Create a pod that takes all the memory it gets."""
        self.create(name, [f"{_PROGRAMS}/fill.py"], limits)

    def create(
        self,
        name: str,
        arguments: Sequence[str],
        limits: Mapping[str, int],
        *,
        exchange: Path | None = None,
    ) -> None:
        """Create a pod that runs Python with these arguments.

        `exchange` is a folder that it can write, at /exchange.
        """
        mounts = {_PROGRAMS: Path(__file__).parent, _BENCH: ROOT / "bench" / "gpu"}
        if exchange:
            mounts[_EXCHANGE] = exchange
        if self.torch:
            image, python = TORCH_IMAGE, str(self.torch.program)
            mounts[str(self.torch.prefix)] = self.torch.prefix
        else:
            image, python = f"{IMAGE}:{aliquot.__version__}", "python3"
        made = pod(
            name,
            [python, *arguments],
            image=image,
            limits=limits,
            env={"PYTHONDONTWRITEBYTECODE": "1"},
            schedulerName="aliquot",
            tolerations=[{"key": "aliquot.io/gpu", "operator": "Exists"}],
            volumes=[
                {"name": f"mount-{number}", "hostPath": {"path": str(path), "type": "Directory"}}
                for number, path in enumerate(mounts.values())
            ],
        )
        made["spec"]["containers"][0]["volumeMounts"] = [
            {"name": f"mount-{number}", "mountPath": target, "readOnly": target != _EXCHANGE}
            for number, target in enumerate(mounts)
        ]
        self.cluster.apply(made)

    def delete(self, *names: str, force: bool = False) -> None:
        options = ["--force", "--grace-period=0"] if force else ["--now"]
        self.cluster.kubectl("delete", "pod", "--ignore-not-found", *names, *options, timeout=120)

    def lines(self, name: str) -> list[str]:
        """What the pod printed; nothing if it cannot be asked now."""
        try:
            return self.cluster.kubectl("logs", name).splitlines()
        except ClusterError:
            return []

    def steps(self, name: str) -> list[Step]:
        found = [line.split() for line in self.lines(name)]
        return [Step(int(one[0]), one[1], float(one[2])) for one in found if len(one) == 3]

    def filled(self, name: str) -> int:
        """How many bytes the training in that pod could take; 0: it has not tried yet."""
        found = [line.split() for line in self.lines(name)]
        return next((int(one[1]) for one in found if one[:1] == ["filled"]), 0)

    def smi_total(self, name: str) -> str:
        """The memory of the GPU in MiB, as nvidia-smi in that pod has it."""
        asked = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        return self.cluster.kubectl("exec", name, "--", *asked).strip()

    def wait_for_steps(self, name: str, count: int) -> None:
        """Return when the pod has done that many more steps than now; fail when it has failed."""
        wanted = len(self.steps(name)) + count

        def so() -> bool:
            status = self.status(name)
            if status["phase"] == "Failed":
                raise ClusterError("\n".join([f"{name} failed: {status}", *self.lines(name)[-20:]]))
            return len(self.steps(name)) >= wanted

        self.cluster.wait_until(so, 60, f"{name} does {wanted} steps", every=0.2)

    def status(self, name: str) -> dict[str, Any]:
        found = self.cluster.api.get(f"/api/v1/namespaces/default/pods/{name}")
        return dict(found["status"])

    def phase(self, name: str) -> str:
        return str(self.status(name)["phase"])

    def wait_for_phase(self, name: str, phase: str) -> None:
        self.cluster.wait_for_pod(name, "default", phase, 120)

    def event_reasons(self, name: str) -> set[str]:
        found = self.cluster.api.get("/api/v1/namespaces/default/events")["items"]
        return {one["reason"] for one in found if one["involvedObject"]["name"] == name}

    # --- the GPU ----------------------------------------------------------------------------------

    def shares(self, *percents: int, seconds: float) -> list[float]:
        """Percent of the used time that the slices with these requests had, by the arbiter.

        With a simulated GPU measured while no program is late, as `credit.measuring` does.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            before = self._computes(percents)
            time.sleep(seconds)  # the measure is of that time
            after = self._computes(percents)
            pairs = list(zip(after, before, strict=True))
            exempt = any(Turn.EXEMPT in {now.turn, then.turn} for now, then in pairs)
            late = exempt or any(now.fallbacks > then.fallbacks for now, then in pairs)
            if self.is_real or not late or time.monotonic() > deadline:
                break
        used = [now.used_seconds - then.used_seconds for now, then in pairs]
        return [100 * one / sum(used) for one in used]

    def process_bytes(self) -> list[int]:
        """The memory of each process on the GPU, by the driver's own figures."""
        driver = machine_driver() if self.is_real else None
        if driver is None:
            driver = StateDirectory(self.state, parse_shape(SIMULATED)).driver()
        return [one.bytes or 0 for gpu in read_inventory(driver).gpus for one in gpu.processes]

    def free(self) -> dict[str, int]:
        """What the node's object offers."""
        return allocatable(self.cluster)

    def grants(self) -> list[str]:
        return [grant.name for grant in control.status(self.state).grants]

    def _computes(self, percents: Sequence[int]) -> list[ComputeUse]:
        found = {
            part.compute_percent: compute
            for grant in control.status(self.state).grants
            for part, compute in zip(grant.slices, grant.compute, strict=True)
        }
        return [found[percent] for percent in percents]

    # --- its servers ------------------------------------------------------------------------------

    def kill_agent(self) -> None:
        [one] = pods_of(self.cluster, "node")
        self.cluster.node.kill_container(SPACE, one["metadata"]["name"], "node")
        wait_for_ready(self.cluster, "node", 1)

    def kill_arbiter(self) -> None:
        before = self._serving()
        assert before
        os.kill(before, signal.SIGKILL)
        self.cluster.wait_until(lambda: self._serving() not in (None, before), 30, "a new arbiter")

    def kill_kubelet(self) -> None:
        self._kill_server("kubelet")

    def kill_containerd(self) -> None:
        self._kill_server("containerd")

    def _serving(self) -> int | None:
        """The process of the arbiter; None: it does not answer."""
        try:
            return int(control.status(self.state).answer["serving_pid"])
        except ArbiterError:
            return None

    def _kill_server(self, name: str) -> None:
        server = getattr(self.cluster.node, name)
        server.kill()
        server.start()
        server.wait_ready()


@contextmanager
def gpu_node() -> Iterator[GpuNode]:
    """A cluster of one node with the chart on it."""
    torch = find_torch(os.environ.get("ALIQUOT_TORCH", "python3")) if machine_driver() else None
    with Cluster() as cluster:
        if torch:
            cluster.load(torch.image())
        install(cluster, None if torch else SIMULATED)
        yield GpuNode(cluster, torch)
