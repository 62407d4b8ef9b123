"""Following the health of GPUs, as NVML reports it.

A GPU is unhealthy if

- it has fallen off the bus: NVML no longer finds it or answers for it;
- the driver says that it needs a reset, a reboot or the like (R570 and newer do);
- its memory had uncorrectable errors, or its spare rows are used up;
- it had a critical Xid error. Xids that a program causes itself do not count.

It has recovered when none of this is true any more. An Xid error is over when the driver says that
no recovery action is needed. An older driver does not say; then the GPU stays unhealthy until the
agent restarts, as it does after a reset.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aliquot.devices.inventory import nvml_session
from aliquot.model.errors import DriverError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from aliquot.devices.driver import Driver

# Caused by a program: its kernel faulted, was killed with it, or ran for too long.
PROGRAM_XIDS = frozenset({13, 31, 43, 45, 68, 109})
POLL_SECONDS = 1.0
ASSESS_SECONDS = 5.0  # after an Xid error, until the driver knows the recovery action

_ACTIONS = {
    1: "a reset",
    2: "a reboot of the node",
    3: "to be drained of peer-to-peer traffic",
    4: "to be drained and reset",
}


@dataclass(slots=True)
class _Gpu:
    """The last Xid error of one GPU."""

    uuid: str
    xid: int | None = None
    xid_at: float = 0.0


@dataclass(slots=True)
class HealthWatch:
    """Follows the health of GPUs; `run` blocks, so it needs its own thread.

    It calls `on_change` once at the start and after every change, with all GPUs by UUID and why
    each is unhealthy, or an empty text.
    """

    driver: Driver
    uuids: Sequence[str]
    on_change: Callable[[Mapping[str, str]], None]
    stop: threading.Event
    _gpus: dict[str, _Gpu] = field(default_factory=dict)
    _reported: dict[str, str] | None = None

    def run(self) -> None:
        """Run until `stop` is set. While NVML itself fails, all GPUs are unhealthy."""
        self._gpus = {uuid: _Gpu(uuid) for uuid in self.uuids}
        while not self.stop.is_set():
            try:
                with nvml_session(self.driver) as nvml:
                    self._follow(nvml)
            except DriverError as error:
                self._report(dict.fromkeys(self.uuids, error.message))
                self.stop.wait(POLL_SECONDS)

    def _follow(self, nvml: Any) -> None:
        events = _events(nvml, self.uuids)
        try:
            while not self.stop.is_set():
                self._report({uuid: self._check(nvml, gpu) for uuid, gpu in self._gpus.items()})
                self._wait(nvml, events)
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
        xid = int(event.eventData)
        if xid in PROGRAM_XIDS:
            return
        try:
            uuids = [_text(nvml.nvmlDeviceGetUUID(event.device))]
        except nvml.NVMLError:
            uuids = []  # it is lost: the next poll finds that
        for uuid in uuids:
            if uuid in self._gpus:
                self._gpus[uuid].xid = xid
                self._gpus[uuid].xid_at = time.monotonic()

    def _check(self, nvml: Any, gpu: _Gpu) -> str:
        """Why a GPU is unhealthy; empty: it is healthy."""
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            return f"it does not answer: {error}"
        action = _recovery_action(nvml, handle)
        assessed = time.monotonic() - gpu.xid_at > ASSESS_SECONDS
        if action == 0 and assessed:
            gpu.xid = None
        if gpu.xid is not None:
            return f"Xid error {gpu.xid}"
        if action:
            return f"it needs {_ACTIONS.get(action, f'recovery (action {action})')}"
        return _memory_errors(nvml, handle) if action is None else ""

    def _report(self, reasons: dict[str, str]) -> None:
        if reasons != self._reported:
            self._reported = reasons
            self.on_change(dict(reasons))


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
