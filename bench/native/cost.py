"""What Aliquot costs a program, measured on the simulated GPU and over a driver that does nothing.

    python bench/native/cost.py --build build/native-plain [--real]

- over the stub driver, in nanoseconds: a launch on the free path, with the gates and marks of the
  quanta that it fills (bar: 10), a call that would close a quantum where none is to be closed (bar:
  10), and an allocation (bar: 200);
- the start of a process that never calls CUDA (bar: 1 ms) and the first CUDA call (bar: 5 ms), over
  the same without Aliquot, in alternating pairs;
- 128 processes started at once: when the last had its first CUDA call answered (bar: 2 s).

Medians with their spread (the middle half). Exit code 0 if every bar is met. With --real the grants
are on this machine's GPU, and the first CUDA calls go to its driver.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

MACHINE = ["--simulate", "h200:1"]
FIRST_CALL = """
import ctypes, time
start = time.perf_counter()
result = ctypes.CDLL("libcuda.so.1").cuInit(0)  # with the loading, whoever does it
print(result, (time.perf_counter() - start) * 1e3)
"""


def aliquot(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "aliquot", *arguments]


def in_grant(*command: str) -> list[str]:
    return aliquot("run", *MACHINE, "--memory", "64GiB", "--", *command)


def spread(values: list[float]) -> tuple[float, float, float]:
    quarter = statistics.quantiles(values, n=4)
    return statistics.median(values), quarter[0], quarter[2]


class Table:
    def __init__(self) -> None:
        self.met = True

    def row(self, what: str, values: list[float], bar: float, unit: str) -> None:
        middle, low, high = spread(values)
        self.met &= middle <= bar
        met = "yes" if middle <= bar else "NO"
        spread_text = f"{low:.2f} to {high:.2f}"
        print(f"| {what} | {middle:.2f} {unit} | {spread_text} | {bar:g} {unit} | {met} |")


def gpu_uuid() -> str:
    output = subprocess.run(
        aliquot("gpus", "--json", *MACHINE),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    uuid: str = json.loads(output)["gpus"][0]["uuid"]
    return uuid.removeprefix("GPU-").replace("-", "")


def calls(build: Path) -> dict[str, list[float]]:
    """Through the stand-in minus directly, for each pair of rounds."""
    stub = build / "bench" / "stub"
    direct = stub / "direct.so"  # by the driver's name, dlopen opens the stand-in
    if not direct.is_symlink():
        direct.symlink_to("libcuda.so.1")
    environment = [f"ALIQUOT_DRIVER_DIR={stub}", f"STUB_UUID={gpu_uuid()}"]
    command = in_grant("env", *environment, str(build / "bench" / "bench_cost"), str(direct))
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pairs: dict[str, list[float]] = {}
    for line in output.splitlines():
        name, direct, through = line.split()
        pairs.setdefault(name, []).append(float(through) - float(direct))
    return pairs


def seconds(command: list[str], environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def tenant_environment() -> dict[str, str]:
    """What a program in a grant finds; the grant ends with this command, its libraries stay."""
    dump = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    output = subprocess.run(in_grant(*dump), capture_output=True, text=True, check=True).stdout
    environment: dict[str, str] = json.loads(output)
    return environment


def starts(pairs: int) -> list[float]:
    """Milliseconds that /bin/true takes longer with the stand-ins than without."""
    inside, outside = tenant_environment(), dict(os.environ)
    true = ["/bin/true"]
    return [(seconds(true, inside) - seconds(true, outside)) * 1e3 for _ in range(pairs)]


def first_calls(pairs: int) -> list[float]:
    """Milliseconds that cuInit takes longer in a grant than on the simulated driver alone."""
    program = f"""
import os, subprocess, sys
def first(environment):
    command = [sys.executable, "-c", {FIRST_CALL!r}]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result, took = ended.stdout.split()
    assert result == "0", ended.stdout
    return float(took)
inside = dict(os.environ)
outside = {{k: v for k, v in inside.items() if k not in ("LD_PRELOAD", "ALIQUOT_GRANT")}}
outside["LD_LIBRARY_PATH"] = inside["ALIQUOT_DRIVER_DIR"]
for _ in range({pairs}):
    print(first(inside) - first(outside))
"""
    output = subprocess.run(
        in_grant(sys.executable, "-c", program), capture_output=True, text=True, check=True
    ).stdout
    return [float(line) for line in output.split()]


def at_once(processes: int) -> float:
    """Seconds from the start of the first to the answer of the last first CUDA call."""
    program = f"""
import os, time, ctypes
start = time.perf_counter()
children = []
for _ in range({processes}):
    child = os.fork()
    if child == 0:
        os._exit(ctypes.CDLL("libcuda.so.1").cuInit(0))
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
print(time.perf_counter() - start)
"""
    output = subprocess.run(
        in_grant(sys.executable, "-c", program), capture_output=True, text=True, check=True
    ).stdout
    return float(output)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--build",
        type=Path,
        default=Path("build/native-plain"),
        help="a build with ALIQUOT_TESTS=ON, not sanitized",
    )
    parser.add_argument("--pairs", type=int, default=40, help="pairs of starts and of first calls")
    parser.add_argument("--real", action="store_true", help="on this machine's own GPU")
    options = parser.parse_args()
    if options.real:
        MACHINE.clear()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}\n")
    print("| what | added, median | middle half | bar | met |\n|---|--:|--:|--:|---|")
    table = Table()
    added = calls(options.build.resolve())
    table.row("a launch over the stub", added["launch"], 10, "ns")
    table.row("a launch into the default stream", added["launch-default"], 10, "ns")
    table.row("a query of a stream", added["query"], 10, "ns")
    table.row("an allocation over the stub", added["allocation"], 200, "ns")
    table.row("a free over the stub", added["release"], 200, "ns")
    table.row("the start of a process that never calls CUDA", starts(options.pairs * 5), 1, "ms")
    table.row("the first CUDA call", first_calls(options.pairs), 5, "ms")
    if not options.real:  # a real driver takes longer than that by itself
        last = "128 processes at once, the last one's first CUDA call (whole time)"
        table.row(last, [at_once(128) for _ in range(5)], 2, "s")
    return 0 if table.met else 1


if __name__ == "__main__":
    sys.exit(main())
