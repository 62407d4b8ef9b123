"""What both acts use: programs in slices, a live table, and checks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live

from aliquot.slices import control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

GIB = 1 << 30
PATIENCE = 30.0
GLANCE = 1.2  # how long a person is shown each state

ALIQUOT = [sys.executable, "-m", "aliquot"]
TENANT = str(Path(__file__).with_name("tenant.py"))


@dataclass
class Tenant:
    """A program in its slice, and its last report of each kind."""

    name: str
    options: list[str]
    wants: str = "0"
    process: subprocess.Popen[str] | None = None
    listener: threading.Thread | None = None
    said: dict[str, dict[str, int]] = field(default_factory=dict)

    def start(self, options: list[str], environment: dict[str, str]) -> None:
        """Start it with `aliquot run`."""
        command = [*ALIQUOT, "run", "--name", self.name, *self.options, *options]
        self.process = subprocess.Popen(
            [*command, "--", sys.executable, TENANT, self.wants],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process is not None  # noqa: S101 - start made it
        assert self.process.stdout is not None  # noqa: S101
        for line in self.process.stdout:
            report = json.loads(line)
            self.said[report.pop("event")] = report

    def tell(self, command: str) -> None:
        """Send it a command."""
        assert self.process is not None  # noqa: S101 - only what was started is told
        assert self.process.stdin is not None  # noqa: S101
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def alive(self) -> bool:
        """Whether its process is alive."""
        return self.process is not None and self.process.poll() is None

    def let_go(self) -> None:
        """Close its standard input, so that it ends."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.stdin = None

    def wait(self) -> None:
        """Wait for it, and print its errors if it failed."""
        if self.process is None or self.listener is None:
            return
        self.listener.join(PATIENCE)
        if self.listener.is_alive():
            self.process.kill()
        code = self.process.wait()
        if code not in {0, -signal.SIGKILL} and self.process.stderr is not None:
            print(f"{self.name}: {self.process.stderr.read().strip()}", file=sys.stderr)


class Stage:
    """One GPU, real or simulated, and the terminal or file for the output."""

    def __init__(self, environment: dict[str, str], simulated: str | None) -> None:
        self.simulated = simulated
        self.options = ["--simulate", simulated] if simulated else []
        self.mark = (
            "" if simulated else f"-{os.getpid()}"
        )  # does not collide with grants of other programs
        self.console = Console(highlight=False)
        self.failures: list[str] = []
        self._live: Live | None = None
        gpus = aliquot_json(environment, "gpus", *self.options)["gpus"]
        self.gpu = max(gpus, key=lambda gpu: gpu["memory_bytes"] - gpu["used_bytes"])
        visible = environment.get("CUDA_VISIBLE_DEVICES", self.gpu["uuid"])
        self.environment = {**environment, "CUDA_VISIBLE_DEVICES": visible}

    @contextmanager
    def playing(self, tenants: tuple[Tenant, ...], table: Callable[[], Table]) -> Iterator[None]:
        """Run the programs, with a live table on a terminal; then end them."""
        try:
            for tenant in tenants:
                tenant.start(self.options, self.environment)
            if self.console.is_terminal:
                with Live(table(), console=self.console, auto_refresh=False) as self._live:
                    yield
            else:
                yield
        finally:
            self._live = None
            for tenant in tenants:
                tenant.let_go()
            for tenant in tenants:
                tenant.wait()

    def watch(
        self, table: Callable[[], Table], until: Callable[[], bool], *, in_files: bool = True
    ) -> None:
        """Refresh the table until the condition holds or a timeout; a file gets the last table."""
        started = time.monotonic()
        shown = GLANCE if self.console.is_terminal else 0.0
        while True:
            fresh = table()
            if self._live is not None:
                self._live.update(fresh, refresh=True)
            passed = time.monotonic() - started
            if passed > PATIENCE or (passed >= shown and until()):
                break
            time.sleep(0.1)
        if self._live is None and in_files:
            self.console.print(fresh)

    def arbiter_of(self, tenant: Tenant) -> Path:
        """The state directory that has its grant."""
        for machine in aliquot_json(self.environment, "ps")["machines"]:
            directory = Path(machine["state"])
            if any(grant.name == tenant.name for grant in control.status(directory).grants):
                return directory
        raise SystemExit(f"{tenant.name} has no grant")

    def say(self, what: str) -> None:
        """Print what happens next."""
        self.console.print(what, markup=False)

    def check(self, what: str, holds: object) -> None:
        """Print and record the result of one check."""
        if not holds:
            self.failures.append(what)
        mark = "[green]✓[/]" if holds else "[bold red]✗[/]"
        self.console.print(f"{mark} {what}")


def aliquot_json(environment: dict[str, str], *arguments: str) -> Any:
    """The JSON output of an `aliquot` command."""
    return json.loads(aliquot(environment, *arguments, "--json"))


def aliquot(environment: dict[str, str], *arguments: str) -> str:
    """The output of an `aliquot` command."""
    answer = subprocess.run(
        [*ALIQUOT, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        raise SystemExit(answer.stderr)
    return answer.stdout
