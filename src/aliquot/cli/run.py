"""`aliquot run`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.devices import check_version, parse_shape
from aliquot.model import Policy, Priority, check_name, format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.model import Request
    from aliquot.slices import NewGrant, StateDirectory


def run_command(
    request: Request, command: Sequence[str], *, name: str | None, simulate: str | None
) -> None:
    """Make a grant and exec the command in it. All checks come before the grant is made."""
    slices.refuse_nested(os.environ)
    if name is not None:
        check_name(name)
    state = slices.locate(parse_shape(simulate) if simulate else None)
    program = slices.find_command(command[0])
    driver = state.driver()
    if state.shape is None:
        check_version(driver)
    slices.prepare(state)
    library = slices.prepare_library(driver)
    made = slices.make_grant(state.directory, driver, request, name, command[0])
    _print_grant(made, request, state)
    environment = slices.tenant_environment(os.environ, library, driver, made.marked)
    slices.exec_program(program, command, environment)


def _print_grant(made: NewGrant, request: Request, state: StateDirectory) -> None:
    """Print the grant to a terminal, and always if it is simulated."""
    kind = "simulated " if state.shape else ""
    background = request.priority is Priority.BACKGROUND
    share = 0 if background else request.compute_percent
    compute = f" and {share}% of the compute time" if share else ""
    if state.shape or sys.stderr.isatty():
        parts = [
            f"{format_bytes(request.bytes_on(one.gpu))}{compute} of {kind}{one.gpu}"
            f" ({one.gpu.model})"
            for one in made.gpus
        ]
        _print_line(f"grant {made.name}: {', '.join(parts)}{_settings(request)}")
    for one in made.gpus:
        for stranger in one.strangers:
            used = "memory" if stranger.bytes is None else format_bytes(stranger.bytes)
            _print_line(
                f"{one.gpu} is also used outside Aliquot: {stranger.name} ({stranger.pid}) {used}"
            )


def _settings(request: Request) -> str:
    """The policy and the priority, if they are not the defaults."""
    hard = f", policy {request.policy}" if request.policy is not Policy.ELASTIC else ""
    match request.priority:
        case Priority.NORMAL:
            return hard
        case Priority.BACKGROUND:
            return f"{hard}, in the background: only while no other slice has work"
        case priority:
            return f"{hard}, priority {priority}"


def _print_line(line: str) -> None:
    with suppress(OSError):  # the command matters more than this line
        sys.stderr.write(f"aliquot: {line}\n")
        sys.stderr.flush()
