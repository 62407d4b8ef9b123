"""Do debuggers and profilers work in a slice as without one? Needs a GPU and the CUDA toolkit.

    python bench/gpu/tools.py [--only NAMES]

Runs each tool on a small program on the GPU as it is, in a slice, and in a slice of 30 % beside a
busy program in another slice. A row holds if the tool reports the same findings each time. The
last rows stop a program at a breakpoint inside a kernel for some seconds and measure how fast the
neighbour is meanwhile, in slices and without them. Prints a table for docs/measured.md; exit code 0
if all rows hold.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE_SECONDS = 90
STOPPED_SECONDS = 6
STEPS_PER_LINE = 20

NEIGHBOUR = f"""
import torch
matrix = torch.randn(4096, 4096, device="cuda")
while True:
    for _ in range({STEPS_PER_LINE}):
        matrix @ matrix
    torch.cuda.synchronize()
    print(flush=True)
"""

PROFILED = """
import torch
from torch.profiler import ProfilerActivity, profile
layer, rows = torch.nn.Linear(1024, 1024).cuda(), torch.randn(64, 1024, device="cuda")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
    for _ in range(20):
        layer(rows).sum().backward()
    torch.cuda.synchronize()
print("kernels", sum(str(event.device_type).endswith("CUDA") for event in profiler.events()))
"""


@dataclass(frozen=True)
class Tool:
    """How a tool is started, and what in its output must be the same in a slice."""

    name: str
    command: list[str]
    finding: Callable[[str], str]


def matches(pattern: str) -> Callable[[str], str]:
    return lambda text: ", ".join(sorted(set(re.findall(pattern, text)))) or "nothing"


def tools(folder: Path) -> list[Tool]:
    program, debugged = str(folder / "vector_add"), str(folder / "vector_add_debug")
    stop = ["-ex", "break add", "-ex", "run", "-ex", "bt", "-ex", "delete", "-ex", "continue"]
    checker = "compute-sanitizer"
    return [
        Tool(f"{checker} memcheck", [checker, program, "300"], matches(r"Invalid __global__ \w+")),
        Tool(
            f"{checker} racecheck",
            [checker, "--tool", "racecheck", program],
            matches(r"RACECHECK SUMMARY: .*"),
        ),
        Tool(
            f"{checker} initcheck",
            [checker, "--tool", "initcheck", program],
            matches(r"ERROR SUMMARY: .*"),
        ),
        Tool(
            "cuda-gdb, a breakpoint in a kernel",
            ["cuda-gdb", "-batch", *stop, debugged],
            matches(r"#0  add<<<|exited normally"),
        ),
        Tool(
            "Nsight Compute",
            ["ncu", "--section", "SpeedOfLight", "-k", "add", "-c", "1", program],
            matches(r"SM Active Cycles|==PROF== Disconnected"),
        ),
        Tool(
            "PyTorch's profiler (CUPTI)",
            [sys.executable, "-c", PROFILED],
            matches(r"kernels \d+"),
        ),
    ]


def in_slice(command: list[str], memory: str, compute: int) -> list[str]:
    run = [sys.executable, "-m", "aliquot", "run", "--memory", memory, "--compute", str(compute)]
    return [*run, "--", *command]


def output_of(command: list[str]) -> str:
    done = subprocess.run(
        command,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout


class Neighbour:
    """A busy program that counts its rounds."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.times: list[float] = []
        self.counter = threading.Thread(target=self._count, daemon=True)
        self.counter.start()
        while len(self.times) < 5:
            if self.process.poll() is not None:
                raise SystemExit("the busy program ended")
            time.sleep(0.05)

    def _count(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            self.times.append(time.monotonic())

    def speed(self, seconds: float) -> float:
        """Matrix products per second, from now on for so long."""
        before = len(self.times)
        time.sleep(seconds)
        return (len(self.times) - before) * STEPS_PER_LINE / seconds

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def neighbour(*, sliced: bool) -> Iterator[Neighbour]:
    command = [sys.executable, "-c", NEIGHBOUR]
    busy = Neighbour(in_slice(command, "8GiB", 50) if sliced else command)
    try:
        yield busy
    finally:
        busy.end()


@contextmanager
def stopped_at_breakpoint(folder: Path, *, sliced: bool) -> Iterator[bool]:
    """A program that a debugger holds inside a kernel; whether it was reached."""
    command = ["cuda-gdb", "--nx", "-q", "-ex", "set pagination off", "-ex", "break add"]
    command += ["-ex", "run", str(folder / "vector_add_debug")]
    debugger = subprocess.Popen(
        in_slice(command, "4GiB", 30) if sliced else command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert debugger.stdout is not None
    patience = threading.Timer(PATIENCE_SECONDS, debugger.kill)
    patience.start()
    reached = any("Breakpoint 1" in line and "hit" in line for line in debugger.stdout)
    try:
        yield reached
    finally:
        debugger.communicate("kill\nquit\n")
        patience.cancel()


def neighbour_speeds(folder: Path, *, sliced: bool) -> str:
    with neighbour(sliced=sliced) as busy:
        alone = busy.speed(STOPPED_SECONDS)
        with stopped_at_breakpoint(folder, sliced=sliced) as reached:
            beside = busy.speed(STOPPED_SECONDS)
        after = busy.speed(STOPPED_SECONDS)
    part = f"{beside / alone:.0%} of its speed meanwhile, {after / alone:.0%} afterwards"
    return part if reached else f"the breakpoint was not reached ({part})"


def compile_programs(folder: Path) -> None:
    compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    source = str(HERE / "vector_add.cu")
    for name, options in (("vector_add", ["-lineinfo"]), ("vector_add_debug", ["-g", "-G"])):
        subprocess.run([compiler, *options, "-o", str(folder / name), source], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help="tools whose name contains one of these, separated by commas"
    )
    only = parser.parse_args().only.lower().split(",")
    held = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_programs(folder)
        chosen = [tool for tool in tools(folder) if any(part in tool.name.lower() for part in only)]
        plain = {tool.name: tool.finding(output_of(tool.command)) for tool in chosen}
        sliced = {
            tool.name: tool.finding(output_of(in_slice(tool.command, "4GiB", 30)))
            for tool in chosen
        }
        with neighbour(sliced=True):
            beside = {
                tool.name: tool.finding(output_of(in_slice(tool.command, "4GiB", 30)))
                for tool in chosen
            }
        print(f"{dt.date.today()}\n\n|tool|finds without a slice|in a slice|beside a busy slice|")
        print("|---|---|---|---|")
        for tool in chosen:
            same = [found[tool.name] == plain[tool.name] for found in (sliced, beside)]
            held = held and all(same) and plain[tool.name] != "nothing"
            cells = ["the same" if equal else "DIFFERS" for equal in same]
            print(f"| {tool.name} | {plain[tool.name]} | {' | '.join(cells)} |", flush=True)
        print("\nA neighbour of a program that is stopped at a breakpoint inside a kernel:")
        for where, is_sliced in (("without slices", False), ("in slices", True)):
            print(f"- {where}: {neighbour_speeds(folder, sliced=is_sliced)}", flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
