"""The first act: three programs on one GPU, each limited to the memory of its slice.

One stays within its slice. One allocates all it can and is stopped at its limit by an ordinary
out-of-memory error. One is killed with `kill -9`, and its memory is free again at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from aliquot.model import format_bytes
from aliquot.slices import control
from stage import GIB, PATIENCE, Tenant, aliquot_json

if TYPE_CHECKING:
    from pathlib import Path

    from stage import Stage

OUT_OF_MEMORY = 2
NEAR = 64 << 20  # how near its limit a program that takes all must come
BAR = 12
AT_ONCE = 2.0


@dataclass
class Holder(Tenant):
    """A program that takes memory."""

    limit: int = 0
    role: str = ""
    uses: int = 0  # with its context, which counts too

    def settled(self) -> bool:
        """Whether it has allocated all it wants, and `aliquot ps` agrees."""
        return "stays" in self.said and self.uses >= self.said["stays"]["bytes"]

    @property
    def state(self) -> str:
        """What it is doing, for the table."""
        if not self.alive():
            return "killed" if self.process else "waits"
        return "out of memory" if "stopped" in self.said else "runs"


class MemoryAct:
    """The three programs, and the checks."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.steady = self._holder("steady", 2 * GIB, str(GIB), "stays within")
        self.greedy = self._holder("greedy", 3 * GIB, "all", "takes all it gets")
        self.doomed = self._holder("doomed", 4 * GIB, str(3 * GIB), "gets a kill -9")
        self.tenants = (self.steady, self.greedy, self.doomed)
        self.gpu_used = 0

    def _holder(self, name: str, limit: int, wants: str, role: str) -> Holder:
        options = ["--memory", f"{limit}B"]
        return Holder(f"{name}{self.stage.mark}", options, wants, limit=limit, role=role)

    def play(self) -> None:
        """Play it."""
        self.stage.say("Memory: three programs, a slice each")
        with self.stage.playing(self.tenants, self.table):
            self.all_settle()
            self.limits_hold()
            self.memory_returns()

    def all_settle(self) -> None:
        """Every program sees a GPU of its slice's size and allocates what it wants or gets."""
        self.stage.watch(
            self.table, lambda: all(one.settled() or not one.alive() for one in self.tenants)
        )
        sizes = [one.said.get("sees", {}).get("bytes", -1) for one in self.tenants]
        self.stage.check(
            f"each sees a GPU of its slice's size: {', '.join(map(format_bytes, sizes))}",
            all(
                one.settled() and one.limit - NEAR <= size <= one.limit
                for one, size in zip(self.tenants, sizes, strict=True)
            ),
        )

    def limits_hold(self) -> None:
        """The greedy one was stopped by the ordinary error, at its limit; the others were not."""
        stopped = self.greedy.said.get("stopped", {})
        self.stage.check(
            f"{self.greedy.name} was stopped by an ordinary out-of-memory error, with all of its"
            f" slice and no more: {format_bytes(self.greedy.uses)}"
            f" of {format_bytes(self.greedy.limit)}",
            stopped.get("code") == OUT_OF_MEMORY
            and self.greedy.limit - NEAR <= self.greedy.uses <= self.greedy.limit,
        )
        others = (self.steady, self.doomed)
        self.stage.check(
            "the others have what they asked for: "
            + ", ".join(format_bytes(int(one.wants)) for one in others),
            all(
                int(one.wants) <= one.uses <= one.limit and "stopped" not in one.said
                for one in others
            ),
        )

    def memory_returns(self) -> None:
        """Kill one; its memory is free again at once, and the others do not notice."""
        assert self.doomed.process is not None  # noqa: S101 - all were started
        arbiter = self.stage.arbiter_of(self.doomed)
        before = self.gpu_used
        started = time.monotonic()
        self.doomed.process.kill()
        while still_uses_memory(self.doomed, arbiter) and time.monotonic() - started < PATIENCE:
            time.sleep(0.001)
        took = max(time.monotonic() - started, 0.01)
        self.stage.watch(self.table, lambda: not self.doomed.alive() and not self.doomed.uses)
        self.stage.check(
            f"{self.doomed.name} was killed, and its memory came back within {took:.2f} s",
            took <= AT_ONCE and before - self.gpu_used >= int(self.doomed.wants),
        )
        self.stage.check(
            "the other two noticed nothing",
            all(one.alive() and one.uses for one in (self.steady, self.greedy)),
        )

    def table(self) -> Table:
        """The three programs as `aliquot ps` shows them now."""
        seen = aliquot_json(self.stage.environment, "ps")
        self.gpu_used = sum(gpu["used_bytes"] for gpu in seen["gpus"])
        grants = {grant["name"]: grant for grant in seen["grants"]}
        table = Table(title="simulated GPU" if self.stage.simulated else None, title_justify="left")
        for column in ("program", "what it does", "limit", "uses", "", "now"):
            table.add_column(column)
        for one in self.tenants:
            parts = grants.get(one.name, {}).get("slices", [])
            one.uses = sum(part["counted_bytes"] + part["driver_bytes"] for part in parts)
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


def still_uses_memory(one: Tenant, arbiter: Path) -> bool:
    """Ask the arbiter directly: starting `aliquot ps` would take longer than the cleanup."""
    return any(
        grant.name == one.name and any(use.used_bytes for use in grant.use)
        for grant in control.status(arbiter).grants
    )
