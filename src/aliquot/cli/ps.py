"""`aliquot ps`."""

from __future__ import annotations

import os
import pwd
import time
from typing import TYPE_CHECKING, Any

from aliquot import slices
from aliquot.cli.tables import NOTHING, console, new_table, percent, print_json
from aliquot.model import GrantState, Life, format_bytes, format_share
from aliquot.slices.share_problems import share_problems

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aliquot.model import ComputeUse, Grant
    from aliquot.slices import LocalMachine
    from aliquot.slices.control import SharedGpu

_WATCH_SECONDS = 1.0


def show_grants(*, json: bool, watch: bool) -> None:
    """Print every grant of every arbiter on this machine, once or every second."""
    if json:
        print_json(as_json(slices.machines()))
    elif watch:
        _watch()
    else:
        console().print(render(slices.machines()))


def _watch() -> None:
    from rich.live import Live  # noqa: PLC0415 - imported when needed

    with Live(console=console(), auto_refresh=False, screen=console().is_terminal) as live:
        try:
            while True:
                live.update(render(slices.machines()), refresh=True)
                time.sleep(_WATCH_SECONDS)
        except KeyboardInterrupt:
            return


def as_json(found: list[LocalMachine]) -> dict[str, list[dict[str, object]]]:
    """All grants in one list and all GPUs in another, each with its machine.

    They are the arbiter's reply, except for compute, which is in seconds and ratios here.
    """
    answer: dict[str, list[dict[str, object]]] = {"grants": [], "gpus": [], "machines": []}
    for machine in found:
        shape = machine.state.shape
        of = {"simulated": None if shape is None else str(shape)}
        reply = dict(machine.status.answer)
        pairs = zip(reply.pop("grants"), machine.status.grants, strict=True)
        answer["grants"] += [{**of, **_grant_as_json(one, grant)} for one, grant in pairs]
        answer["gpus"] += [{**of, **gpu} for gpu in reply.pop("gpus")]
        del reply["now_ns"], reply["credit_cpu_ns"]
        cost = {"credit_cpu_seconds_total": machine.status.credit_cpu_seconds}
        answer["machines"].append({**of, **reply, **cost})
    return answer


def _grant_as_json(reply: dict[str, Any], grant: Grant) -> dict[str, Any]:
    return {
        **reply,
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


def render(found: list[LocalMachine]) -> RenderableType:
    """All machines, ready to print."""
    from rich.console import Group  # noqa: PLC0415 - imported when needed

    users = {grant.owner_uid for machine in found for grant in machine.status.grants}
    others = bool(users - {os.geteuid()})
    parts = [part for machine in found for part in _machine(machine, with_users=others)]
    return Group(*(parts or ["No grants: no arbiter runs here."]))


def _machine(machine: LocalMachine, *, with_users: bool) -> list[RenderableType]:
    status = machine.status
    where = f"{machine} · {machine.state.directory}"
    if not status.grants:
        return [f"{where}: no grants", *strangers(status.gpus)]
    table = new_table(
        "Grant", *(["User"] if with_users else []),
        "GPU", "Used", "Limit", "Compute", "Got", "Policy", "Priority", "Processes",
        title=where,
    )  # fmt: skip
    indexes = {one.gpu.uuid: one.gpu.index for one in status.gpus}
    for grant in sorted(status.grants, key=lambda grant: (grant.created, grant.name)):
        for row in _rows(grant, indexes, with_users=with_users):
            table.add_row(*row)
    return [table, *share_problems(status), *strangers(status.gpus)]


def _rows(grant: Grant, indexes: dict[str, int], *, with_users: bool) -> list[list[str]]:
    """One row per slice; name, user and processes are in the first row of a grant."""
    first = [_name(grant), *([user_name(grant.owner_uid)] if with_users else [])]
    return [
        [
            *(first if number == 0 else [""] * len(first)),
            str(indexes.get(part.gpu_uuid, "?")),
            format_bytes(use.used_bytes),
            format_bytes(part.memory_bytes),
            format_share(part.compute_percent),
            percent(compute.got_ratio),
            str(part.policy),
            str(part.priority),
            _processes(grant) if number == 0 else "",
        ]
        for number, (part, use, compute) in enumerate(
            zip(grant.slices, grant.use, grant.compute, strict=True)
        )
    ]


def _name(grant: Grant) -> str:
    return NOTHING if grant.is_hidden else grant.plain_name


def grant_name(grant: Grant) -> str:
    """How to show a grant where its user has no column: `mine`, `alice:train`, `(alice)`."""
    if grant.owner_uid == os.geteuid():
        return grant.plain_name
    user = user_name(grant.owner_uid)
    return f"({user})" if grant.is_hidden else f"{user}:{grant.plain_name}"


def user_name(uid: int) -> str:
    """The name of a user, or else the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _processes(grant: Grant) -> str:
    if grant.is_hidden:
        return NOTHING
    if grant.broken is not None:
        return f"broken: {grant.broken}"
    lines = [
        f"{process.name} ({process.pid}) {format_bytes(sum(u.used_bytes for u in process.use))}"
        + (" ending" if process.state == "ending" else "")
        for process in grant.processes
    ]
    lines += [
        f"{process.name} ({process.pid}) {_bytes(process.bytes)} not joined"
        for process in grant.unjoined
    ]
    lines = lines or ["its command has ended" if _is_over(grant) else "no GPU use yet"]
    return "\n".join([*_state_lines(grant), *lines])


def _state_lines(grant: Grant) -> list[str]:
    """The lines above its processes: with which grants it runs, and its state if not active."""
    together = [] if grant.together is None else [f"together: {grant.together}"]
    match grant.state:
        case GrantState.ACTIVE:
            return together
        case GrantState.SWITCHING:
            return [*together, "switching: being frozen or thawed"]
        case GrantState.PARKED:
            return [*together, "parked"]


def _is_over(grant: Grant) -> bool:
    return not grant.owner_alive and grant.life is Life.OWNED


def strangers(gpus: tuple[SharedGpu, ...]) -> list[str]:
    """A sentence for every process that uses a GPU outside all grants."""
    return [
        f"{one.gpu}: {stranger.name} ({stranger.pid}) uses {_bytes(stranger.bytes)} outside Aliquot"
        for one in gpus
        for stranger in one.strangers
    ]


def _bytes(count: int | None) -> str:
    return "memory" if count is None else format_bytes(count)
