"""The checks behind `aliquot doctor`: what works on this machine, and how to fix what does not.

Each check reports findings. A check never raises because of the state of the machine, makes no
grant and starts no arbiter.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot import devices
from aliquot.devices import CUDA, NVML
from aliquot.model import Gates, format_bytes, format_count
from aliquot.model.errors import AliquotError, StateError
from aliquot.slices import (
    arbiter_process,
    checkpoint,
    control,
    gate_support,
    library,
    state_directory,
)
from aliquot.slices.share_problems import lost_shares, slice_problems
from aliquot.slices.tenant import GRANT, tenant_environment
from aliquot.slices.user_limits import read_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aliquot.devices import Driver
    from aliquot.model import Gpu
    from aliquot.slices.arbiter_status import Status
    from aliquot.slices.state_directory import StateDirectory

_LOAD_SECONDS = 30
# Loads each library by the names that programs use and prints which file was loaded.
_LOAD = """
import ctypes, json, os
class Info(ctypes.Structure):
    _fields_ = [("path", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]
found = {}
for name in %r:
    try:
        handle = ctypes.CDLL(name)
    except OSError as error:
        found[name] = str(error)
        continue
    info = Info()
    symbol = "cuInit" if "cuda" in name else "nvmlInit_v2"
    ctypes.CDLL(None).dladdr(ctypes.cast(getattr(handle, symbol), ctypes.c_void_p),
                             ctypes.byref(info))
    found[name] = os.fsdecode(info.path or b"?")
print(json.dumps(found))
"""
_NAMES = (CUDA, "libcuda.so", NVML, "libnvidia-ml.so")


class Health(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check; `fix` says what to do if something is wrong."""

    subject: str
    health: Health
    detail: str
    fix: str | None = None


def diagnose(where: StateDirectory) -> Iterator[Finding]:
    """All findings; each check comes after those it depends on."""
    yield from _checked("installation", _installation)
    yield from _checked("kernel", _kernel)
    try:
        yield from _state(where)
        driver = where.driver()
    except StateError as error:
        yield _broken("state", error)
        return
    except AliquotError as error:
        yield _broken("driver", error)
        return
    yield from _checked("state", lambda: _obstacles(where))
    yield from _checked("driver", lambda: _driver(driver))
    yield from _checked("GPUs", lambda: _gpus(driver))
    yield from _checked("library", lambda: _library(driver))
    yield from _checked("symbols", lambda: _symbols(driver))
    yield from _checked("arbiter", lambda: _arbiter(where, driver))
    yield from _users(where)
    yield from _checked("compute", lambda: _compute(where, driver))
    yield from _checked("suspend", lambda: _suspend(driver))


def _checked(subject: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except AliquotError as error:
        yield _broken(subject, error)


def _broken(subject: str, error: AliquotError) -> Finding:
    return Finding(subject, Health.BROKEN, error.message, error.hint)


def _installation() -> Iterator[Finding]:
    for name in (CUDA, NVML):
        devices.native_file("lib", name)
    program = devices.native_file("bin", "aliquot-arbiter")
    if os.access(program, os.X_OK):
        yield Finding("installation", Health.OK, str(devices.native_dir()))
    else:
        yield Finding(
            "installation",
            Health.BROKEN,
            f"{program} is not executable",
            f"Fix it with: chmod +x {program}",
        )


def _kernel() -> Iterator[Finding]:
    release = platform.release()
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        yield Finding(
            "kernel",
            Health.BROKEN,
            f"Linux {release} does not allow pidfd_open",
            "Use Linux 5.3 or newer; in a container, a seccomp profile that allows it.",
        )
    else:
        yield Finding("kernel", Health.OK, f"Linux {release}: pidfd")


def _state(where: StateDirectory) -> Iterator[Finding]:
    state_directory.prepare(where)
    disk = os.statvfs(where.directory)
    free = disk.f_bavail * disk.f_frsize
    detail = f"{where.directory} ({format_bytes(free)} free)"
    if free < 16 << 20:
        yield Finding("state", Health.BROKEN, detail, state_directory.choose_another())
    else:
        yield Finding("state", Health.OK, detail)


def _obstacles(where: StateDirectory) -> Iterator[Finding]:
    """Limits of users that are unknown, and what keeps the next arbiter from starting."""
    runs = control.answers(where.directory)
    unknown = read_limits(where.directory).problem if runs else None
    if unknown is not None:
        detail = f"users get nothing new: {unknown}"
        yield Finding("users", Health.BROKEN, detail, control.RELOAD_USERS)
    if state_directory.belongs_to_root(where.directory):
        return  # root starts the next one, and may read its files
    found = arbiter_process.obstacles(where.directory)
    health = Health.WARNING if runs else Health.BROKEN
    if version := found.get("version"):
        fix = f"If none of its programs is needed any more, remove it: rm -r {where.directory}"
        yield Finding("state", health, version, fix)
    problem = found.get("users-file")
    if problem is not None and unknown is None:
        fix = control.RELOAD_USERS if runs else "Correct the file."
        yield Finding("users", health, f"the next arbiter does not start: {problem}", fix)


def _driver(driver: Driver) -> Iterator[Finding]:
    if driver.shape is not None:
        yield Finding("driver", Health.OK, f"simulated {driver.shape} ({driver.cuda})")
        return
    version = ".".join(map(str, devices.check_version(driver)))
    detail = f"{driver.cuda.resolve()}, CUDA {version}"
    if driver.is_compat:
        detail += ": a forward-compatibility library, for programs newer than the kernel's driver"
    yield Finding("driver", Health.OK, detail)


def _gpus(driver: Driver) -> Iterator[Finding]:
    kind = "simulated " if driver.shape else ""
    inventory = devices.read_inventory(driver)
    for gpu in inventory.gpus:
        detail = f"{kind}{gpu.name}, {format_bytes(gpu.memory_bytes)}, {gpu.uuid}"
        yield Finding(str(gpu), Health.OK, detail)
        if gpu.mig:
            yield _divided(gpu, inventory.gpus)
        if gpu.exclusive:
            yield Finding(
                str(gpu),
                Health.BROKEN,
                "its compute mode allows one process at a time, or none: it cannot be shared",
                f"Fix it with: nvidia-smi -i {gpu.index} -c DEFAULT",
            )


def _divided(gpu: Gpu, gpus: tuple[Gpu, ...]) -> Finding:
    """What programs can use of a GPU in MIG mode."""
    parts = [one for one in gpus if one.instance_of == gpu.index]
    if parts:
        names = " and ".join(map(str, parts))
        return Finding(str(gpu), Health.OK, f"it is in MIG mode: programs use {names}")
    return Finding(
        str(gpu),
        Health.WARNING,
        "it is in MIG mode and has no instance that programs can use",
        f"Make one, for example with: nvidia-smi mig -i {gpu.index} -cgi 0 -C",
    )


def _library(driver: Driver) -> Iterator[Finding]:
    """Start a process like a tenant and see which libraries it loads."""
    folder = library.prepare_library(driver)
    environment = tenant_environment(os.environ, folder, driver, None)
    environment.pop(GRANT, None)
    loaded = subprocess.run(
        [sys.executable, "-c", _LOAD % (_NAMES,)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LOAD_SECONDS,
        check=False,
    )
    if loaded.returncode != 0:
        last = (loaded.stderr.strip().splitlines() or [f"exit code {loaded.returncode}"])[-1]
        yield Finding("library", Health.BROKEN, f"a tenant cannot be started: {last}")
        return
    for name, path in json.loads(loaded.stdout).items():
        if Path(path).parent == folder:
            yield Finding("library", Health.OK, f"{name} is {path}")
        else:
            yield Finding(
                "library",
                Health.BROKEN,
                f"{name} is {path}, not Aliquot's: programs that load this name escape the limits",
                "Look for a run path, or a library in /etc/ld.so.preload.",
            )


def _symbols(driver: Driver) -> Iterator[Finding]:
    for name, fitted in library.fit_to(driver).items():
        detail = f"{name}: {len(fitted.added)} symbols added, {len(fitted.hidden)} hidden"
        if fitted.missing:
            yield Finding(
                "symbols",
                Health.WARNING,
                f"{detail}, missing: {', '.join(fitted.missing[:8])}",
                "This driver is much newer than Aliquot: install a newer Aliquot.",
            )
        else:
            yield Finding("symbols", Health.OK, f"{detail} to match the driver")


def _no_arbiter(where: StateDirectory) -> Finding:
    if names := where.grants:
        return Finding(
            "arbiter",
            Health.WARNING,
            f"none runs, but there are grants: {', '.join(names)}",
            "Restart it with: aliquot ps",
        )
    return Finding("arbiter", Health.OK, "none runs; `aliquot run` starts one")


def _users(where: StateDirectory) -> Iterator[Finding]:
    if where.shape is None and os.geteuid() != 0 and where.directory != state_directory.SYSTEM:
        yield Finding(
            "users",
            Health.WARNING,
            "this machine has no arbiter for all users: yours does not see grants of other users",
            "If other users share its GPUs, run one as root: aliquot arbiter (see docs/support.md)",
        )


def _arbiter(where: StateDirectory, driver: Driver) -> Iterator[Finding]:
    log = where.directory / arbiter_process.LOG
    try:
        status = control.status(where.directory)
    except control.SilentArbiterError:
        raise
    except control.NoArbiterError:
        yield _no_arbiter(where)
        return
    grants = format_count(len(status.grants), "grant")
    kept = f", log {log}" if log.exists() else ""  # in the foreground it has none
    yield Finding("arbiter", Health.OK, f"pid {status.pid}, {grants}{kept}")
    serves_others = where.directory.stat().st_uid == 0
    if serves_others and not status.answer.get("protects_descriptors", True):
        yield Finding(
            "arbiter",
            Health.WARNING,
            "root in a container can write to the page that shows its limits",
            "Run the arbiter on Linux 5.12 or newer and with CAP_SYS_ADMIN.",
        )
    replace = (
        "Restart the service, as with: sudo systemctl restart aliquot-arbiter"
        if status.answer.get("foreground")
        else "Replace it, while programs run, with: aliquot restart"
    )
    if not arbiter_process.is_current(status):
        what = "it is of another version than this command"
        yield Finding("arbiter", Health.WARNING, what, replace)
    installed = devices.read_inventory(driver, skip_lost=True).driver_version
    if status.driver_version and status.driver_version != installed:
        what = f"it uses driver {status.driver_version}, and this machine now has {installed}"
        yield Finding("arbiter", Health.WARNING, what, replace)
    if status.nvml_silent_seconds:
        yield Finding(
            "arbiter",
            Health.WARNING,
            f"NVML has not answered for {status.nvml_silent_seconds:.0f} s: memory that the driver"
            " takes by itself is not measured",
            "See the kernel's log for the driver's messages (Xid): the machine may need a restart.",
        )
    for one in status.gpus:
        if not one.answers and not status.nvml_silent_seconds:
            yield Finding(
                "arbiter",
                Health.WARNING,
                f"{one.gpu} does not answer: it may have fallen off the bus",
                "See the kernel's log for the driver's messages (Xid): it may need a reset.",
            )
    yield from _grants(status)
    yield from _gpu_use(status)


def _grants(status: Status) -> Iterator[Finding]:
    for grant in status.grants:
        for process in grant.unjoined:
            used = "memory" if process.bytes is None else format_bytes(process.bytes)
            yield Finding(
                "arbiter",
                Health.WARNING,
                f"grant {grant.name}: {process.name} ({process.pid}) uses {used} in its cgroup and"
                " has not joined it",
                "It brings its own driver library. To have such processes ended:"
                " aliquot arbiter --unjoined end",
            )
        if grant.broken is not None:
            yield Finding(
                "arbiter",
                Health.BROKEN,
                f"grant {grant.name}: {grant.broken}",
                "End its processes. The arbiter's log has details.",
            )
    for problem in lost_shares(status):
        yield Finding(
            "shares",
            Health.BROKEN,
            problem,
            "Its memory limit holds. Start the program again to give it its share.",
        )
    for problem in slice_problems(status):
        yield Finding("shares", Health.WARNING, problem, "docs/compute.md says what that means.")


def _gpu_use(status: Status) -> Iterator[Finding]:
    for one in status.gpus:
        if one.context_bytes and not one.context_is_measured:
            yield Finding(
                str(one.gpu),
                Health.WARNING,
                "NVML does not say how much a process uses (MPS, WSL or vGPU): each context is"
                f" charged {format_bytes(one.context_bytes)}, or a quarter of a small slice",
            )
        for stranger in one.strangers:
            used = "memory" if stranger.bytes is None else format_bytes(stranger.bytes)
            yield Finding(
                str(one.gpu),
                Health.WARNING,
                f"{stranger.name} ({stranger.pid}) uses {used} outside all grants",
                "It was started without Aliquot, or escaped it: start it with `aliquot run`.",
            )


def _compute(where: StateDirectory, driver: Driver) -> Iterator[Finding]:
    """Whether compute shares work: by what programs found, else by what the driver supports."""
    try:
        status = control.status(where.directory)
    except control.NoArbiterError:
        tried = {}
    else:
        tried = gate_support.found_by_programs(status)
    failed = {place: found for place, found in tried.items() if found.gates is Gates.FAIL}
    worked = [place for place, found in tried.items() if found.gates is Gates.WORK]
    for place, found in failed.items():
        yield Finding(
            "compute",
            Health.WARNING,
            f"shares do not work on {place}: {gate_support.error_text(found.why)}",
            gate_support.WITHOUT,
        )
    if worked:
        yield Finding("compute", Health.OK, f"shares work: tested on {', '.join(worked)}")
    if not tried:
        yield from _compute_untried(driver)


def _compute_untried(driver: Driver) -> Iterator[Finding]:
    supported = gate_support.supported_by_driver(driver)
    missing = [f"GPU {index}" for index, has in enumerate(supported or []) if not has]
    if missing:
        yield Finding(
            "compute",
            Health.WARNING,
            f"shares do not work on {', '.join(missing)}: no 64-bit stream memory operations",
            gate_support.WITHOUT,
        )
    else:
        able = "" if supported is None else "; the driver supports them"
        yield Finding(
            "compute",
            Health.OK,
            f"shares are not tested yet{able}: the first program in a slice tests them",
        )


def _suspend(driver: Driver) -> Iterator[Finding]:
    why = checkpoint.unsupported(driver)
    how = "by freezing them" if why is None else f"by asking them to save: {why}"
    yield Finding("suspend", Health.OK, f"jobs are suspended {how}")
