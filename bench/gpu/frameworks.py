"""Does every framework see the slice, and stop at its limit? Run on a machine with an NVIDIA GPU.

    python bench/gpu/frameworks.py [--memory MIB] [--only NAMES] [--out results.json]

Starts each program of tenants.py under ``aliquot run --memory``, watches NVML's figure for its
process all the while, and at its "out of memory" takes the ledger's figure too. A row passes if the
framework raised its own error, the ledger and NVML never passed the limit, and the program was
stopped within 64 MiB of it, by NVML's figure. Prints a table for docs/measured.md; exit code 0 if
all rows pass.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
WITHIN = 64 * MIB
PATIENCE_SECONDS = 90
HERE = Path(__file__).parent

CASES: dict[str, tuple[str, dict[str, str]]] = {
    "PyTorch, default allocator": ("torch", {}),
    "PyTorch, expandable segments": (
        "torch",
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    "PyTorch, cudaMallocAsync": ("torch", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    "PyTorch, a CUDA graph replayed": ("torch-graph", {}),
    "JAX, platform allocator": ("jax", {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
    "JAX, default allocator, no preallocation": (
        "jax",
        {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "1.0"},
    ),
    "CuPy, default pool": ("cupy", {}),
    "CuPy, asynchronous pool": ("cupy-async", {}),
    "Numba": ("numba", {}),
    "Triton": ("triton", {}),
    "Driver API, every kind of memory": ("driver", {}),
}


@dataclass(frozen=True)
class Row:
    case: str
    version: str
    error: str
    seen_total: int
    counted: int
    driver: int
    nvml_peak: int
    limit: int
    exit_code: int
    note: str

    @property
    def passed(self) -> bool:
        return (
            self.exit_code == 0
            and self.error != ""
            and self.counted + self.driver <= self.limit
            and self.nvml_peak <= self.limit
            and self.limit - self.nvml_peak <= WITHIN
        )


def aliquot(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "aliquot", *arguments]


class Watch(threading.Thread):
    """The highest figure NVML gives for one process, asked for every millisecond."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self.ended = pid, 0, threading.Event()

    def run(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        while not self.ended.wait(0.001):
            used = 0
            for handle in handles:
                for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    if process.pid == self.pid:
                        used += process.usedGpuMemory or 0
            self.peak = max(self.peak, used)


def grant_of(name: str) -> dict[str, Any]:
    output = subprocess.run(
        aliquot("ps", "--json"), capture_output=True, text=True, check=True
    ).stdout
    for grant in json.loads(output)["grants"]:
        if grant["name"] == name:
            return dict(grant)
    raise SystemExit(f"aliquot ps does not show the grant {name}")


def wait_for_report(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The program's one JSON line; nothing if it ended without it."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            return dict(json.loads(line))
    return {}


def measure(case: str, limit: int) -> Row:
    program, extra = CASES[case]
    name = f"bench-{program}-{time.monotonic_ns() % 100000}"
    command = aliquot("run", "--memory", str(limit), "--name", name, "--")
    # Into a file: some frameworks write pages of advice there, and a full pipe would stop them.
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*command, sys.executable, str(HERE / "tenants.py"), program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **extra},
        )
        watch = Watch(process.pid)
        watch.start()
        patience = threading.Timer(PATIENCE_SECONDS, process.kill)
        patience.start()
        said = wait_for_report(process)
        slices = grant_of(name)["slices"] if said else []
        process.communicate("go on\n")
        patience.cancel()
        watch.ended.set()
        watch.join()
        errors.seek(0)
        note = "" if process.returncode == 0 else errors.read().strip()[-300:]
    return Row(
        case=case,
        version=said.get("version", "?"),
        error=said.get("error", ""),
        seen_total=said.get("total", 0),
        counted=sum(s["counted_bytes"] for s in slices),
        driver=sum(s["driver_bytes"] for s in slices),
        nvml_peak=watch.peak,
        limit=limit,
        exit_code=process.returncode,
        note=note,
    )


def markdown(rows: list[Row]) -> str:
    def mib(value: int) -> str:
        return f"{value / MIB:,.0f}" if value else "-"

    heads = "program|version|its own error|total it saw|counted|driver's own|NVML's peak|limit|held"
    lines = [f"|{heads}|", "|---|---|---|--:|--:|--:|--:|--:|---|"]
    for r in rows:
        figures = (r.seen_total, r.counted, r.driver, r.nvml_peak, r.limit)
        held = "yes" if r.passed else f"NO {r.note}"
        cells = [r.case, r.version, r.error, *map(mib, figures), held]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memory", type=int, default=8192, help="the slice's memory in MiB")
    parser.add_argument(
        "--only", default="", help="cases whose name contains one of these, separated by commas"
    )
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    options = parser.parse_args()
    rows = []
    for case in CASES:
        if any(part in case.lower() for part in options.only.lower().split(",")):
            rows.append(measure(case, options.memory * MIB))
            print(
                f"{'held' if rows[-1].passed else 'NOT HELD'}: {case} {rows[-1].note}",
                file=sys.stderr,
            )
    print(f"{dt.date.today()}, {platform.machine()}; figures in MiB\n")
    print(markdown(rows))
    if options.out:
        options.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
