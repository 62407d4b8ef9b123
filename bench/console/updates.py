"""What an update costs a page of the console: the main thread's time in Chromium.

    python bench/console/updates.py [--gpus 1000] [--slices 5] [--updates 20] [--check]

A console serves a made-up machine of which every GPU and every slice changes once a second. Its
pages are open one after the other, the list of GPUs and the map, both at 1280 x 860. Chromium's own
trace says how long tasks of the page's main thread took: script, style, layout, paint and garbage
collection. Told are the median and the most of all updates, in milliseconds: `cpu` is the thread's
own time, which other work on the machine hardly changes, and `wall` also counts its waits. `bytes`
is what an update sends. With --check the exit code is 1 if the most of `cpu` is 16 ms or more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from aliquot.console.application import make_application
from aliquot.console.guard import Site
from aliquot.console.history_store import HistoryStore
from aliquot.console.sign_in import SignIn, make_code
from aliquot.console.snapshots import ConsoleSnapshot, Machine

MOST_MS = 16.0
GIB = 1 << 30
TOKEN = "0" * 64
SETTLE_UPDATES = 3
SECONDS = 300  # only ends a run that hangs


class MadeUpMachine(Machine):
    """A machine of which everything that moves has moved at each reading."""

    def __init__(self, gpus: int, slices: int, folder: Path) -> None:
        self.store = HistoryStore(folder / "history.sqlite")
        self._random = random.Random(1)  # noqa: S311 - figures, not keys
        self._gpus = [self._gpu(index) for index in range(gpus)]
        self._grants = [self._grant(gpu, index) for gpu in self._gpus for index in range(slices)]

    @property
    def name(self) -> str:
        return "made up"

    def read(self) -> ConsoleSnapshot:
        now, draw = time.time(), self._random
        gpus = [
            {
                **one,
                "used_bytes": draw.randrange(80 * GIB),
                "telemetry": {
                    "busy_ratio": round(draw.random(), 2),
                    "power_watts": draw.randrange(100, 700),
                    "power_limit_watts": 700,
                    "celsius": draw.randrange(30, 80),
                    "clock_mhz": draw.randrange(1000, 1980),
                },
            }
            for one in self._gpus
        ]
        grants = [{**one, "slices": [self._moved(one["slices"][0])]} for one in self._grants]
        machine = {
            "time": now,
            "name": self.name,
            "simulated": None,
            "user": "me",
            "arbiter_is_up": True,
            "pool_is_up": True,
            "driver_version": "580.159",
            "notes": [],
            "gpus": gpus,
            "grants": grants,
        }
        return ConsoleSnapshot(now, machine, {"up": True, "items": [], "left_out": 0}, None)

    def _moved(self, part: dict[str, Any]) -> dict[str, Any]:
        draw = self._random
        return {
            **part,
            "used_bytes": draw.randrange(part["memory_bytes"]),
            "got_ratio": round(draw.random() / 5, 3),
            "idle_seconds": round(draw.random(), 2),
            "wait_p99_seconds": round(draw.random() / 100, 4),
        }

    @staticmethod
    def _gpu(index: int) -> dict[str, Any]:
        return {
            "index": index,
            "uuid": f"GPU-{index:08d}-0000-0000-0000-000000000000",
            "model": "H100 80GB HBM3",
            "memory_bytes": 80 * GIB,
            "used_bytes": 0,
            "granted_bytes": 60 * GIB,
            "free_bytes": 20 * GIB,
            "free_percent": 10,
            "healthy": index % 97 != 0,
            "contended": True,
            "strength": 200,
            "context_bytes": None,
            "telemetry": None,
            "outside": [],
        }

    @staticmethod
    def _grant(gpu: dict[str, Any], index: int) -> dict[str, Any]:
        name = f"train-{gpu['index']}-{index}"
        part = {
            "gpu_index": gpu["index"],
            "gpu": gpu["uuid"],
            "memory_bytes": 12 * GIB,
            "compute_percent": 18,
            "weight_percent": 20,
            "policy": "elastic",
            "priority": "normal",
            "turn": "waits",
            "shares_work": True,
        }
        return {
            "name": name,
            "id": f"{name}@1.000",
            "user": "me",
            "own": True,
            "hidden": False,
            "state": "running",
            "created": 1.0,
            "command": "python train.py",
            "broken": None,
            "swappable": False,
            "away_bytes": None,
            "parked_seconds": None,
            "park_after_seconds": None,
            "parked_because": None,
            "slices": [part],
            "processes": [],
        }


def serve(machine: Machine) -> str:
    """Serve a console of this machine in a thread; a link that signs in."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    host = f"127.0.0.1:{server.getsockname()[1]}"
    app = make_application(machine, SignIn(TOKEN, 0.0), Site(frozenset({host})))
    config = uvicorn.Config(app, log_level="error", lifespan="on", ws="none")
    running = uvicorn.Server(config)
    threading.Thread(target=lambda: asyncio.run(running.serve([server])), daemon=True).start()
    while not running.started:
        time.sleep(0.01)
    return f"http://{host}/#code={make_code(TOKEN)}"


