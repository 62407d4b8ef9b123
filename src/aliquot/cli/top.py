"""`aliquot top`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.keys import END_KEYS
from aliquot.cli.ps import (
    AWAY,
    NO_GRANTS,
    ON_HOST,
    away_of,
    gpu_figures,
    on_host_of,
    parked_of,
    pids_of,
    power_text,
    short_command,
    user_name,
)
from aliquot.cli.screen import Screen
from aliquot.cli.tables import (
    NOTHING,
    Column,
    age,
    cut,
    figures,
    flush,
    is_terminal,
    laid_out,
    milliseconds,
    percent,
    print_text,
    rate,
    styled,
    terminal_size,
    used_of,
    wrapped,
)
from aliquot.devices import Sensors, parse_shape
from aliquot.model import (
    Gates,
    GrantState,
    Policy,
    Priority,
    format_bytes,
    format_count,
    format_share,
)
from aliquot.slices.grant_facts import command_of, notes, state_of, telemetry
from aliquot.slices.rates import Rates, credit_cpu_ratio, key, slice_rates
from aliquot.slices.share_problems import share_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from aliquot.devices import Shape, Telemetry
    from aliquot.model import ComputeUse, Grant, Slice, SliceUse
    from aliquot.slices import LocalMachine, SilentMachine
    from aliquot.slices.arbiter_status import SharedGpu, Status

COLUMNS = (
    Column("grant", "Grant", least=8),
    Column("user", "User", least=6),
    Column("pid", "PID", drop=6, short=lambda pids: pids.partition(",")[0]),
    Column("share", "Share", right=True, drop=2),
    Column("got", "Got", right=True),
    Column("memory", "Memory", right=True, drop=1),
    AWAY,
    ON_HOST,
    Column("backlog", "Backlog", right=True, drop=10),
    Column("handovers", "Handovers/s", right=True, drop=12),
    Column("waits", "Wait p50/p99, ms", right=True, drop=11),
    Column("fallbacks", "Fallbacks", right=True, drop=9),
    Column("state", "State", drop=4),
    Column("age", "Age", right=True, drop=8),
    Column("command", "Command", least=10, drop=7, short=short_command),
)
HELP = "q quit · ↑↓ scroll · sort: g gpu c compute m memory u user a age · / filter"

_TIMEOUT = 2.0  # seconds for an arbiter's answer; then it counts as silent
_FULL, _EMPTY = "█", "░"
_BAR_MOST = 30
_CHROME = 3  # lines around the body: the title, the mark below it, and the help


@dataclass(frozen=True, slots=True)
class SliceRow:
    """One slice, and what it got since the last refresh."""

    grant: Grant
    part: Slice
    use: SliceUse
    compute: ComputeUse
    rates: Rates

    def cells(self, now: float) -> dict[str, str]:
        """Its values for COLUMNS."""
        compute = self.compute
        waits = (compute.wait_p50_seconds, compute.wait_p99_seconds)
        return {
            "grant": NOTHING if self.grant.is_hidden else self.grant.plain_name,
            "user": user_name(self.grant.owner_uid),
            "pid": pids_of(self.grant),
            "share": self.asked,
            "got": percent(self.rates.got_ratio),
            "memory": used_of(self.use.used_bytes, self.part.memory_bytes),
            "away": away_of(self.grant),
            "on_host": on_host_of(self.grant),
            "backlog": str(compute.backlog_quanta),
            "handovers": rate(self.rates.handovers_per_second),
            "waits": "/".join(map(milliseconds, waits)),
            "fallbacks": str(compute.fallbacks),
            "state": self.state,
            "age": age(now - self.grant.created),
            "command": NOTHING if self.grant.is_hidden else command_of(self.grant) or NOTHING,
        }

    @property
    def name(self) -> str:
        """The user and the name of its grant, to sort by."""
        return f"{user_name(self.grant.owner_uid)}:{self.grant.plain_name}"

    @property
    def state(self) -> str:
        """What keeps its grant from running, or else its state in the turns."""
        if (state := state_of(self.grant)) in {"stopped", "broken", "ended"}:
            return state
        if self.grant.state is not GrantState.ACTIVE:
            return str(self.grant.state)
        return "no gates" if self.compute.gates is Gates.FAIL else str(self.compute.turn)

    @property
    def asked(self) -> str:
        """The share, and the policy and the priority if they are not the defaults."""
        words = [format_share(self.part.compute_percent)]
        words += [str(self.part.policy)] if self.part.policy is not Policy.ELASTIC else []
        words += [str(self.part.priority)] if self.part.priority is not Priority.NORMAL else []
        return " ".join(words)


SORTS: dict[str, tuple[str, Callable[[SliceRow], tuple[float, str]]]] = {
    "g": ("gpu", lambda row: (row.grant.created, row.name)),
    "c": ("compute", lambda row: (-(row.rates.got_ratio or 0.0), row.name)),
    "m": ("memory", lambda row: (-row.use.used_bytes, row.name)),
    "u": ("user", lambda row: (0, row.name)),
    "a": ("age", lambda row: (-row.grant.created, row.name)),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user has chosen by keys: the order, the filter, and the first line shown.

    `typing`: the keys go into the filter.
    """

    sort: str = "g"
    wanted: str = ""
    typing: bool = False
    first: int = 0

    def after(self, pressed: str, page: int) -> Choice:
        """The choice after a key; `page` is how many lines fit."""
        if self.typing:
            return self._typed(pressed)
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page}
        if pressed in moves:
            return replace(self, first=max(0, self.first + moves[pressed]))
        if pressed in {"home", "end"}:
            return replace(self, first=0 if pressed == "home" else _LAST)
        if pressed in SORTS:
            return replace(self, sort=pressed, first=0)
        if pressed == "/":
            return replace(self, typing=True, wanted="", first=0)
        return replace(self, wanted="") if pressed == "escape" else self

    def _typed(self, pressed: str) -> Choice:
        match pressed:
            case "enter":
                return replace(self, typing=False)
            case "escape":
                return replace(self, typing=False, wanted="")
            case "backspace":
                return replace(self, wanted=self.wanted[:-1])
            case _:
                return replace(self, wanted=self.wanted + pressed) if len(pressed) == 1 else self

    def shows(self, cells: Mapping[str, str]) -> bool:
        """Whether the filter is in the name, the user, a PID, the state or the command."""
        words = (cells[key] for key in ("grant", "user", "pid", "state", "command"))
        return self.wanted.lower() in " ".join(words).lower()


