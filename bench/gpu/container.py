"""A container by runc with a slice: its limit, `exec`, its death, shares. Needs root and a GPU.

    python bench/gpu/container.py --runc FILE [--simulate h200:1]

The container's files are this machine's own (an overlay over /), so PyTorch is inside. What the
container gets is what `aliquot slice` publishes: this program does with the CDI spec what Docker or
Podman would do. Prints one line for each finding; exit code 0 if all hold. `--simulate` tries the
logic with a program that uses the driver's API.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from aliquot.devices import parse_shape
from aliquot.slices import control, state_directory

ALIQUOT = (sys.executable, "-m", "aliquot")
GIB = 1 << 30
LIMIT = 8 * GIB
SHARES = (30, 70)
SHARE_SECONDS = 8.0
PATIENCE_SECONDS = 60.0
MOUNT, UMOUNT = "/bin/mount", "/bin/umount"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - an overlay over / cannot have its changes below /
_SKIPPED = ("/proc", "/sys", "/dev", "/run")
_CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"]

TORCH = """
import json, sys, time, torch
def total(): return torch.cuda.mem_get_info()[1]
def take(count): return torch.empty(count, dtype=torch.uint8, device="cuda")
Full = torch.OutOfMemoryError
"""
DRIVER = """
import json, sys, time
from cuda.bindings import driver as cuda
cuda.cuInit(0); cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
class Full(Exception): pass
def total(): return cuda.cuMemGetInfo()[2]
def take(count):
    error, pointer = cuda.cuMemAlloc(count)
    if error: raise Full
    return pointer
"""
FILL = """
taken = []
try:
    while True: taken.append(take(256 << 20))
except Full: pass
print(json.dumps({"total": total(), "taken": len(taken) << 28}), flush=True)
"""
HOLD = """
taken = take(4 << 30)
print(json.dumps({"total": total()}), flush=True)
time.sleep(3600)
"""
LOOK = """
print(json.dumps({"total": total()}), flush=True)
"""
# Both begin at the same time, and count the products that they got until the same end.
COUNT = """
a = torch.randn(4096, 4096, device="cuda")
(a @ a).sum().item()
print(json.dumps({"total": total()}), flush=True)
begin = float(sys.stdin.readline())
time.sleep(begin - time.time())
steps = 0
while time.time() < begin + SECONDS:
    for _ in range(10): b = a @ a
    torch.cuda.synchronize()
    steps += 10
print(json.dumps({"steps": steps}), flush=True)
"""


class Machine:
    """An arbiter's folder, a folder of CDI specs, and the containers of this program."""

    def __init__(self, folder: Path, runc: Path, simulate: str | None) -> None:
        self.folder, self.runc = folder, runc
        self._simulate = ["--simulate", simulate] if simulate else []
        self._programs = DRIVER if simulate else TORCH
        os.environ["ALIQUOT_STATE"] = str(folder / "state")
        self.state = state_directory.locate(parse_shape(simulate) if simulate else None).directory
        self.containers: list[Container] = []

    def aliquot(self, *words: str) -> str:
        done = subprocess.run(
            [*ALIQUOT, *words, *self._simulate], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"aliquot {' '.join(words)}: {done.stderr}")
        return done.stdout

    def publish(self, *words: str) -> None:
        self.aliquot("slice", *words, "--cdi-dir", str(self.folder / "cdi"))

    def program(self, text: str) -> list[str]:
        return [sys.executable, "-c", self._programs + text]

    def start(self, name: str, device: str, text: str) -> Container:
        spec = json.loads((self.folder / "cdi" / f"aliquot.io-slice-{device}.json").read_text())
        container = Container(self, name, spec["devices"][0]["containerEdits"], self.program(text))
        self.containers.append(container)
        return container

    def grants(self) -> list[str]:
        return [grant.name for grant in control.status(self.state).grants]

    def used(self) -> int:
        """What all grants use, by the arbiter."""
        grants = control.status(self.state).grants
        return sum(use.used_bytes for grant in grants for use in grant.use)

    def close(self) -> None:
        for container in self.containers:
            container.remove()
        subprocess.run(
            [*ALIQUOT, "slice", "delete", "demo", "half", *self._simulate],
            capture_output=True,
            check=False,
        )
        pid = self.state / "arbiter.pid"
        if pid.exists():
            os.kill(int(pid.read_text()), 15)


