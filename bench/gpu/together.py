"""Two grants whose kernels spin for each other, beside a neighbour: with and without --together.

    python bench/gpu/together.py [--seconds S] [--simulate h200:1]

Two programs in two grants of a quarter each exchange through words in pinned host memory that both
map. In each round a kernel works for a fifth of a millisecond, another writes the number of the
round to its own word, and a third spins until the other's word has it. The neighbour has half of
the GPU and is never idle. Prints, for each way of running: rounds per second, fallbacks, and what
the neighbour got. The pair alone shows what the GPU's own time-slicing allows.
"""

from __future__ import annotations

import argparse
import ctypes as c
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from ptx import Cuda

from aliquot import slices
from aliquot.devices import parse_shape
from aliquot.model.errors import AliquotError
from aliquot.slices import control

WORK_NANOSECONDS = 200_000
START_SECONDS = 60
STOP_SECONDS = 15
ROUNDS_AHEAD = 8
HOST_MAPPED = 3  # portable and mapped
MEMORY = "3GiB"

# The simulated GPU knows these kernels by name. On a real one aliquot_spin goes by the GPU's clock:
# a kernel that is preempted in its middle has less left to do afterwards.
KERNELS = """
.version 7.0
.target sm_70
.address_size 64

.visible .entry aliquot_spin(.param .u64 aliquot_spin_ns)
{
    .reg .u64 %length, %begun, %now;
    .reg .pred %more;
    ld.param.u64 %length, [aliquot_spin_ns];
    mov.u64 %begun, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begun;
    setp.lt.u64 %more, %now, %length;
    @%more bra again;
    ret;
}

.visible .entry aliquot_set(.param .u64 aliquot_set_at, .param .u64 aliquot_set_value)
{
    .reg .u64 %at, %value;
    ld.param.u64 %at, [aliquot_set_at];
    ld.param.u64 %value, [aliquot_set_value];
    st.release.sys.u64 [%at], %value;
    ret;
}

.visible .entry aliquot_wait(.param .u64 aliquot_wait_at, .param .u64 aliquot_wait_value)
{
    .reg .u64 %at, %value, %seen;
    .reg .pred %more;
    ld.param.u64 %at, [aliquot_wait_at];
    ld.param.u64 %value, [aliquot_wait_value];
again:
    ld.acquire.sys.u64 %seen, [%at];
    setp.lt.u64 %more, %seen, %value;
    @%more bra again;
    ret;
}
"""


# --- the programs


class Program:
    """The first GPU, one stream and the kernels; it counts rounds until it is ended."""

    def __init__(self) -> None:
        self.cuda = Cuda()
        names = ("spin", "set", "wait")
        self.spin, self.set, self.wait = (
            self.cuda.kernel(KERNELS, f"aliquot_{name}") for name in names
        )
        self.stream = self.cuda.stream()

    def launch(self, kernel: c.c_void_p, *numbers: int) -> None:
        values = [c.c_uint64(number) for number in numbers]
        pointers = (c.c_void_p * len(values))(*(c.addressof(one) for one in values))
        self.cuda.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, self.stream, pointers, None)

    def map_page(self, path: str) -> int:
        """The page of a file that several programs share, as the GPU sees it."""
        with Path(path).open("r+b") as file:
            self.page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.first, address = c.c_char.from_buffer(self.page), c.c_uint64()
        host = c.c_void_p(c.addressof(self.first))
        self.cuda.call("cuMemHostRegister_v2", host, c.c_size_t(mmap.PAGESIZE), HOST_MAPPED)
        self.cuda.call("cuMemHostGetDevicePointer_v2", c.byref(address), host, 0)
        return address.value

    def count(self, rounds: int) -> None:
        self.cuda.synchronize()
        print(json.dumps([time.monotonic(), rounds]), flush=True)


def rank(number: int, path: str) -> None:
    program = Program()
    base = program.map_page(path)
    mine, other = base + 8 * number, base + 8 * (1 - number)
    rounds = 0
    program.count(rounds)
    while True:
        for _ in range(ROUNDS_AHEAD):
            rounds += 1
            program.launch(program.spin, WORK_NANOSECONDS)
            program.launch(program.set, mine, rounds)
            program.launch(program.wait, other, rounds)
        program.count(rounds)


def neighbour() -> None:
    program = Program()
    rounds = 0
    program.count(rounds)
    while True:
        for _ in range(ROUNDS_AHEAD * 4):
            rounds += 1
            program.launch(program.spin, WORK_NANOSECONDS)
        program.count(rounds)


