"""`aliquot ps`."""

from __future__ import annotations

import pwd
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aliquot import slices
from aliquot.cli.screen import Screen
from aliquot.cli.tables import (
    NOTHING,
    Column,
    Output,
    age,
    figures,
    is_terminal,
    laid_out,
    percent,
    print_json,
    print_note,
    print_text,
    show_rows,
    styled,
    terminal_width,
    used_of,
    wrapped,
)
from aliquot.devices import Sensors, parse_shape
from aliquot.model import (
    GrantState,
    format_bytes,
    format_count,
    format_duration,
    format_share,
)
from aliquot.slices.grant_facts import RUNNING, command_of, notes, state_of, telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.devices import Shape, Telemetry
    from aliquot.model import ComputeUse, Gpu, Grant, Slice, SliceUse
    from aliquot.slices import LocalMachine, Survey

NO_GRANTS = "No grants. To start one: aliquot run --memory 8GiB -- COMMAND"

IDLE_SECONDS = 60.0  # until a slice is shown as idle

_WATCH_SECONDS = 1.0
_WATCH_TIMEOUT = 2.0


def short_command(command: str) -> str:
    """The command without the folder of its program."""
    program, space, rest = command.partition(" ")
    return f"{program.rpartition('/')[2]}{space}{rest}"


def _first_pid(pids: str) -> str:
    first, *others = pids.split(",")
    return f"{first} +{len(others)}" if others else first


_NAME = (Column("name", "Grant", least=8), Column("user", "User", least=6))
_SIZE = (
    Column("gpu", "GPU", right=True, drop=3),
    Column("memory", "Memory", right=True, drop=1),
    Column("compute", "Compute", right=True, drop=2),
    Column("policy", "Policy", drop=20),
    Column("priority", "Priority", drop=19),
)
_MACHINE = Column("machine", "Machine", drop=18, short=lambda text: text.split()[-1])
_TOGETHER = Column("together", "Together", drop=16)
AWAY = Column("away", "Away", right=True, drop=5)  # memory on the host
ON_HOST = Column("on_host", "On host", right=True, drop=5)  # in place of the GPU's (--spill)
_IDLE = Column("idle", "Idle", right=True, drop=6)
_PROCESS = (
    Column("pid", "PID", drop=9, short=_first_pid),
    Column("age", "Age", drop=10, right=True),
    Column("command", "Command", drop=8, least=10, short=short_command),
)
_NAMED_KEYS = (
    "used",
    "limit",
    "share",
    "got",
    "uid",
    "uuid",
    "together",
    "machine",
    "away",
    "fixed",
    "on_host",
    "idle",
    "parked",
)
_NAMED = tuple(Column(key, key, only_named=True) for key in _NAMED_KEYS)


def show_grants(simulate: str | None, output: Output, *, watch: bool) -> bool:
    """Print the grants of the arbiters that run here, once or every second.

    False: an arbiter does not answer, so that its grants are missing.
    """
    shape = parse_shape(simulate) if simulate else None
    if watch:
        _watch(shape, output)
        return True
    asked = slices.survey(shape)
    if output.json:
        print_json(as_json(asked))
    elif output.template is not None:
        show_rows(columns([], named=True), grant_rows(asked.found), output)
    else:
        _print(asked, output)
    for one in asked.silent if not is_terminal() or output.json or output.template else ():
        print_note(one.error.message)
    return not asked.silent


def _print(asked: Survey, output: Output) -> None:
    width = None if output.no_trunc else terminal_width()
    if is_terminal():
        print_text("".join(f"{line}\n" for line in lines(asked, Sensors(), width)))
        return
    rows = grant_rows(asked.found)
    show_rows(columns(rows), rows, output)
    for note in notes(asked.found):
        print_note(note)


def _watch(shape: Shape | None, output: Output) -> None:
    sensors = Sensors()
    with Screen() as screen:
        while True:
            asked = slices.survey(shape, _WATCH_TIMEOUT)
            width = None if output.no_trunc else terminal_width()
            screen.draw(lines(asked, sensors, width))
            if screen.ends_within(_WATCH_SECONDS):
                return


def lines(asked: Survey, sensors: Sensors, width: int | None) -> list[str]:
    """All machines for a terminal: the GPUs in use, the grants, then what needs attention."""
    rows = grant_rows(asked.found)
    shown = [line for machine in asked.found for line in _gpu_lines(machine, sensors, width)]
    if rows:
        header, *table = laid_out(columns(rows), rows, width)
        shown += [*([""] if shown else []), styled(header, "1"), *table]
    elif not asked.silent:
        shown += [NO_GRANTS]
    more = [*notes(asked.found), *(f"{one.error}" for one in asked.silent)]
    return shown + [line for note in more for line in wrapped(note, width)]