_LAST = 1 << 30


@dataclass(frozen=True, slots=True)
class Refresh:
    """All machines at one time, and the arbiters that do not answer."""

    views: list[MachineView]
    silent: tuple[SilentMachine, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineView:
    """One machine at this refresh; `before` is its status at the last one, or None."""

    machine: LocalMachine
    before: Status | None
    telemetry: Mapping[str, Telemetry] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """The status at this refresh."""
        return self.machine.status

    @property
    def credit_cpu(self) -> str:
        """The share of one processor core that the credit thread uses."""
        return percent(credit_cpu_ratio(self.before, self.status))

    def rows(self, gpu_uuid: str) -> list[SliceRow]:
        """The slices of a GPU, oldest grant first."""
        rates = slice_rates(self.before, self.status)
        return [
            SliceRow(grant, part, use, compute, rates[key(grant, part.gpu_uuid)])
            for grant in sorted(self.status.grants, key=lambda grant: (grant.created, grant.name))
            for part, use, compute in zip(grant.slices, grant.use, grant.compute, strict=True)
            if part.gpu_uuid == gpu_uuid
        ]


def show_top(interval: float, count: int | None, simulate: str | None) -> None:
    """Show every GPU and its slices, until `count` refreshes, a key or Ctrl-C."""
    shape = parse_shape(simulate) if simulate else None
    if is_terminal() and count is None:
        _live(interval, shape)
        return
    try:
        _counted(interval, count, shape)
    except KeyboardInterrupt:
        return


def _live(interval: float, shape: Shape | None) -> None:
    refreshes, choice = _refreshes(shape), Choice()
    with Screen() as screen:
        refresh, due = next(refreshes), time.monotonic() + interval
        while True:
            choice = _draw(screen, refresh, choice)
            pressed = screen.keys_within(due - time.monotonic())
            for one in pressed:
                if one in END_KEYS and not choice.typing:
                    return
                choice = choice.after(one, _body_lines())
            if time.monotonic() >= due:
                refresh, due = next(refreshes), time.monotonic() + interval


def _body_lines() -> int:
    size = terminal_size()
    return 1 if size is None else max(1, size.lines - _CHROME)


def _draw(screen: Screen, refresh: Refresh, choice: Choice) -> Choice:
    """Draw what fits; returns the choice with a first line that exists."""
    size = terminal_size()
    width = 80 if size is None else size.columns
    body, page = body_lines(refresh, choice, width), _body_lines()
    first = min(choice.first, max(0, len(body) - page))
    below = len(body) - first - page
    marks = [f"↑ {format_count(first, 'line')} above"] if first else []
    marks += [f"↓ {format_count(below, 'line')} below"] if below > 0 else []
    shown = body[first : first + page]
    shown += [""] * (page - len(shown))
    screen.draw(
        [
            styled(cut(_title(refresh, choice), width), "7"),
            *shown,
            styled(cut(" · ".join(marks), width), "1"),
            styled(cut(_help(choice), width), "2"),
        ]
    )
    return replace(choice, first=first)


def _title(refresh: Refresh, choice: Choice) -> str:
    gpus = sum(len(view.status.gpus) for view in refresh.views)
    grants = sum(len(view.status.grants) for view in refresh.views)
    words = [
        f"aliquot top {time.strftime('%H:%M:%S')}",
        format_count(gpus, "GPU"),
        format_count(grants, "grant"),
        f"by {SORTS[choice.sort][0]}",
    ]
    words += [f"filter: {choice.wanted}"] if choice.wanted and not choice.typing else []
    return " · ".join(words)


def _help(choice: Choice) -> str:
    if choice.typing:
        return f"filter by name, user, PID, state or command: {choice.wanted}_  (Enter, Escape)"
    return f"{HELP} · Escape shows all" if choice.wanted else HELP


def _counted(interval: float, count: int | None, shape: Shape | None) -> None:
    """So many refreshes, each below the last: tables on a terminal, else one line per slice."""
    refreshes = _refreshes(shape)
    next(refreshes)
    for _ in repeat(None) if count is None else repeat(None, count):
        time.sleep(interval)
        refresh = next(refreshes)
        size = terminal_size()
        shown = (
            lines(refresh, datetime.now().astimezone())
            if size is None
            else body_lines(refresh, Choice(), size.columns)
        )
        print_text("".join(f"{line}\n" for line in shown))
        flush()


def _refreshes(shape: Shape | None) -> Iterator[Refresh]:
    """Read all machines; each refresh has the status of the one before it."""
    before: dict[Path, Status] = {}
    sensors = Sensors()
    while True:
        asked = slices.survey(shape, _TIMEOUT)
        yield Refresh(
            [
                MachineView(
                    machine, before.get(machine.state.directory), telemetry(machine, sensors)
                )
                for machine in asked.found
            ],
            asked.silent,
        )
        before = {machine.state.directory: machine.status for machine in asked.found}


def body_lines(refresh: Refresh, choice: Choice, width: int) -> list[str]:
    """All machines, as lines for a terminal."""
    shown = [line for view in refresh.views for line in _machine(view, choice, width)]
    if not refresh.views and not refresh.silent:
        shown += [NO_GRANTS]
    for one in refresh.silent:
        shown += wrapped(str(one.error), width)
    return shown


def _machine(view: MachineView, choice: Choice, width: int) -> Iterator[str]:
    now = time.time()
    title = f"{view.machine} · arbiter {view.status.pid} · credit {view.credit_cpu} of a core"
    yield from wrapped(title, width)
    for one in view.status.gpus:
        rows = sorted(view.rows(one.gpu.uuid), key=SORTS[choice.sort][1])
        found = [cells for row in rows if choice.shows(cells := row.cells(now))]
        yield ""
        yield from _gpu(one, view.telemetry.get(one.gpu.uuid), width)
        if found:
            unused = [
                one for one in (AWAY, ON_HOST) if all(cells[one.key] == NOTHING for cells in found)
            ]
            shown = [one for one in COLUMNS if one not in unused]
            header, *lines = laid_out(shown, found, width)
            yield from (styled(header, "1"), *lines)
        else:
            yield "no slices" if not rows else "no slices that the filter shows"
    about = [line for note in notes((view.machine,)) for line in wrapped(note, width)]
    yield from (["", *about] if about else [])


def _gpu(one: SharedGpu, found: Telemetry | None, width: int) -> Iterator[str]:
    """The GPU's name and figures, and bars of its utilisation and memory."""
    turns = "contended" if one.contended else "not contended"
    _, *parts = gpu_figures(one.gpu, found)
    yield from figures([f"{one.gpu} {one.gpu.model}", *parts, turns], width)
    used = format_bytes(one.gpu.used_bytes), format_bytes(one.gpu.memory_bytes)
    bars = [("memory", one.gpu.used_bytes / max(1, one.gpu.memory_bytes), " of ".join(used))]
    if found is not None and found.busy_ratio is not None:
        bars.insert(0, ("busy", found.busy_ratio, f"{found.busy_ratio:.0%}"))
    ends = sum(len(label) + len(text) + 4 for label, _, text in bars)
    long = max(4, min(_BAR_MOST, (width - ends) // len(bars)))
    yield from wrapped(
        "  ".join(f"{name} {bar(part, long)} {text}" for name, part, text in bars), width
    )


def bar(ratio: float, width: int) -> str:
    """A bar that is full at 1."""
    full = round(min(1.0, max(0.0, ratio)) * width)
    return _FULL * full + _EMPTY * (width - full)


def lines(refresh: Refresh, now: datetime) -> Iterator[str]:
    """One line per slice: the time, then NAME=VALUE pairs; then the problems."""
    stamp = now.isoformat(timespec="milliseconds")
    for silent in refresh.silent:
        yield f"{stamp} {silent.error.message}"
    for view in refresh.views:
        for one in view.status.gpus:
            for row in view.rows(one.gpu.uuid):
                yield " ".join([stamp, *_pairs(view, one, row)])
        for sentence in share_problems(view.status):
            yield f"{stamp} {sentence}"


def _pairs(view: MachineView, one: SharedGpu, row: SliceRow) -> Iterator[str]:
    shape = view.machine.state.shape
    now = view.telemetry.get(one.gpu.uuid)
    if shape is not None:
        yield f"simulated={shape}"
    compute, rates = row.compute, row.rates
    values = {
        "gpu": one.gpu.index,
        "grant": row.grant.name,
        "user": user_name(row.grant.owner_uid),
        "pid": pids_of(row.grant),
        "asked": format_share(row.part.compute_percent),
        "got": percent(rates.got_ratio),
        "memory_used_bytes": row.use.used_bytes,
        "memory_limit_bytes": row.part.memory_bytes,
        "memory_away_bytes": row.grant.away_bytes,
        "memory_fixed_bytes": row.grant.fixed_bytes,
        "memory_on_host_bytes": row.grant.on_host_bytes,
        "parked": parked_of(row.grant),
        "backlog": compute.backlog_quanta,
        "handovers_per_second": rate(rates.handovers_per_second),
        "wait_p50_seconds": _seconds(compute.wait_p50_seconds),
        "wait_p99_seconds": _seconds(compute.wait_p99_seconds),
        "fallbacks": compute.fallbacks,
        "policy": row.part.policy,
        "priority": row.part.priority,
        "state": "stopped" if row.state == "stopped" else compute.turn,
        "grant_state": row.grant.state,
        "gates": compute.gates,
        "contended": "yes" if one.contended else "no",
        "gpu_busy": NOTHING if now is None else percent(now.busy_ratio),
        "gpu_power": NOTHING if now is None else power_text(now).replace(" ", ""),
        "gpu_celsius": NOTHING if now is None or now.celsius is None else now.celsius,
        "gpu_mhz": NOTHING if now is None or now.clock_mhz is None else now.clock_mhz,
    }
    yield from (f"{name}={'-' if value == NOTHING else value}" for name, value in values.items())


def _seconds(time: float | None) -> str:
    return NOTHING if time is None else f"{time:.6f}"
