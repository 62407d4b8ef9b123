"""Following the health of GPUs, as NVML reports it, and noticing another driver.

A GPU is unhealthy if

- it has fallen off the bus: NVML no longer finds it or answers for it;
- the driver says that it needs a reset, a reboot or the like (R570 and newer do);
- its memory had uncorrectable errors, or its spare rows are used up;
- it had an Xid error that matters (`xid`);
- the driver was replaced by one that no program can begin to use (`installed`).

It has recovered when none of this is true any more. An Xid error is over when the driver says that
no recovery action is needed, or the GPU was lost and is back. An older driver does not say; then
the GPU stays unhealthy until the agent restarts, as it does after a reset.

NVML finds a GPU that was lost only in a new session, so there is a new one now and then while a GPU
is lost. A process keeps the NVML that it loaded first: if the driver was replaced, or a GPU
is there that was not there before, the report says so, and only a new process can use it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aliquot.devices import xid
from aliquot.devices.installed import read_installed
from aliquot.devices.inventory import nvml_session
from aliquot.model.errors import DriverError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aliquot.devices.driver import Driver
    from aliquot.devices.installed import InstalledDriver

POLL_SECONDS = 1.0
ASSESS_SECONDS = 5.0  # after an Xid error, until the driver knows the recovery action
SESSION_SECONDS = 5.0  # of NVML, while a GPU is lost; each next one lasts twice as long
LONGEST_SESSION_SECONDS = 60.0
# After a session that failed; each next pause is twice as long. A new session initializes GPUs, and
# the kernel logs each failure of that.
PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 6.0

_ACTIONS = {
    1: "a reset",
    2: "a reboot of the node",
    3: "to be drained of peer-to-peer traffic",
    4: "to be drained and reset",
    5: "its IMEX domain to be recovered",
    6: "a reset of its PCIe bus",
    7: "a reboot of the system",
}


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What the driver says.

    `problems` has all GPUs by UUID and why each is unhealthy, or an empty text. `nvml` says why
    this process cannot use NVML, or why none that starts now can. `found` are the UUIDs of all GPUs
    that answer. `replaced` names the driver that has replaced the one which this process loaded;
    empty: none has.
    """

    problems: Mapping[str, str]
    nvml: str = ""
    found: frozenset[str] = frozenset()
    replaced: str = ""


@dataclass(slots=True)
class _Gpu:
    """The last Xid error of one GPU, and whether it answered last time."""

    uuid: str
    xid: int | None = None
    xid_at: float = 0.0
    answers: bool = True


