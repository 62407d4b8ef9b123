"""The second act: three programs that always have work share one GPU by their compute shares.

They get 50, 30 and 20 %. When one becomes idle the others get its share; when it works again it
gets its share back. Then two are resized while they run. Two sources must agree: the arbiter, by
the time for which each slice held the GPU, and the programs, by the kernels that they completed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from aliquot.cli.tables import percent
from aliquot.model import ComputeUse, Turn
from aliquot.slices import control
from stage import Tenant, aliquot

if TYPE_CHECKING:
    from aliquot.slices.arbiter_status import Status
    from stage import Stage

# How far a share may be from the requested one, in percent of the GPU. Completed kernels also
# depend on how busy the machine's processors are.
POINTS = 2.0
KERNEL_POINTS = 3.0
SETTLING = 0.8  # until the pieces into which work is cut have their length
MEASURED = 3.0
CHANCES = 4
BAR = 20


@dataclass
class Worker(Tenant):
    """A program with a share of compute time."""

    asked: int = 0
    works: bool = False

    @property
    def did(self) -> tuple[int, int]:
        """How many kernels it has completed, and when it reported that, in ns."""
        said = self.said.get("did", {})
        return said.get("kernels", 0), said.get("at_ns", 0)

    def work(self) -> None:
        """Keep the GPU busy from now on."""
        self.tell("work")
        self.works = True

    def rest(self) -> None:
        """Have no work from now on."""
        self.tell("rest")
        self.works = False


@dataclass(frozen=True)
class Snapshot:
    """What both sources report at one instant."""

    now: float
    used: dict[str, float]
    did: dict[str, tuple[int, int]]

    def times_since(self, before: Snapshot) -> dict[str, float]:
        """The share of time for which each program held the GPU, in percent."""
        seconds = self.now - before.now
        return {
            name: 100 * (used - before.used[name]) / seconds for name, used in self.used.items()
        }

    def kernels_since(self, before: Snapshot) -> dict[str, float]:
        """Each program's share of all kernels completed in the same time, in percent."""
        rates = {}
        for name, (kernels, at) in self.did.items():
            kernels_before, at_before = before.did[name]
            rates[name] = (kernels - kernels_before) / max(1, at - at_before)
        return {name: 100 * rate / (sum(rates.values()) or 1) for name, rate in rates.items()}


class ComputeAct:
    """The three programs, and the checks."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.tenants = tuple(
            Worker(
                f"{name}{stage.mark}",
                ["--memory", "2GiB", "--compute", str(share)],
                asked=share,
            )
            for name, share in (("large", 50), ("medium", 30), ("small", 20))
        )
        self.large, self.medium, self.small = self.tenants
        self.arbiter: Path | None = None

    def play(self) -> None:
        """Play it."""
        self.stage.say("Compute: three programs that always have work, and a share each")
        with self.stage.playing(self.tenants, self.table):
            self.stage.watch(self.table, self.all_started, in_files=False)
            self.arbiter = self.stage.arbiter_of(self.large)
            for one in self.tenants:
                one.work()
            self.holds("asked for 50, 30 and 20 %", 50, 30, 20)
            self.large.rest()
            self.holds("large goes idle, the others get its share", 0, 60, 40)
            self.large.work()
            self.holds("large works again", 50, 30, 20)
            self.resize(self.large, 30)
            self.resize(self.small, 40)
            self.holds("resized to 30, 30 and 40 %", 30, 30, 40)
            self.turns_were_kept()

    def all_started(self) -> bool:
        """Whether each has its context, or has failed."""
        return all("stays" in one.said or not one.alive() for one in self.tenants)

    def resize(self, one: Worker, share: int) -> None:
        """Change its share while it runs."""
        aliquot(
            self.stage.environment,
            *("resize", one.name, "--compute", str(share), *self.stage.options),
        )
        one.asked = share

    def holds(self, what: str, *expected: int) -> None:
        """Measure for a while, and compare both sources with the expected shares.

        A simulated GPU depends on the machine's processors, so it gets more than one chance.
        """
        for chances_left in reversed(range(CHANCES if self.stage.simulated else 1)):
            self.settle()
            times, kernels = self.measure()
            near = _near(times, expected, POINTS) and _near(kernels, expected, KERNEL_POINTS)
            figures = f"{_figures(times)} of the time, {_figures(kernels)} of the kernels"
            if near or not chances_left:
                self.stage.check(f"{what}: {figures}", near)
                return
            self.stage.say(f"  {figures}: once more, this machine is busy")

    def measure(self) -> tuple[dict[str, float], dict[str, float]]:
        """The shares over the next seconds, by both sources."""
        before, end = self.snapshot(), time.monotonic() + MEASURED
        self.stage.watch(self.table, lambda: time.monotonic() >= end)
        after = self.snapshot()
        return after.times_since(before), after.kernels_since(before)

    def settle(self) -> None:
        """Wait until all programs have completed kernels and take turns, and a little longer."""
        end = time.monotonic() + SETTLING
        self.stage.watch(
            self.table,
            lambda: time.monotonic() >= end and self.all_in_turn(),
            in_files=False,
        )

    def all_in_turn(self) -> bool:
        """Whether all have completed kernels and none takes no turns because it was late."""
        if self.arbiter is None or not all("did" in one.said for one in self.tenants):
            return False
        found = computes(control.status(self.arbiter))
        return all(found[one.name].turn is not Turn.EXEMPT for one in self.tenants)

    def turns_were_kept(self) -> None:
        """Check that the shares came from turns, with hardly any fallback."""
        assert self.arbiter is not None  # noqa: S101 - found before the first look
        found = computes(control.status(self.arbiter))
        late = sum(found[one.name].fallbacks for one in self.tenants)
        turns = sum(found[one.name].handovers for one in self.tenants)
        self.stage.check(
            f"{turns:,} turns were taken, {late} of them ended in a fallback",
            late <= turns / 100,
        )

    def snapshot(self) -> Snapshot:
        """Ask both sources."""
        assert self.arbiter is not None  # noqa: S101 - found before the first look
        seen = control.status(self.arbiter)
        found = computes(seen)
        return Snapshot(
            seen.now,
            {one.name: found[one.name].used_seconds for one in self.tenants},
            {one.name: one.did for one in self.tenants},
        )

    def table(self) -> Table:
        """The three programs now."""
        found = computes(control.status(self.arbiter)) if self.arbiter else {}
        table = Table(title="simulated GPU" if self.stage.simulated else None, title_justify="left")
        for column in ("program", "asked", "got", "", "kernels done", "now"):
            table.add_column(column)
        for one in self.tenants:
            got = found.get(one.name, ComputeUse()).got_ratio
            bar = "█" * round(BAR * (got or 0.0))
            table.add_row(
                one.name,
                f"{one.asked}%",
                percent(got),
                f"{bar:·<{BAR}}",
                f"{one.did[0]:,}",
                "works" if one.works else "idle",
            )
        return table


def computes(seen: Status) -> dict[str, ComputeUse]:
    """The compute figures of each grant's first slice, by name."""
    return {grant.name: grant.compute[0] for grant in seen.grants}


def _near(shares: dict[str, float], expected: tuple[int, ...], points: float) -> bool:
    pairs = zip(shares.values(), expected, strict=True)
    return all(abs(share - wanted) <= points for share, wanted in pairs)


def _figures(shares: dict[str, float]) -> str:
    return " / ".join(f"{share:.1f}" for share in shares.values()) + " %"
