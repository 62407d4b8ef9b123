"""`aliquot limits`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.ps import user_name
from aliquot.cli.tables import Column, Output, print_json, print_note, print_text, show_rows
from aliquot.devices import parse_shape
from aliquot.model import format_bytes
from aliquot.slices.control import NoArbiterError
from aliquot.slices.user_limits import read_limits

if TYPE_CHECKING:
    from aliquot.slices.user_limits import LimitsReport, UserLimits

NO_LIMIT = "no limit"
COLUMNS = (
    Column("user", "User", least=8),
    Column("memory", "Memory"),
    Column("compute", "Compute"),
    Column("grants", "Grants", drop=1),
    Column("uid", "UID", only_named=True),
)


def show_limits(simulate: str | None, output: Output, *, reload: bool) -> None:
    """Print limits and use of this user, or of all for root; `reload`: read the file first."""
    state = slices.locate(parse_shape(simulate) if simulate else None)
    try:
        report = read_limits(state.directory, again=reload)
    except NoArbiterError:
        if reload or output.json:
            raise
        print_text("No arbiter runs here; `aliquot run` starts one.\n")
        return
    if output.json:
        print_json(report.answer)
    else:
        _print(report, output)


def _print(report: LimitsReport, output: Output) -> None:
    if report.users or output.template is not None:
        users = sorted(report.users, key=lambda one: one.uid)
        show_rows(COLUMNS, [_row(one) for one in users], output)
    if output.template is not None:
        return
    if report.problem is not None:
        print_note(f"Users get nothing new until root corrects this: {report.problem}")
    elif report.file is None:
        print_note("This arbiter has no file of limits.")
    else:
        print_note(f"Root sets the limits in {report.file}.")


def _row(one: UserLimits) -> dict[str, str]:
    memory = NO_LIMIT if one.memory_bytes is None else f"of {format_bytes(one.memory_bytes)}"
    compute = NO_LIMIT if one.compute_percent is None else f"of {one.compute_percent}%"
    grants = NO_LIMIT if one.grants is None else f"of {one.grants}"
    return {
        "user": user_name(one.uid),
        "memory": f"{format_bytes(one.used_memory_bytes)} {_joined(memory)}",
        "compute": f"{one.used_compute_percent}% {_joined(compute)}",
        "grants": f"{one.used_grants} {_joined(grants)}",
        "uid": str(one.uid),
    }


def _joined(limit: str) -> str:
    return f"({limit})" if limit == NO_LIMIT else limit