@dataclass(slots=True)
class HealthWatch:
    """Follows the health of GPUs; `run` blocks, so it needs its own thread.

    `loaded` is the driver that was installed when this process loaded NVML. It calls `on_change`
    once at the start and after every change. `looked_at` is when it last looked, on the monotonic
    clock: NVML may hang.
    """

    driver: Driver
    loaded: InstalledDriver
    uuids: Sequence[str]
    on_change: Callable[[HealthReport], None]
    stop: threading.Event
    looked_at: float = field(default_factory=time.monotonic)
    _gpus: dict[str, _Gpu] = field(default_factory=dict)
    _reported: HealthReport | None = None
    _session: float = SESSION_SECONDS
    _pause: float = PAUSE_SECONDS

    def run(self) -> None:
        """Run until `stop` is set. While NVML itself fails, all GPUs are unhealthy."""
        self._gpus = {uuid: _Gpu(uuid) for uuid in self.uuids}
        while not self.stop.is_set():
            try:
                with nvml_session(self.driver) as nvml:
                    self._follow(nvml)
            except DriverError as error:
                problems = dict.fromkeys(self.uuids, error.message)
                self._report(HealthReport(problems, nvml=error.message))
                self.stop.wait(self._pause)
                self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def _follow(self, nvml: Any) -> None:
        """Follow all GPUs in one session of NVML, for as long as it can tell about all."""
        events = _events(nvml, self.uuids)
        until = time.monotonic() + self._session
        self._session = min(2 * self._session, LONGEST_SESSION_SECONDS)
        try:
            while not self.stop.is_set():
                problems = {uuid: self._check(nvml, gpu) for uuid, gpu in self._gpus.items()}
                found = frozenset(_found(nvml))
                self._report(HealthReport(problems, found=found))
                self._pause = PAUSE_SECONDS
                self._wait(nvml, events)
                if len(found) == max(len(self.uuids), nvml.nvmlDeviceGetCount()):
                    self._session = SESSION_SECONDS
                elif time.monotonic() > until:
                    return
        finally:
            if events is not None:
                nvml.nvmlEventSetFree(events)

    def _wait(self, nvml: Any, events: Any) -> None:
        """Wait for an Xid event, at most POLL_SECONDS."""
        if events is None:
            self.stop.wait(POLL_SECONDS)
            return
        try:
            event = nvml.nvmlEventSetWait_v2(events, int(POLL_SECONDS * 1000))
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_TIMEOUT:
                self.stop.wait(POLL_SECONDS)  # the next poll finds a lost GPU
            return
        if event.eventType == nvml.nvmlEventTypeXidCriticalError:
            self._record_xid(nvml, event)

    def _record_xid(self, nvml: Any, event: Any) -> None:
        number = int(event.eventData)
        if xid.is_harmless(number):
            return
        try:
            uuids = [_text(nvml.nvmlDeviceGetUUID(event.device))]
        except nvml.NVMLError:
            uuids = []  # it is lost: the next poll finds that
        for uuid in uuids:
            if uuid in self._gpus:
                self._gpus[uuid].xid = number
                self._gpus[uuid].xid_at = time.monotonic()

    def _check(self, nvml: Any, gpu: _Gpu) -> str:
        """Why a GPU is unhealthy; empty: it is healthy."""
        was_lost, gpu.answers = not gpu.answers, False
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            return f"it does not answer: {error}"
        gpu.answers = True
        action = _recovery_action(nvml, handle)
        assessed = time.monotonic() - gpu.xid_at > ASSESS_SECONDS
        if was_lost or (action == 0 and assessed):
            gpu.xid = None
        if gpu.xid is not None:
            return xid.describe(gpu.xid)
        if action:
            return f"it needs {_ACTIONS.get(action, f'recovery (action {action})')}"
        return _memory_errors(nvml, handle) if action is None else ""

    def _report(self, report: HealthReport) -> None:
        self.looked_at = time.monotonic()
        installed = read_installed(self.driver)
        if installed != self.loaded:
            if problem := installed.problem:
                problems = dict.fromkeys(self.uuids, problem)
                report = replace(report, problems=problems, nvml=problem)
            if not problem or not installed.files:  # there may be one elsewhere
                report = replace(report, replaced=str(installed))
        if report != self._reported:
            self._reported = report
            self.on_change(report)


def _found(nvml: Any) -> Iterator[str]:
    """The UUIDs of all GPUs that answer."""
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            nvml.nvmlDeviceGetMemoryInfo(handle)
            yield _text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError:
            continue


def _events(nvml: Any, uuids: Sequence[str]) -> Any:
    """An event set of all GPUs that support events; None if none does."""
    events = nvml.nvmlEventSetCreate()
    wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
    registered = False
    for uuid in uuids:
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            known = nvml.nvmlDeviceGetSupportedEventTypes(handle)
            nvml.nvmlDeviceRegisterEvents(handle, wanted & known, events)
            registered = True
        except nvml.NVMLError:
            continue  # it is polled all the same
    if registered:
        return events
    nvml.nvmlEventSetFree(events)
    return None


def _recovery_action(nvml: Any, handle: Any) -> int | None:
    """The recovery action that the driver asks for, 0: none; None: an older driver."""
    try:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    except (nvml.NVMLError, AttributeError):
        return None
    return int(value.value.uiVal) if value.nvmlReturn == nvml.NVML_SUCCESS else None


def _memory_errors(nvml: Any, handle: Any) -> str:
    """Why the memory is unhealthy, for drivers without recovery actions; empty: it is healthy."""
    try:
        count = nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
    except nvml.NVMLError:
        count = 0
    if count:
        return f"{count} uncorrectable memory errors"
    try:
        failed = nvml.nvmlDeviceGetRemappedRows(handle)[3]
    except nvml.NVMLError:
        failed = 0
    return "its spare memory rows are used up" if failed else ""


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
