"""`aliquot run`."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from aliquot import slices
from aliquot.cli.keys import INTERRUPTED
from aliquot.cli.run_wait import WaitDisplay
from aliquot.cli.tables import print_json, print_text
from aliquot.devices import parse_shape
from aliquot.model import Isolation, Policy, Priority, format_bytes
from aliquot.model.errors import NoCapacityError
from aliquot.pool import preview
from aliquot.pool.grant_seeker import open_grant
from aliquot.pool.refusal import describe_place, with_wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.devices import Shape
    from aliquot.model import Gpu, Request
    from aliquot.pool.grant_seeker import Wait
    from aliquot.slices import NewGrant, StateDirectory


def run_command(  # noqa: PLR0913 - one for each option
    request: Request,
    command: Sequence[str],
    *,
    name: str | None,
    simulate: str | None,
    wait: Wait | None,
    queue: str | None = None,
) -> None:
    """Make a grant and exec the command in it. All checks come before the grant is made."""
    slices.refuse_nested(os.environ)
    program = slices.find_command(command[0])
    display = WaitDisplay()
    try:
        opened = open_grant(
            _shape(simulate), request, name, command[0], os.environ, wait, display.show, queue
        )
    except KeyboardInterrupt:
        if wait is None:
            raise
        display.end()
        _print_line("no longer waiting")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        display.end()
    _print_grant(opened.made, request, opened.state)
    slices.exec_program(program, command, opened.environment)


def preview_run(  # noqa: PLR0913 - one for each option
    request: Request,
    command: Sequence[str],
    *,
    name: str | None,
    simulate: str | None,
    queue: str | None,
    wait: bool,
    json: bool,
) -> None:
    """Print what the command would get, or raise why it would not run. Makes nothing."""
    from aliquot.cli.explain_machine import by_queue  # noqa: PLC0415 - imported when needed

    slices.refuse_nested(os.environ)
    slices.find_command(command[0])
    state, driver = slices.check_machine(_shape(simulate), name, os.environ)
    found = preview.preview_run(state, driver, request, name=name, queue=queue, wait=wait)
    refusal, place = found.preview.refusal, found.waiting
    if json:
        print_json(preview.preview_json(found, request, state.shape))
        if refusal is not None and (place is None or not wait):
            raise typer.Exit(1)
        return
    if place is not None and wait:
        text = describe_place(place, time.time())
        print_text(f"The command would wait for GPUs: {text}: {place.why}.\n")
        return
    if refusal is not None and place is not None:
        raise NoCapacityError(f"{refusal.message}\n  {with_wait(place)}", refusal.hint)
    if refusal is not None:
        raise refusal
    text = describe_slices(request, found.preview.gpus, simulated=state.shape is not None)
    chosen = {gpu.uuid for gpu in found.preview.gpus}
    reasons = {one.why for one in found.preview.verdicts if one.shared.gpu.uuid in chosen}
    print_text(f"The command would get {text}: {'; '.join(sorted(reasons))}.\n")
    if found.swap and found.swap != request.swap_options:
        print_text(f"{by_queue(found)}.\n")


def _shape(simulate: str | None) -> Shape | None:
    return parse_shape(simulate) if simulate else None


def _print_grant(made: NewGrant, request: Request, state: StateDirectory) -> None:
    """Print the grant to a terminal, and always if it is simulated."""
    if state.shape or sys.stderr.isatty():
        gpus = [one.gpu for one in made.gpus]
        text = describe_slices(request, gpus, simulated=state.shape is not None)
        _print_line(f"grant {made.name}: {text}")
    for one in made.gpus:
        for stranger in one.strangers:
            used = "memory" if stranger.bytes is None else format_bytes(stranger.bytes)
            _print_line(
                f"{one.gpu} is also used outside Aliquot: {stranger.name} ({stranger.pid}) {used}"
            )


def describe_slices(request: Request, gpus: Sequence[Gpu], *, simulated: bool) -> str:
    """The slices of a request on these GPUs, and its settings that are not the defaults."""
    kind = "simulated " if simulated else ""
    if request.isolation is Isolation.HARDWARE:
        return ", ".join(f"all of {kind}{gpu} ({gpu.model}), for it alone" for gpu in gpus)
    background = request.priority is Priority.BACKGROUND
    share = 0 if background else request.compute_percent
    compute = f" and {share}% of the compute time" if share else ""
    parts = [f"{_memory(request, gpu)}{compute} of {kind}{gpu} ({gpu.model})" for gpu in gpus]
    return f"{', '.join(parts)}{_settings(request)}"


def _memory(request: Request, gpu: Gpu) -> str:
    """The memory on a GPU, and why it is that much if nobody said so."""
    size = format_bytes(request.bytes_on(gpu))
    if request.memory is None and not request.is_whole:
        return f"{size} ({request.amount} as no --memory is given)"
    return size


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
