"""The magic `%aliquot`: it restarts a notebook's kernel in a slice.

    %load_ext aliquot
    %aliquot memory=8GiB compute=30    restart this kernel in a slice
    %aliquot memory=8GiB wait          the same, when GPUs are free; also wait=10m, queue=NAME
    %aliquot memory=16GiB              inside it: change the slice, nothing is lost
    %aliquot                           show the slice
    %aliquot off                       restart without it

The kernel's process makes the grant and execs its own command line in it, as `aliquot run` does. So
PID and connection file stay, and the frontend connects again by itself. It happens when the kernel
has answered the cell; cells that wait behind it are not run. Before the exec that ends a slice, the
process ends its grant.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from aliquot import slices
from aliquot.api import read_request, read_shape, read_wait, read_word
from aliquot.devices import parse_shape
from aliquot.model import GrantChange, Policy, Priority, parse_amount, parse_share
from aliquot.model.errors import AliquotError, InvalidValueError, NestedGrantError
from aliquot.model.units import format_bytes, format_share
from aliquot.pool.grant_seeker import open_grant
from aliquot.slices import control
from aliquot.slices.grant_resize import resize
from aliquot.slices.tenant import is_inside_grant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.devices import Shape
    from aliquot.slices import LocalMachine

KERNEL = "ALIQUOT_KERNEL"  # in the environment of a kernel that this magic has restarted
USAGE = "Write for example: %aliquot memory=8GiB compute=30, %aliquot off, or %aliquot alone."
LOST = "Its variables are lost."

_SECONDS = 0.3  # for the last answers of the old kernel to leave it
_SIZE = ("memory", "compute", "gpus", "policy", "priority")
_SETTINGS = (*_SIZE, "name", "queue", "wait", "simulate")
_WAIT = "wait"  # alone: without limit


@dataclass(frozen=True, slots=True)
class KernelSlice:
    """The slice that a kernel was restarted in, as its environment has it.

    `variables` are those that the slice changed, as they were before; None: it was not set.
    """

    name: str
    simulate: str | None
    variables: dict[str, str | None]

    @property
    def shape(self) -> Shape | None:
        """The simulated machine that it is of; None: this machine."""
        return None if self.simulate is None else parse_shape(self.simulate)

    def encode(self) -> str:
        """The value of the variable."""
        return json.dumps([self.name, self.simulate, self.variables])

    @classmethod
    def current(cls) -> KernelSlice | None:
        """That of this process; None if it is in no slice of this magic."""
        text = os.environ.get(KERNEL)
        return None if text is None else cls(*json.loads(text))

    def environment_without(self) -> dict[str, str]:
        """This process's environment as it would be without the slice."""
        result = {key: value for key, value in os.environ.items() if key != KERNEL}
        for key, value in self.variables.items():
            result.pop(key, None)
            if value is not None:
                result[key] = value
        return result


class KernelRestarts(Exception):  # noqa: N818 - no error: it ends the cell and those after it
    """Ends the cell: the kernel restarts now. Cells that wait behind it do not run in the old one.

    The notebook shows the sentence alone.
    """

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def load_ipython_extension(shell: Any) -> None:
    """Add the magic: `%load_ext aliquot`."""
    shell.register_magic_function(lambda line: _run(shell, line), "line", "aliquot")


def _run(shell: Any, line: str) -> None:
    try:
        answer = _answer(shell, line.split())
    except AliquotError as error:
        from IPython.core.error import UsageError  # noqa: PLC0415 - only a notebook has it

        raise UsageError(str(error)) from None
    sys.stdout.write(f"{answer}\n")


def _answer(shell: Any, words: list[str]) -> str:
    """Do what the words ask for; what to print."""
    current = KernelSlice.current()
    if not words:
        return _describe(current)
    if words == ["off"]:
        return _leave(shell, current)
    settings = _settings(words)
    if current is None:
        _enter(shell, settings)
    return _change(current, settings)


def _settings(words: list[str]) -> dict[str, str]:
    words = [f"{_WAIT}=" if word == _WAIT else word for word in words]
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    unknown = [word for word in words if word.split("=", 1)[0] not in _SETTINGS or "=" not in word]
    if unknown:
        known = ", ".join(f"{name}=" for name in _SETTINGS)
        raise InvalidValueError(f"%aliquot does not know {unknown[0]!r}", f"{USAGE} Known: {known}")
    return settings