class Container:
    """One container: an overlay over this machine's files, and the edits of a CDI device."""

    def __init__(self, machine: Machine, name: str, edits: dict[str, Any], words: list[str]):
        self._name = f"{name}-{os.getpid()}"
        self._runc = [str(machine.runc), "--root", str(machine.folder / "runc")]
        self._bundle = machine.folder / name
        self._root = self._bundle / "rootfs"
        self._root.mkdir(parents=True)
        self._changes = Path(tempfile.mkdtemp(prefix="aq-", dir=SHARED_MEMORY))
        for part in ("upper", "work"):
            (self._changes / part).mkdir(mode=0o755)
        layers = f"lowerdir=/,upperdir={self._changes}/upper,workdir={self._changes}/work"
        subprocess.run([MOUNT, "-t", "overlay", "overlay", "-o", layers, self._root], check=True)
        (self._bundle / "config.json").write_text(json.dumps(_config(self._root, edits, words)))
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [*self._runc, "run", "--bundle", str(self._bundle), self._name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._name} ended with {self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def execute(self, *words: str) -> dict[str, Any]:
        done = subprocess.run(
            [*self._runc, "exec", self._name, *words], capture_output=True, text=True, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def kill(self) -> float:
        """Kill it; when its first process died."""
        asked = subprocess.run(
            [*self._runc, "state", self._name], capture_output=True, text=True, check=True
        )
        process = os.pidfd_open(json.loads(asked.stdout)["pid"])
        subprocess.run([*self._runc, "kill", self._name, "KILL"], check=True)
        select.select([process], [], [], PATIENCE_SECONDS)
        os.close(process)
        return time.monotonic()

    def remove(self) -> None:
        subprocess.run(
            [*self._runc, "delete", "--force", self._name], capture_output=True, check=False
        )
        self.process.communicate(timeout=30)
        subprocess.run([UMOUNT, str(self._root)], check=False)
        shutil.rmtree(self._changes, ignore_errors=True)


def _config(root: Path, edits: dict[str, Any], words: list[str]) -> dict[str, Any]:
    nodes = [_node(Path(one["path"])) for one in edits.get("deviceNodes", ())]
    hooks: dict[str, list[dict[str, Any]]] = {}
    for hook in edits.get("hooks", ()):
        hooks.setdefault(hook["hookName"], []).append({"path": hook["path"], "args": hook["args"]})
    kinds = ("bounding", "effective", "permitted")
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": words,
            "env": [*_environment(), *edits.get("env", ())],
            "cwd": "/",
            "capabilities": dict.fromkeys(kinds, _CAPABILITIES),
        },
        "root": {"path": str(root)},
        "hooks": hooks,
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": SHARED_MEMORY, "type": "tmpfs", "source": "shm"},
            {"destination": "/run", "type": "tmpfs", "source": "run"},
            {"destination": "/sys", "type": "none", "source": "/sys", "options": ["rbind", "ro"]},
            *({"destination": path, **_bind(path)} for path in _other_mounts()),
            *(
                {"destination": one["containerPath"], **_bind(one["hostPath"], one["options"])}
                for one in edits["mounts"]
            ),
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")],
            "devices": nodes,
            "resources": {
                "devices": [
                    {"allow": False, "access": "rwm"},
                    *(
                        {**{key: one[key] for key in ("type", "major", "minor")}, "allow": True}
                        | {"access": "rw"}
                        for one in nodes
                    ),
                ]
            },
        },
    }


def _environment() -> list[str]:
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return [f"{name}={value}" for name, value in {**kept, "HOME": "/root"}.items()]


def _bind(source: str, options: list[str] | None = None) -> dict[str, Any]:
    return {
        "type": "none",
        "source": str(Path(source).resolve()),
        "options": options or ["rbind", "ro"],
    }


