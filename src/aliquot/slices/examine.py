"""What works on this machine and what does not: the checks behind `aliquot doctor`.

Each check finds one fact, says whether it is well, and if not how to mend it. A check never raises
for a state of the machine, and none of them makes a grant or starts an arbiter.
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
from aliquot.model import Gates, format_bytes
from aliquot.model.errors import AliquotError, StateError
from aliquot.slices import arbiter, checkpoint, control, gates, library, state
from aliquot.slices.run import GRANT, tenant_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aliquot.devices import Driver
    from aliquot.slices.state import State

_LOOK_SECONDS = 30
# Loads each library by the names that programs use and prints which file answered.
_LOOK = """
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
    """Whether a finding is well."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about this machine; `mend` says what to do where it is not well."""

    subject: str
    health: Health
    detail: str
    mend: str | None = None


def examine(where: State) -> Iterator[Finding]:
    """All findings, in the order in which one depends on the other."""
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
    yield from _checked("driver", lambda: _driver(driver))
    yield from _checked("GPUs", lambda: _gpus(driver))
    yield from _checked("library", lambda: _library(driver))
    yield from _checked("names", lambda: _names(driver))
    yield from _checked("arbiter", lambda: _arbiter(where))
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
            f"{program} may not be executed",
            f"Mend it with: chmod +x {program}",
        )


def _kernel() -> Iterator[Finding]:
    missing = []
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        missing.append("pidfd_open")
    try:
        os.close(os.memfd_create("aliquot", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC))
    except OSError:
        missing.append("memfd_create")
    release = platform.release()
    if missing:
        yield Finding(
            "kernel",
            Health.BROKEN,
            f"Linux {release} refuses {' and '.join(missing)}",
            "Use Linux 5.3 or newer; in a container, a seccomp profile that allows them.",
        )
    else:
        yield Finding("kernel", Health.OK, f"Linux {release}: pidfd, memfd")


def _state(where: State) -> Iterator[Finding]:
    state.prepare(where)
    free = os.statvfs(where.directory)
    room = free.f_bavail * free.f_frsize
    detail = f"{where.directory} ({format_bytes(room)} free)"
    if room < 16 << 20:
        yield Finding("state", Health.BROKEN, detail, state.choose_another())
    else:
        yield Finding("state", Health.OK, detail)


def _driver(driver: Driver) -> Iterator[Finding]:
    if driver.shape is not None:
        yield Finding("driver", Health.OK, f"simulated {driver.shape} ({driver.cuda})")
        return
    version = ".".join(map(str, devices.check_version(driver)))
    yield Finding("driver", Health.OK, f"{driver.cuda.resolve()}, CUDA {version}")


def _gpus(driver: Driver) -> Iterator[Finding]:
    kind = "simulated " if driver.shape else ""
    inventory = devices.read_inventory(driver)
    for gpu in inventory.gpus:
        detail = f"{kind}{gpu.name}, {format_bytes(gpu.memory_bytes)}, {gpu.uuid}"
        yield Finding(str(gpu), Health.OK, detail)
        if gpu.mig:
            yield Finding(
                str(gpu),
                Health.WARNING,
                "it is cut into MIG instances, and slices of those are not supported yet",
                f"Turn MIG off with: nvidia-smi -i {gpu.index} -mig 0",
            )
        if gpu.exclusive:
            yield Finding(
                str(gpu),
                Health.BROKEN,
                "its compute mode lets in one process at a time, or none: it cannot be shared",
                f"Mend it with: nvidia-smi -i {gpu.index} -c DEFAULT",
            )