# --- the benchmark


class Machine:
    """An arbiter of this benchmark's own, and the programs in its grants."""

    def __init__(self, simulate: str | None) -> None:
        self.simulate = ["--simulate", simulate] if simulate else []
        self.folder = Path(tempfile.mkdtemp(prefix="aliquot-together-", dir="/dev/shm"))
        os.environ["ALIQUOT_STATE"] = str(self.folder / "state")
        self.state = slices.locate(parse_shape(simulate) if simulate else None)
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, share: int, group: str | None, *arguments: str) -> None:
        together = ["--together", group] if group else []
        self.running[name] = subprocess.Popen(
            [
                *(sys.executable, "-m", "aliquot", "run", *self.simulate, "--name", name),
                *("--memory", MEMORY, "--compute", str(share), *together, "--"),
                *(sys.executable, __file__, "--as", *arguments),
            ],
            stdout=(self.folder / name).open("w"),
            text=True,
        )

    def counted(self, name: str) -> list[tuple[float, int]]:
        """When so many rounds were finished, as the program saw it."""
        lines = (self.folder / name).read_text().splitlines(keepends=True)
        return [tuple(json.loads(line)) for line in lines if line.startswith("[") and "\n" in line]

    def rate(self, name: str, start: float, end: float) -> float:
        inside = [one for one in self.counted(name) if start <= one[0] <= end]
        if len(inside) < 2:  # no round was finished
            return 0.0
        (first, before), (last, after) = inside[0], inside[-1]
        return (after - before) / (end - start) if last > first else 0.0

    def fallbacks(self) -> int:
        status = control.status(self.state.directory)
        return sum(one.fallbacks for grant in status.grants for one in grant.compute)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not all(self.counted(name) for name in self.running):
            ended = [name for name, one in self.running.items() if one.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise SystemExit(f"not ready: {ended or 'too slow'}")
            time.sleep(0.05)

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()
        self.running.clear()

    def close(self) -> None:
        self.end()
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            try:
                control.stop(self.state.directory)
            except control.NoArbiterError:
                break
            except AliquotError:  # a grant is not over yet
                time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)


def measure(
    machine: Machine, seconds: float, *, group: str | None, beside: bool, pair: bool = True
) -> dict[str, float]:
    meeting = machine.folder / "meeting"
    meeting.write_bytes(bytes(mmap.PAGESIZE))
    if beside:
        machine.start("neighbour", 50, None, "neighbour")
    for number in (0, 1) if pair else ():
        machine.start(f"rank{number}", 25, group, "rank", str(number), str(meeting))
    try:
        machine.wait_ready()
        time.sleep(1)
        before, start = machine.fallbacks(), time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        return {
            "rounds/s": machine.rate("rank0", start, end) if pair else 0.0,
            "neighbour/s": machine.rate("neighbour", start, end) if beside else 0.0,
            "fallbacks": machine.fallbacks() - before,
        }
    finally:
        machine.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--simulate", default=None)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rows = {
        "neighbour alone": {"group": None, "beside": True, "pair": False},
        "pair alone, --together": {"group": "ranks", "beside": False},
        "beside the neighbour": {"group": None, "beside": True},
        "beside the neighbour, --together": {"group": "ranks", "beside": True},
    }
    machine = Machine(options.simulate)
    found = {}
    try:
        print(f"{'':34}{'rounds/s':>10}{'neighbour/s':>13}{'fallbacks':>11}")
        for name, row in rows.items():
            found[name] = measure(machine, options.seconds, **row)  # type: ignore[arg-type]
            rounds, other, late = found[name].values()
            print(f"{name:34}{rounds:10.1f}{other:13.1f}{late:11.0f}", flush=True)
    finally:
        machine.close()
    whole = found["neighbour alone"]["neighbour/s"]
    kept = found["beside the neighbour, --together"]
    part = 100 * kept["neighbour/s"] / whole if whole else 0.0
    print(f"beside the pair that runs together the neighbour has {part:.1f} % of the GPU (of 50)")
    return 0 if kept["fallbacks"] == 0 and kept["rounds/s"] > 0 else 1


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        if sys.argv[1:2] == ["--as"]:
            if sys.argv[2] == "rank":
                rank(int(sys.argv[3]), sys.argv[4])
            neighbour()
        sys.exit(main())