def _other_mounts() -> list[str]:
    """File systems of this machine that are not part of an overlay over /; no driver's."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    paths = {line.split()[1] for line in lines}
    needed = [Path(path) for path in (sys.prefix, sys.base_prefix, *sys.path)]
    return [
        path
        for path in sorted(paths)
        if path != "/"
        and not any(path == one or path.startswith(f"{one}/") for one in _SKIPPED)
        and "nvidia" not in path
        and Path(path).is_dir()
        and any(file.is_relative_to(path) for file in needed)
    ]


def _node(path: Path) -> dict[str, Any]:
    found = path.stat()
    number = {"major": os.major(found.st_rdev), "minor": os.minor(found.st_rdev)}
    return {"path": str(path), "type": "c", "fileMode": stat.S_IMODE(found.st_mode), **number}


def _until(holds: Callable[[], bool]) -> float:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit("waited for 60 s")
        time.sleep(0.005)
    return time.monotonic()


class Findings:
    """Prints each finding, and remembers whether all hold."""

    def __init__(self) -> None:
        self.hold = True

    def add(self, text: str, *, holds: bool) -> None:
        self.hold &= holds
        print(f"{'yes' if holds else 'NO '}  {text}", flush=True)


def limit_of_a_slice(machine: Machine, findings: Findings) -> None:
    machine.publish("create", "--memory", "8GiB", "--compute", "30", "--name", "demo")
    found = machine.start("demo", "demo", FILL).hear()
    text = f"slice of 8 GiB: the program sees {found['total'] / GIB:.2f} GiB and gets"
    holds = found["total"] == LIMIT and LIMIT // 2 < found["taken"] < LIMIT
    findings.add(f"{text} {found['taken'] / GIB:.2f} before it is out of memory", holds=holds)


def a_size(machine: Machine, findings: Findings) -> None:
    machine.publish("publish", "half", "--memory", "8GiB", "--compute", "30")
    before = machine.grants()
    container = machine.start("half", "half", HOLD)
    holds = container.hear()["total"] == LIMIT
    after = [name for name in machine.grants() if name not in before]
    text = f"container of a size: 8 GiB, its own grant {after}"
    findings.add(text, holds=holds and len(after) == 1)
    empty = ["/usr/bin/env", "-i", *machine.program(LOOK)]
    inside = container.execute(*empty)["total"]
    findings.add("exec with an empty environment: 8 GiB", holds=inside == LIMIT)
    used = machine.used()
    died = container.kill()
    freed = _until(lambda: machine.grants() == before)
    text = f"killed with {used / GIB:.2f} GiB in use: the grant is gone"
    late = f"{(freed - died) * 1000:.0f} ms after the death of its first process"
    findings.add(f"{text} {late}", holds=freed - died < 1)


def shares(machine: Machine, findings: Findings) -> None:
    names = [f"share{percent}" for percent in SHARES]
    text = COUNT.replace("SECONDS", str(SHARE_SECONDS))
    for name, percent in zip(names, SHARES, strict=True):
        machine.publish("create", "--memory", "8GiB", "--compute", str(percent), "--name", name)
    both = [machine.start(name, name, text) for name in names]
    for one in both:
        one.hear()
    begin = time.time() + 0.5
    for one in both:
        one.tell(repr(begin))
    steps = [one.hear()["steps"] for one in both]
    part = 100 * steps[0] / sum(steps)
    text = f"two containers at 30 % and 70 % for {SHARE_SECONDS:g} s:"
    got = f"{part:.2f} % and {100 - part:.2f} % of {sum(steps)} products"
    findings.add(f"{text} {got}", holds=abs(part - SHARES[0]) < 2)
    machine.aliquot("slice", "delete", *names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runc", type=Path, default=shutil.which("runc") or Path("runc"))
    parser.add_argument("--simulate")
    chosen = parser.parse_args()
    if not list(Path("/sys/fs/cgroup").iterdir()):
        subprocess.run([MOUNT, "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup"], check=True)
    findings = Findings()
    with ExitStack() as opened:
        folder = Path(tempfile.mkdtemp(prefix="aq-"))
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        machine = Machine(folder, chosen.runc, chosen.simulate)
        opened.callback(machine.close)
        limit_of_a_slice(machine, findings)
        machine.aliquot("slice", "delete", "demo")
        a_size(machine, findings)
        machine.aliquot("slice", "delete", "half")
        if not chosen.simulate:
            shares(machine, findings)
    return 0 if findings.hold else 1


if __name__ == "__main__":
    sys.exit(main())