def measure(browser: Browser, page: Page, updates: int) -> dict[str, float]:
    """The time of the main thread for each of so many updates."""
    count_updates(page, SETTLE_UPDATES)
    browser.start_tracing(page=page, categories=["toplevel", "devtools.timeline"])
    count_updates(page, updates)
    trace = json.loads(browser.stop_tracing())["traceEvents"]
    mains = {
        (one["pid"], one["tid"])
        for one in trace
        if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain"
    }
    tasks = [
        one
        for one in trace
        if one.get("ph") == "X"
        and (one["pid"], one["tid"]) in mains
        and one["name"] in {"RunTask", "ThreadControllerImpl::RunTask"}
    ]
    sums: dict[int, list[float]] = {}
    begun = min(one["ts"] for one in tasks)
    for one in tasks:  # updates come once a second
        second = sums.setdefault(int((one["ts"] - begun) // 1_000_000), [0.0, 0.0])
        second[0] += one.get("tdur", 0) / 1000
        second[1] += one["dur"] / 1000
    whole = [sums[second] for second in sorted(sums)][:updates]
    return {
        "cpu_median_ms": round(median(one[0] for one in whole), 1),
        "cpu_most_ms": round(max(one[0] for one in whole), 1),
        "wall_median_ms": round(median(one[1] for one in whole), 1),
        "wall_most_ms": round(max(one[1] for one in whole), 1),
        "updates": len(whole),
    }


def count_updates(page: Page, count: int) -> None:
    """Wait for so many updates."""
    page.evaluate(
        "count => new Promise(done => document.addEventListener('aliquot-update',"
        " function next() { if (--count <= 0) {"
        " document.removeEventListener('aliquot-update', next); done(); } }))",
        count,
    )


def main() -> int:
    """Measure both pages; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--slices", type=int, default=5, help="of each GPU")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        machine = MadeUpMachine(given.gpus, given.slices, Path(folder))
        before = machine.read()
        found["bytes"] = len(machine.read().since(before)["machine"] or b"")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.set_default_timeout(SECONDS * 1000)
        page.goto(serve(machine))
        page.get_by_role("heading", name="GPU 0").wait_for()
        found["list"] = measure(browser, page, given.updates)
        page.get_by_role("button", name="Map").click()
        page.locator("canvas").wait_for()
        found["map"] = measure(browser, page, given.updates)
        browser.close()
    sys.stdout.write(f"{json.dumps(found, indent=2)}\n")
    most = max(found[view]["cpu_most_ms"] for view in ("list", "map"))
    return int(given.check and most >= MOST_MS)


if __name__ == "__main__":
    sys.exit(main())