def columns(rows: list[dict[str, str]], *, named: bool = False) -> list[Column]:
    """The columns of these rows. A state that all share is the first to be left out."""
    same = all(row["state"] == RUNNING for row in rows)
    simulated = any(row["machine"] != "this machine" for row in rows)
    joined = any(row["together"] != NOTHING for row in rows)
    return [
        *_NAME,
        *([_MACHINE] if simulated else []),
        *_SIZE,
        *(one for one in (AWAY, ON_HOST) if any(row[one.key] != NOTHING for row in rows)),
        *([_TOGETHER] if joined else []),
        Column("state", "State", drop=17 if same else 7),
        *([_IDLE] if any(row["idle"] != NOTHING for row in rows) else []),
        *_PROCESS,
        *(_NAMED if named else ()),
    ]


def _gpu_lines(machine: LocalMachine, sensors: Sensors, width: int | None) -> Iterator[str]:
    """A line for each GPU that has slices."""
    used = {part.gpu_uuid for grant in machine.status.grants for part in grant.slices}
    found = telemetry(machine, sensors) if used else {}
    kind = "" if machine.state.shape is None else "simulated "
    for one in machine.status.gpus:
        if one.gpu.uuid in used:
            parts = gpu_figures(one.gpu, found.get(one.gpu.uuid))
            yield from figures([f"{kind}{one.gpu} {one.gpu.model}", *parts], width)


def gpu_figures(gpu: Gpu, found: Telemetry | None) -> Iterator[str]:
    """Memory in use, and what the driver says of utilisation, power, temperature and clock."""
    yield f"{used_of(gpu.used_bytes, gpu.memory_bytes)} used"
    if found is None:
        return
    if found.busy_ratio is not None:
        yield f"{found.busy_ratio:.0%} busy"
    if (power := power_text(found)) != NOTHING:
        yield power
    if found.celsius is not None:
        yield f"{found.celsius} °C"
    if found.clock_mhz is not None:
        yield f"{found.clock_mhz} MHz"


def power_text(found: Telemetry) -> str:
    """The power of a GPU, and its limit."""
    if found.power_watts is None:
        return NOTHING
    if found.power_limit_watts is None:
        return f"{found.power_watts:.0f} W"
    return f"{found.power_watts:.0f}/{found.power_limit_watts:.0f} W"


def as_json(asked: Survey) -> dict[str, list[dict[str, object]]]:
    """All grants in one list and all GPUs in another, each with its machine.

    They are the arbiter's reply, except for compute, which is in seconds and ratios here.
    """
    answer: dict[str, list[dict[str, object]]] = {"grants": [], "gpus": [], "machines": []}
    answer["silent"] = [
        {
            "simulated": None if one.state.shape is None else str(one.state.shape),
            "state": str(one.state.directory),
            "error": one.error.message,
        }
        for one in asked.silent
    ]
    sensors = Sensors()
    for machine in asked.found:
        known = telemetry(machine, sensors)
        shape = machine.state.shape
        of = {"simulated": None if shape is None else str(shape)}
        reply = dict(machine.status.answer)
        pairs = zip(reply.pop("grants"), machine.status.grants, strict=True)
        answer["grants"] += [{**of, **_grant_as_json(one, grant)} for one, grant in pairs]
        answer["gpus"] += [
            {**of, **gpu, "telemetry": _telemetry_as_json(known.get(gpu["uuid"]))}
            for gpu in reply.pop("gpus")
        ]
        del reply["now_ns"], reply["credit_cpu_ns"]
        cost = {"credit_cpu_seconds_total": machine.status.credit_cpu_seconds}
        answer["machines"].append({**of, **reply, **cost})
    return answer


