"""`aliquot ps`."""

from __future__ import annotations

import pwd
import time
from typing import TYPE_CHECKING, Any

from aliquot import slices
from aliquot.cli.tables import console, new_table, percent, print_json
from aliquot.model import Hold, Life, format_bytes, format_share
from aliquot.slices.culprits import culprits

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aliquot.model import ComputeUse, Grant
    from aliquot.slices import Machine
    from aliquot.slices.control import SharedGpu

_WATCH_SECONDS = 1.0


def show_grants(*, json: bool, watch: bool) -> None:
    """Print every grant of every arbiter on this machine, once or again and again."""
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


def as_json(found: list[Machine]) -> dict[str, list[dict[str, object]]]:
    """All grants in one list and all GPUs in another, each with the machine it is of.

    They are in the arbiter's words, but for compute: there, units are seconds and ratios.
    """
    answer: dict[str, list[dict[str, object]]] = {"grants": [], "gpus": [], "machines": []}
    for machine in found:
        shape = machine.state.shape
        of = {"simulated": None if shape is None else str(shape)}
        words = dict(machine.seen.answer)
        told = zip(words.pop("grants"), machine.seen.grants, strict=True)
        answer["grants"] += [{**of, **_grant_as_json(one, grant)} for one, grant in told]
        answer["gpus"] += [{**of, **gpu} for gpu in words.pop("gpus")]
        del words["now_ns"], words["credit_cpu_ns"]
        cost = {"credit_cpu_seconds_total": machine.seen.credit_cpu_seconds}
        answer["machines"].append({**of, **words, **cost})
    return answer


def _grant_as_json(words: dict[str, Any], grant: Grant) -> dict[str, Any]:
    return {
        **words,
        "slices": [
            {
                **part,
                "compute_percent": part["compute_percent"] or None,
                "compute": _compute_as_json(part["compute_percent"], compute),
            }
            for part, compute in zip(words["slices"], grant.compute, strict=True)
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


def render(found: list[Machine]) -> RenderableType:
    """All machines as one thing to print."""
    from rich.console import Group  # noqa: PLC0415 - imported when needed

    users = {grant.owner_uid for machine in found for grant in machine.seen.grants}
    parts = [part for machine in found for part in _machine(machine, with_users=len(users) > 1)]
    return Group(*(parts or ["No grants: no arbiter runs here."]))


def _machine(machine: Machine, *, with_users: bool) -> list[RenderableType]:
    seen = machine.seen
    where = f"{machine} · {machine.state.directory}"
    if not seen.grants:
        return [f"{where}: no grants", *strangers(seen.gpus)]
    table = new_table(
        "Grant", *(["User"] if with_users else []),
        "GPU", "Used", "Limit", "Compute", "Got", "Policy", "Priority", "Processes",
        title=where,
    )  # fmt: skip
    indexes = {one.gpu.uuid: one.gpu.index for one in seen.gpus}
    for grant in sorted(seen.grants, key=lambda grant: (grant.created, grant.name)):
        for row in _rows(grant, indexes, with_users=with_users):
            table.add_row(*row)
    return [table, *culprits(seen), *strangers(seen.gpus)]


def _rows(grant: Grant, indexes: dict[str, int], *, with_users: bool) -> list[list[str]]:
    """One row per slice; the grant's own words stand in the first."""
    whose = [grant.name, *([_user(grant.owner_uid)] if with_users else [])]
    return [
        [
            *(whose if number == 0 else [""] * len(whose)),
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


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _processes(grant: Grant) -> str:
    if grant.broken is not None:
        return f"broken: {grant.broken}"
    words = [
        f"{process.name} ({process.pid}) {format_bytes(sum(u.used_bytes for u in process.use))}"
        + (" ending" if process.state == "ending" else "")
        for process in grant.processes
    ]
    words = words or ["its command has ended" if _is_over(grant) else "no GPU use yet"]
    return "\n".join([*_hold_words(grant), *words])


def _hold_words(grant: Grant) -> list[str]:
    """What stands above a grant's processes where it is not simply taken."""
    match grant.hold:
        case Hold.TAKEN:
            return []
        case Hold.OPEN:
            return ["being suspended or resumed"]
        case Hold.PARKED:
            return ["suspended"]


def _is_over(grant: Grant) -> bool:
    return not grant.owner_alive and grant.life is Life.OWNED


def strangers(gpus: tuple[SharedGpu, ...]) -> list[str]:
    """A sentence for every process that uses a GPU outside every grant."""
    return [
        f"{one.gpu}: {stranger.name} ({stranger.pid}) uses {_bytes(stranger.bytes)} outside Aliquot"
        for one in gpus
        for stranger in one.strangers
    ]


def _bytes(count: int | None) -> str:
    return "memory" if count is None else format_bytes(count)