def _library(driver: Driver) -> Iterator[Finding]:
    """Start a process as a tenant is started and see which files answer to the names."""
    folder = library.prepare_library(driver)
    environment = tenant_environment(os.environ, folder, driver, None)
    environment.pop(GRANT, None)
    look = subprocess.run(
        [sys.executable, "-c", _LOOK % (_NAMES,)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LOOK_SECONDS,
        check=False,
    )
    if look.returncode != 0:
        last = (look.stderr.strip().splitlines() or [f"exit code {look.returncode}"])[-1]
        yield Finding("library", Health.BROKEN, f"a tenant cannot be started: {last}")
        return
    for name, path in json.loads(look.stdout).items():
        if Path(path).parent == folder:
            yield Finding("library", Health.OK, f"{name} is {path}")
        else:
            yield Finding(
                "library",
                Health.BROKEN,
                f"{name} is not ours but {path}: programs that use this name slip past",
                "Look for a run path or an /etc/ld.so.preload that comes before LD_LIBRARY_PATH.",
            )


def _names(driver: Driver) -> Iterator[Finding]:
    for name, fitted in library.fit_to(driver).items():
        detail = f"{name}: {len(fitted.added)} names added, {len(fitted.hidden)} hidden"
        if fitted.missing:
            yield Finding(
                "names",
                Health.WARNING,
                f"{detail}, not offered: {', '.join(fitted.missing[:8])}",
                "This driver is much newer than Aliquot: install a newer Aliquot.",
            )
        else:
            yield Finding("names", Health.OK, f"{detail} to match the driver")


def _no_arbiter(where: State) -> Finding:
    if names := where.grants:
        return Finding(
            "arbiter",
            Health.WARNING,
            f"none runs, and there are grants: {', '.join(names)}",
            "Start it again with: aliquot ps",
        )
    return Finding("arbiter", Health.OK, "none runs; `aliquot run` starts one")


def _users(where: State) -> Iterator[Finding]:
    if where.shape is None and os.geteuid() != 0 and where.directory != state.SYSTEM:
        yield Finding(
            "users",
            Health.WARNING,
            "this machine has no arbiter for all users: yours does not know of others' grants",
            "If others use its GPUs too, run one as root: aliquot arbiter (see docs/support.md)",
        )


def _arbiter(where: State) -> Iterator[Finding]:
    log = where.directory / arbiter.LOG
    try:
        seen = control.status(where.directory)
    except control.NoArbiterError:
        yield _no_arbiter(where)
        return
    kept = f", log {log}" if log.exists() else ""  # in the foreground it keeps none
    yield Finding("arbiter", Health.OK, f"pid {seen.pid}, {len(seen.grants)} grants{kept}")
    for grant in seen.grants:
        if grant.broken is not None:
            yield Finding(
                "arbiter",
                Health.BROKEN,
                f"grant {grant.name}: {grant.broken}",
                "End its processes; the arbiter's log says more.",
            )
    for one in seen.gpus:
        for stranger in one.strangers:
            used = "memory" if stranger.bytes is None else format_bytes(stranger.bytes)
            yield Finding(
                str(one.gpu),
                Health.WARNING,
                f"{stranger.name} ({stranger.pid}) uses {used} outside every grant",
                "It slipped past Aliquot, or was started without it: start it with `aliquot run`.",
            )


def _compute(where: State, driver: Driver) -> Iterator[Finding]:
    """Whether compute shares hold: by what programs found, else by what the driver offers."""
    try:
        seen = control.status(where.directory)
    except control.NoArbiterError:
        tried = {}
    else:
        tried = gates.tried(seen)
    failed = {place: found for place, found in tried.items() if found.gates is Gates.FAIL}
    worked = [place for place, found in tried.items() if found.gates is Gates.WORK]
    for place, found in failed.items():
        yield Finding(
            "compute",
            Health.WARNING,
            f"shares do not hold on {place}: {gates.driver_words(found.why)}",
            gates.WITHOUT,
        )
    if worked:
        yield Finding("compute", Health.OK, f"shares hold: tried on {', '.join(worked)}")
    if not tried:
        yield from _compute_untried(driver)


def _compute_untried(driver: Driver) -> Iterator[Finding]:
    offered = gates.offered(driver)
    missing = [f"GPU {index}" for index, has in enumerate(offered or []) if not has]
    if missing:
        yield Finding(
            "compute",
            Health.WARNING,
            f"shares do not hold on {', '.join(missing)}: no 64-bit stream memory operations there",
            gates.WITHOUT,
        )
    else:
        able = "" if offered is None else "; the driver has what it takes"
        yield Finding(
            "compute",
            Health.OK,
            f"shares are not tried yet{able}: the first program in a slice tries them",
        )


def _suspend(driver: Driver) -> Iterator[Finding]:
    why = checkpoint.unsupported(driver)
    way = "are frozen by the driver" if why is None else f"are asked to save: {why}"
    yield Finding("suspend", Health.OK, f"suspended jobs {way}")