def _telemetry_as_json(found: Telemetry | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _grant_as_json(reply: dict[str, Any], grant: Grant) -> dict[str, Any]:
    return {
        **reply,
        "user": user_name(grant.owner_uid),
        "command": None if grant.is_hidden else command_of(grant) or None,
        "slices": [
            {
                **part,
                "compute_percent": part["compute_percent"] or None,
                "compute": _compute_as_json(part["compute_percent"], compute),
            }
            for part, compute in zip(reply["slices"], grant.compute, strict=True)
        ],
    }


def _compute_as_json(asked_percent: int, compute: ComputeUse) -> dict[str, Any]:
    return {
        "asked_ratio": asked_percent / 100 or None,
        "weight_ratio": compute.weight_percent / 100,
        "got_ratio": compute.got_ratio,
        "used_seconds_total": compute.used_seconds,
        "idle_seconds": compute.idle_seconds,
        "handovers_total": compute.handovers,
        "fallbacks_total": compute.fallbacks,
        "backlog_quanta": compute.backlog_quanta,
        "wait_seconds": {
            "p50": compute.wait_p50_seconds,
            "p99": compute.wait_p99_seconds,
            "count": compute.waits,
            "sum": compute.waited_seconds,
        },
        "state": str(compute.turn),
        "gates": str(compute.gates),
        "why": compute.why or None,
    }


def grant_rows(found: tuple[LocalMachine, ...]) -> list[dict[str, str]]:
    """One row for each slice; oldest grant first."""
    now = time.time()
    return [
        row
        for machine in found
        for grant in sorted(machine.status.grants, key=lambda grant: (grant.created, grant.name))
        for row in _rows(machine, grant, now)
    ]


def _rows(machine: LocalMachine, grant: Grant, now: float) -> Iterator[dict[str, str]]:
    indexes = {one.gpu.uuid: one.gpu.index for one in machine.status.gpus}
    of_grant = {
        "name": NOTHING if grant.is_hidden else grant.plain_name,
        "user": user_name(grant.owner_uid),
        "uid": str(grant.owner_uid),
        "machine": str(machine),
        "state": state_of(grant),
        "pid": pids_of(grant),
        "age": age(now - grant.created),
        "command": NOTHING if grant.is_hidden else command_of(grant) or NOTHING,
        "together": grant.together or NOTHING,
        "away": away_of(grant),
        "fixed": format_bytes(grant.fixed_bytes) if grant.is_swappable else NOTHING,
        "parked": parked_of(grant),
        "on_host": on_host_of(grant),
    }
    for part, use, compute in zip(grant.slices, grant.use, grant.compute, strict=True):
        yield {
            **of_grant,
            **_slice_cells(part, use, compute),
            "idle": _idle_of(grant, compute),
            "gpu": str(indexes.get(part.gpu_uuid, "?")),
        }


def _slice_cells(part: Slice, use: SliceUse, compute: ComputeUse) -> dict[str, str]:
    share, got = format_share(part.compute_percent), percent(compute.got_ratio)
    return {
        "memory": used_of(use.used_bytes, part.memory_bytes),
        "used": format_bytes(use.used_bytes),
        "limit": format_bytes(part.memory_bytes),
        "compute": f"{got}/{share}",
        "share": share,
        "got": got,
        "policy": str(part.policy),
        "priority": str(part.priority),
        "uuid": part.gpu_uuid,
    }


def _idle_of(grant: Grant, compute: ComputeUse) -> str:
    """For how long a slice has had no GPU work, from `IDLE_SECONDS` on."""
    seconds = compute.idle_seconds if grant.state is GrantState.ACTIVE else None
    return NOTHING if seconds is None or seconds < IDLE_SECONDS else age(seconds)


def pids_of(grant: Grant) -> str:
    """Its processes: the command first."""
    if grant.is_hidden:
        return NOTHING
    owner = [grant.owner_pid] if grant.owner_pid and grant.owner_alive else []
    joined = [one.pid for one in grant.processes] + [one.pid for one in grant.unjoined]
    return ",".join(map(str, dict.fromkeys([*owner, *joined]))) or NOTHING


def parked_of(grant: Grant) -> str:
    """How long it was parked because it was idle, in all, and how often; a dash if it never is."""
    if grant.parking is None:
        return NOTHING
    return f"{format_duration(grant.parking.seconds)}, {format_count(grant.parking.times, 'time')}"


def away_of(grant: Grant) -> str:
    """How much of its memory is on the host; a dash if it cannot leave the GPU."""
    known = grant.is_swappable and not grant.is_hidden
    return format_bytes(grant.away_bytes) if known else NOTHING


def on_host_of(grant: Grant) -> str:
    """What it has of the host because its slice is full, and may have; a dash without --spill."""
    return used_of(grant.on_host_bytes, grant.spill_bytes) if grant.spill_bytes else NOTHING


def user_name(uid: int) -> str:
    """The name of a user, or else the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