def _enter(shell: Any, settings: Mapping[str, str]) -> NoReturn:
    _check_kernel(shell)
    size: dict[str, Any] = {key: settings[key] for key in _SIZE if key in settings}
    shape, request = read_shape(settings.get("simulate")), read_request(**size)
    wait = read_wait(settings[_WAIT] or True) if _WAIT in settings else None
    opened = open_grant(
        shape,
        request,
        settings.get("name"),
        "kernel",
        os.environ,
        wait,
        _show,
        settings.get("queue"),
    )
    old, new = os.environ, opened.environment
    changed = {key: old.get(key) for key in {*old, *new} if old.get(key) != new.get(key)}
    inside = KernelSlice(opened.made.name, None if shape is None else str(shape), changed)
    _restart(shell, {**new, KERNEL: inside.encode()}, opened.state.directory, inside.name)
    raise KernelRestarts(f"This kernel restarts in the slice {inside.name}. {LOST}")


def _show(text: str) -> None:
    """Tell the notebook how the wait goes."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _change(current: KernelSlice, settings: Mapping[str, str]) -> str:
    """Change the slice that the kernel has.

    It waits for nothing: `wait` and `queue` do not count, so that the same line can run again.
    """
    fixed = [name for name in ("gpus", "name", "simulate") if name in settings]
    if fixed:
        raise InvalidValueError(
            f"{fixed[0]} of a slice cannot change", "Run first: %aliquot off (variables are lost)"
        )
    change = GrantChange(
        memory=parse_amount(settings["memory"]) if "memory" in settings else None,
        compute_percent=parse_share(settings["compute"]) if "compute" in settings else None,
        policy=read_word(Policy, settings["policy"]) if "policy" in settings else None,
        priority=read_word(Priority, settings["priority"]) if "priority" in settings else None,
    )
    machine = _machine(current)
    resize(machine, slices.find_grant([machine], current.name)[1], change)
    return _describe(current)


def _leave(shell: Any, current: KernelSlice | None) -> str:
    if current is None:
        return _describe(current)
    _check_kernel(shell)
    directory = slices.locate(current.shape).directory
    _restart(shell, current.environment_without(), directory, current.name, ends=True)
    raise KernelRestarts(f"This kernel restarts without the slice {current.name}. {LOST}")


def _restart(
    shell: Any, environment: Mapping[str, str], directory: Path, name: str, *, ends: bool = False
) -> None:
    """Exec this process's own command line when the kernel has answered the cell.

    `ends`: end the grant first. If the exec fails, a grant that was made for it is ended.
    """

    def now() -> None:
        shell.atexit_operations()
        sys.stdout.flush()
        sys.stderr.flush()
        if ends:
            control.end(directory, name)
        try:
            slices.exec_program(sys.executable, sys.orig_argv, environment)
        except AliquotError:
            if not ends:
                control.end(directory, name)
            raise

    asyncio.get_event_loop().call_later(_SECONDS, now)


def _describe(current: KernelSlice | None) -> str:
    if current is None:
        if is_inside_grant(os.environ):
            return "This kernel was started inside a grant: see it with `aliquot gpus`."
        return f"This kernel is in no slice. {USAGE}"
    machine = _machine(current)
    _, grant = slices.find_grant([machine], current.name)
    places = {one.gpu.uuid: one.gpu for one in machine.status.gpus}
    parts = [
        f"{format_bytes(part.memory_bytes)} of {places[part.gpu_uuid]}"
        f" ({places[part.gpu_uuid].model}), compute {format_share(part.compute_percent)},"
        f" {format_bytes(use.used_bytes)} used"
        for part, use in zip(grant.slices, grant.use, strict=True)
    ]
    return f"This kernel is in the slice {current.name}: {'; '.join(parts)}"


def _machine(current: KernelSlice) -> LocalMachine:
    state = slices.locate(current.shape)
    return slices.LocalMachine(state, control.status(state.directory))


def _check_kernel(shell: Any) -> None:
    """Refuse to restart what is no kernel of its own process."""
    if getattr(shell, "kernel", None) is None:
        raise InvalidValueError(
            "%aliquot restarts kernels of Jupyter, and this is none",
            "Start IPython in a slice instead: aliquot run --memory 8GiB -- ipython",
        )
    if KERNEL not in os.environ and is_inside_grant(os.environ):
        raise NestedGrantError(
            "this kernel was started inside a grant", "Change that grant with: aliquot resize"
        )
