"""`aliquot ps`."""

from __future__ import annotations

import pwd
import time
from typing import TYPE_CHECKING, Any

from aliquot import slices
from aliquot.cli.tables import console, new_table, print_json
from aliquot.model import format_bytes
from aliquot.slices import control

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aliquot.model import Grant
    from aliquot.slices import State
    from aliquot.slices.control import SharedGpu, Status

_WATCH_SECONDS = 1.0

Machine = tuple["State", "Status"]


def show_grants(*, json: bool, watch: bool) -> None:
    """Print every grant of every arbiter on this machine, once or again and again."""
    if json:
        print_json(_as_json(machines()))
    elif watch:
        _watch()
    else:
        console().print(render(machines()))


def machines() -> list[Machine]:
    """The state directories with an arbiter, and what it knows."""
    found = []
    for state in slices.running():
        try:
            found.append((state, control.status(state.directory)))
        except control.NoArbiterError:
            continue  # it ended between our two looks
    return found


def _watch() -> None:
    from rich.live import Live  # noqa: PLC0415 - imported when needed

    with Live(console=console(), auto_refresh=False, screen=console().is_terminal) as live:
        try:
            while True:
                live.update(render(machines()), refresh=True)
                time.sleep(_WATCH_SECONDS)
        except KeyboardInterrupt:
            return


def _as_json(found: list[Machine]) -> dict[str, list[dict[str, object]]]:
    """All grants in one list and all GPUs in another, each with the machine it is of."""
    answer: dict[str, list[dict[str, object]]] = {"grants": [], "gpus": [], "machines": []}
    for state, seen in found:
        of = {"simulated": None if state.shape is None else str(state.shape)}
        words = dict(seen.answer)
        answer["grants"] += [{**of, **_grant_as_json(grant)} for grant in words.pop("grants")]
        answer["gpus"] += [{**of, **gpu} for gpu in words.pop("gpus")]
        answer["machines"].append({**of, **words})
    return answer


def _grant_as_json(grant: dict[str, Any]) -> dict[str, Any]:
    """A grant in the arbiter's words, but for compute: no percentage is an equal part."""
    return {
        **grant,
        "slices": [
            {**part, "compute_percent": part["compute_percent"] or None} for part in grant["slices"]
        ],
    }


def render(found: list[Machine]) -> RenderableType:
    """All machines as one thing to print."""
    from rich.console import Group  # noqa: PLC0415 - imported when needed

    users = {grant.owner_uid for _, seen in found for grant in seen.grants}
    parts = [part for where in found for part in _machine(*where, with_users=len(users) > 1)]
    return Group(*(parts or ["No grants: no arbiter runs here."]))


def _machine(state: State, seen: Status, *, with_users: bool) -> list[RenderableType]:
    label = "this machine" if state.shape is None else f"simulated {state.shape}"
    where = f"{label} · {state.directory}"
    if not seen.grants:
        return [f"{where}: no grants", *_strangers(seen.gpus)]
    table = new_table(
        "Grant", *(["User"] if with_users else []),
        "GPU", "Used", "Limit", "Compute", "Policy", "Priority", "Processes",
        title=where,
    )  # fmt: skip
    indexes = {one.gpu.uuid: one.gpu.index for one in seen.gpus}
    for grant in sorted(seen.grants, key=lambda grant: (grant.created, grant.name)):
        for row in _rows(grant, indexes, with_users=with_users):
            table.add_row(*row)
    return [table, *_strangers(seen.gpus)]


def _rows(grant: Grant, indexes: dict[str, int], *, with_users: bool) -> list[list[str]]:
    """One row per slice; the grant's own words stand in the first."""
    whose = [grant.name, *([_user(grant.owner_uid)] if with_users else [])]
    rows = []
    for number, (part, use) in enumerate(zip(grant.slices, grant.use, strict=True)):
        rows.append(
            [
                *(whose if number == 0 else [""] * len(whose)),
                str(indexes.get(part.gpu_uuid, "?")),
                format_bytes(use.used_bytes),
                format_bytes(part.memory_bytes),
                f"{part.compute_percent}%" if part.compute_percent else "equal",
                str(part.policy),
                str(part.priority),
                _processes(grant) if number == 0 else "",
            ]
        )
    return rows


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
    return "\n".join(words) or ("no GPU use yet" if grant.owner_alive else "its command has ended")


def _strangers(gpus: tuple[SharedGpu, ...]) -> list[RenderableType]:
    return [
        f"{one.gpu}: {stranger.name} ({stranger.pid}) uses {_bytes(stranger.bytes)} outside Aliquot"
        for one in gpus
        for stranger in one.strangers
    ]


def _bytes(count: int | None) -> str:
    return "memory" if count is None else format_bytes(count)
