"""Three programs on one GPU, each held to its slice; on a simulated GPU where there is no real one.

One stays within its slice, one takes all it can get and is stopped at its limit by an ordinary
out-of-memory error, one is killed with `kill -9` and its memory is there again at once. Ends with
exit code 0 only if that is what happened, by the programs' own words and by `aliquot ps`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from aliquot.model import format_bytes
from aliquot.model.errors import ArbiterError
from aliquot.slices import control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GIB = 1 << 30
OUT_OF_MEMORY = 2
NEAR = 64 << 20  # how near its limit a program that takes all must come
PATIENCE = 30.0
GLANCE = 2.0  # how long a person is shown each state
BAR = 12
AT_ONCE = 2.0
SIMULATED = "h100:1"

ALIQUOT = [sys.executable, "-m", "aliquot"]
TENANT = str(Path(__file__).with_name("tenant.py"))


@dataclass
class Tenant:
    """One program in its slice, and what it said."""

    name: str
    limit: int
    wants: str
    role: str
    process: subprocess.Popen[str] | None = None
    said: dict[str, dict[str, int]] = field(default_factory=dict)
    uses: int = 0  # with its context: what the driver takes by itself counts too
    state: str = "waits"

    def start(self, options: list[str], environment: dict[str, str]) -> None:
        """Run it by `aliquot run`, whose process it becomes."""
        command = [*ALIQUOT, "run", "--name", self.name, "--memory", f"{self.limit}B", *options]
        self.process = subprocess.Popen(
            [*command, "--", sys.executable, TENANT, self.wants],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.state = "starts"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process is not None  # noqa: S101 - start made it
        assert self.process.stdout is not None  # noqa: S101
        for line in self.process.stdout:
            words = json.loads(line)
            self.said[words.pop("event")] = words
            self.state = "out of memory" if "stopped" in self.said else "runs"

    def settled(self) -> bool:
        """Whether it has all it takes, and `aliquot ps` says the same."""
        return "stays" in self.said and self.uses >= self.said["stays"]["bytes"]

    def alive(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.poll() is None

    def end(self) -> int:
        """Let it go, and wait for it; its exit code."""
        assert self.process is not None  # noqa: S101 - only what was started is ended
        try:
            _, errors = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, errors = self.process.communicate()
        if self.process.returncode not in {0, -signal.SIGKILL}:
            print(f"{self.name}: {errors.strip()}", file=sys.stderr)
        return self.process.returncode


class Demo:
    """The three tenants, the table, and what was checked."""

    def __init__(self, environment: dict[str, str], simulated: str | None) -> None:
        self.environment = environment
        self.options = ["--simulate", simulated] if simulated else []
        self.simulated = simulated
        mark = "" if simulated else f"-{os.getpid()}"  # names of others' grants are not ours
        self.steady = Tenant(f"steady{mark}", 2 * GIB, str(GIB), "stays within")
        self.greedy = Tenant(f"greedy{mark}", 3 * GIB, "all", "takes all it gets")
        self.doomed = Tenant(f"doomed{mark}", 4 * GIB, str(3 * GIB), "gets a kill -9")
        self.tenants = (self.steady, self.greedy, self.doomed)
        self.gpu_used = 0
        self.places: set[str] = set()
        self.states: list[Path] = []
        self.failures: list[str] = []
        self.console = Console(highlight=False)
        self.live: Live | None = None

    def run(self) -> bool:
        """Play it; whether all was as it should be."""
        self.say_where()
        with self.showing():
            for tenant in self.tenants:
                tenant.start(self.options, self.environment)
            self.all_settle()
            self.limits_hold()
            self.memory_returns()
            self.others_go_on()
        for tenant in self.tenants:
            tenant.end()
        return not self.failures

    def say_where(self) -> None:
        """Name the GPU, real or simulated."""
        found = aliquot_json(self.environment, "gpus", *self.options)["gpus"][0]
        kind = "a simulated GPU (this machine has none)" if self.simulated else "this machine's GPU"
        size = format_bytes(found["memory_bytes"])
        self.console.print(f"Three programs on {kind}: {found['name']}, {size}", markup=False)

    def all_settle(self) -> None:
        """Every program sees its slice as the GPU, and takes what it wants or gets."""
        self.watch(lambda: all(one.settled() or not one.alive() for one in self.tenants))
        self.check(
            f"all three run at once, on GPU {', '.join(sorted(self.places))}",
            all(one.alive() and one.settled() for one in self.tenants),
        )
        for one in self.tenants:
            seen = one.said.get("sees", {}).get("bytes", -1)
            self.check(
                f"{one.name} sees a GPU of {format_bytes(one.limit)}",
                one.limit - NEAR <= seen <= one.limit,
            )

    def limits_hold(self) -> None:
        """The greedy one was stopped by the ordinary error, at its limit."""
        stopped = self.greedy.said.get("stopped", {})
        held = stopped.get("bytes", 0)
        self.check(
            f"{self.greedy.name} allocated {format_bytes(held)}, then was stopped by an ordinary"
            " out-of-memory error",
            stopped.get("code") == OUT_OF_MEMORY,
        )
        self.check(
            f"with its context, {format_bytes(self.greedy.uses - held)} that the driver takes, it"
            f" got all of its slice and no more: {format_bytes(self.greedy.uses)}"
            f" of {format_bytes(self.greedy.limit)}",
            self.greedy.limit - NEAR <= self.greedy.uses <= self.greedy.limit,
        )
        for one in (self.steady, self.doomed):
            self.check(
                f"{one.name} has what it asked for: {format_bytes(int(one.wants))}",
                int(one.wants) <= one.uses <= one.limit and "stopped" not in one.said,
            )

    def memory_returns(self) -> None:
        """Kill one; its memory is there again at once."""
        assert self.doomed.process is not None  # noqa: S101 - all were started
        before = self.gpu_used
        started = time.monotonic()
        self.doomed.process.kill()
        self.doomed.state = "killed"
        while self.still_held(self.doomed) and time.monotonic() - started < PATIENCE:
            time.sleep(0.001)
        took = max(time.monotonic() - started, 0.01)
        self.watch(lambda: not self.doomed.alive() and not self.doomed.uses)
        self.check(
            f"{self.doomed.name} was killed, and its memory came back within {took:.2f} s",
            took <= AT_ONCE and before - self.gpu_used >= int(self.doomed.wants),
        )

    def still_held(self, one: Tenant) -> bool:
        """Ask the arbiter itself, as `aliquot ps` does: to start that takes longer than this."""
        return any(
            grant.name == one.name and any(use.used_bytes for use in grant.use)
            for state in self.states
            for grant in control.status(state).grants
        )

    def others_go_on(self) -> None:
        """The death of one touched nobody else."""
        self.check(
            "the other two noticed nothing",
            all(one.alive() and one.uses for one in (self.steady, self.greedy)),
        )

    def check(self, what: str, holds: object) -> None:
        """Note one thing that must be so."""
        if not holds:
            self.failures.append(what)
        mark = "[green]✓[/]" if holds else "[bold red]✗[/]"
        self.console.print(f"{mark} {what}")

    def watch(self, until: Callable[[], bool]) -> None:
        """Keep the table fresh until it is so, or too long."""
        started = time.monotonic()
        shown = GLANCE if self.console.is_terminal else 0.0
        while True:
            self.refresh()
            passed = time.monotonic() - started
            if passed > PATIENCE or (passed >= shown and until()):
                break
        if not self.console.is_terminal:
            self.console.print(self.table())

    def refresh(self) -> None:
        """Read `aliquot ps` and draw the table."""
        seen = aliquot_json(self.environment, "ps")
        self.states = [Path(machine["state"]) for machine in seen["machines"]]
        grants = {grant["name"]: grant for grant in seen["grants"]}
        for one in self.tenants:
            parts = grants.get(one.name, {}).get("slices", [])
            one.uses = sum(part["counted_bytes"] + part["driver_bytes"] for part in parts)
            self.places.update(str(part["index"]) for part in parts)
        self.gpu_used = sum(gpu["used_bytes"] for gpu in seen["gpus"])
        if self.live is not None:
            self.live.update(self.table(), refresh=True)

    def table(self) -> Table:
        """The three tenants as they are now."""
        table = Table(title="simulated GPU" if self.simulated else None, title_justify="left")
        for column in ("program", "what it does", "limit", "uses", "", "now"):
            table.add_column(column)
        for one in self.tenants:
            bar = "█" * round(BAR * one.uses / one.limit)
            table.add_row(
                one.name,
                one.role,
                format_bytes(one.limit),
                format_bytes(one.uses),
                f"{bar:·<{BAR}}",
                one.state,
            )
        return table

    @contextmanager
    def showing(self) -> Iterator[None]:
        """A live table on a terminal; elsewhere the table is printed at each step."""
        try:
            if self.console.is_terminal:
                with Live(self.table(), console=self.console, auto_refresh=False) as self.live:
                    yield
            else:
                yield
        finally:
            for one in self.tenants:
                if one.process is not None and one.process.stdin is not None:
                    one.process.stdin.close()
                    one.process.stdin = None


def aliquot_json(environment: dict[str, str], *arguments: str) -> Any:
    """What an `aliquot` command says, for programs."""
    command = [*ALIQUOT, *arguments, "--json"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise SystemExit(answer.stderr)
    return json.loads(answer.stdout)


def has_gpu() -> bool:
    """Whether this machine has a GPU that Aliquot can use."""
    answer = subprocess.run([*ALIQUOT, "gpus", "--json"], capture_output=True, check=False)
    return answer.returncode == 0


@contextmanager
def own_state() -> Iterator[dict[str, str]]:
    """An environment whose simulated machine is nobody else's."""
    folder = Path(tempfile.mkdtemp(prefix="aliquot-demo-"))
    try:
        kept = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
        yield {**kept, "ALIQUOT_STATE": str(folder)}
    finally:
        for state in folder.glob("simulated/*"):
            stop_when_empty(state)
        shutil.rmtree(folder)


def stop_when_empty(state: Path) -> None:
    """End an arbiter as soon as its last grant has ended."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            control.stop(state)
        except control.NoArbiterError:
            return
        except ArbiterError:
            time.sleep(0.01)


def main() -> int:
    """Play on the real GPU if there is one."""
    if "ALIQUOT_SIMULATE" not in os.environ and has_gpu():
        well = Demo(dict(os.environ), None).run()
    else:
        simulated = os.environ.pop("ALIQUOT_SIMULATE", SIMULATED)
        with own_state() as environment:
            well = Demo(environment, simulated).run()
    print("All is as it should be." if well else "Something is not as it should be: see ✗ above.")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
