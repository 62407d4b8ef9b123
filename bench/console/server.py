"""What a console costs beside a pool: processor time with open pages and without.

    python bench/console/server.py [--gpus 8] [--slices 50] [--pages 10] [--seconds 30] [--check]

A pool of simulated GPUs is brought up with its console, so many slices are made, and so many
clients read the console's events as pages do. It prints the time that the kernel has counted for
each process (/proc/PID/stat), in percent of a core. On a busy machine the console reads less often
than once a second: `updates` says how many each page got, and `console_at_one_a_second` what it
would take. With --check the exit code is 1 if that is 5 % or more.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

MOST_PERCENT = 5.0
COMMAND = Path(sys.executable).with_name("aliquot")
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """The time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def children(pid: int, word: str) -> list[int]:
    """The children of a process whose command line has this word."""
    found = subprocess.run(
        ["/usr/bin/pgrep", "-P", str(pid), "-f", word], capture_output=True, text=True, check=False
    )
    return [int(one) for one in found.stdout.split()]


def make_slices(shape: str, count: int, cdi: Path) -> None:
    """Make so many slices, evenly."""
    from aliquot import api
    from aliquot.containers import publishing
    from aliquot.devices import parse_shape

    host = publishing.open_host(parse_shape(shape))
    for number in range(count):
        request = api.read_request(memory="8GiB", compute="10")
        publishing.create(host, request, f"slice-{number}", cdi)


def follow(address: str, token: str, ends: threading.Event, got: list[float]) -> None:
    """Read events as a page does, and note when updates of the machine came."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    with suppress(OSError):
        while not ends.is_set() and (line := answer.readline()):
            if line.startswith(b"event: machine"):
                got.append(time.monotonic())
    connection.close()


def measure(pids: dict[str, int], seconds: float) -> dict[str, float]:
    """The share of a core that each process takes."""
    before, began = {name: cpu_seconds(pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    return {
        name: round(100 * (cpu_seconds(pid) - before[name]) / passed, 2)
        for name, pid in pids.items()
    }


def main() -> int:
    """Measure; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--slices", type=int, default=50)
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    shape = f"h100:{given.gpus}"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.environ["ALIQUOT_STATE"] = folder
        up = [str(COMMAND), "up", "--simulate", shape, "--console", "127.0.0.1:0"]
        with subprocess.Popen(up, stderr=subprocess.PIPE, text=True) as pool:
            assert pool.stderr is not None
            lines = iter(pool.stderr.readline, "")
            line = next(one for one in lines if "console: http" in one)
            address = next(word for word in line.split() if word.startswith("http"))
            threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()
            (token,) = (one.read_text() for one in Path(folder).rglob("console/token"))
            make_slices(shape, given.slices, Path(folder) / "cdi")
            (console,) = children(pool.pid, "aliquot.console")
            pids = {"console": console, "pool": pool.pid}
            found = {"alone": measure(pids, given.seconds)}
            ends, got = threading.Event(), [list[float]() for _ in range(given.pages)]
            for one in got:
                arguments = (address, token, ends, one)
                threading.Thread(target=follow, args=arguments, daemon=True).start()
            time.sleep(3)
            began = time.monotonic()
            found["open"] = measure(pids, given.seconds)
            updates = min(sum(at >= began for at in one) for one in got)
            share = found["open"]["console"] * given.seconds / max(1, updates)
            found["open"] |= {"updates": updates, "console_at_one_a_second": round(share, 2)}
            ends.set()
            pool.terminate()
            pool.wait(30)
        for one in Path(folder).rglob("arbiter.pid"):
            os.kill(int(one.read_text(encoding="ascii")), signal.SIGTERM)
            time.sleep(2)  # it writes into the folder, which is about to go
    sys.stdout.write(f"{json.dumps(found, indent=2)}\n")
    return int(given.check and found["open"]["console_at_one_a_second"] >= MOST_PERCENT)


if __name__ == "__main__":
    sys.exit(main())
