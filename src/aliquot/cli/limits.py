"""`aliquot limits`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.ps import user_name
from aliquot.cli.tables import console, new_table, print_json
from aliquot.devices import parse_shape
from aliquot.model import format_bytes
from aliquot.slices.control import NoArbiterError
from aliquot.slices.user_limits import read_limits

if TYPE_CHECKING:
    from aliquot.slices.user_limits import LimitsReport, UserLimits

NO_LIMIT = "no limit"


def show_limits(simulate: str | None, *, reload: bool, json: bool) -> None:
    """Print limits and use of this user, or of all for root; `reload`: read the file first."""
    state = slices.locate(parse_shape(simulate) if simulate else None)
    try:
        report = read_limits(state.directory, again=reload)
    except NoArbiterError:
        if reload or json:
            raise
        console().print("No arbiter runs here; `aliquot run` starts one.")
        return
    if json:
        print_json(report.answer)
    else:
        _print(report)


def _print(report: LimitsReport) -> None:
    if report.users:
        table = new_table("User", "Memory", "Compute", "Grants")
        for one in sorted(report.users, key=lambda one: one.uid):
            table.add_row(user_name(one.uid), *_cells(one))
        console().print(table)
    if report.problem is not None:
        console().print(f"Users get nothing new until root corrects this: {report.problem}")
    elif report.file is None:
        console().print("This arbiter has no file of limits.")
    else:
        console().print(f"Root sets the limits in {report.file}.")


def _cells(one: UserLimits) -> tuple[str, str, str]:
    memory = NO_LIMIT if one.memory_bytes is None else f"of {format_bytes(one.memory_bytes)}"
    compute = NO_LIMIT if one.compute_percent is None else f"of {one.compute_percent}%"
    grants = NO_LIMIT if one.grants is None else f"of {one.grants}"
    return (
        f"{format_bytes(one.used_memory_bytes)} {_joined(memory)}",
        f"{one.used_compute_percent}% {_joined(compute)}",
        f"{one.used_grants} {_joined(grants)}",
    )


def _joined(limit: str) -> str:
    return f"({limit})" if limit == NO_LIMIT else limit
