"""Whether GPUs are well, as NVML tells it.

A GPU is sick when

- it has fallen off the bus: NVML no longer finds it or answers for it;
- the driver says that it needs a reset, a reboot or the like (R570 and newer know that);
- its memory had errors that could not be corrected, or its spare rows are used up;
- it had a critical Xid error. Those that a program causes itself do not count.

It is well again when none of this is so any more. An Xid error alone is over when the driver says
that nothing is to be done; an older driver does not say, and then it stays until the agent starts
again, as it does after a reset.
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

# A program's own: its kernel faulted, was killed with it, or ran for too long.
PROGRAMS_OWN_XIDS = frozenset({13, 31, 43, 45, 68, 109})
LOOK_SECONDS = 1.0
SETTLE_SECONDS = 5.0  # between an Xid error and the driver's word on what it means

_ACTIONS = {
    1: "a reset",
    2: "a reboot of the node",
    3: "to be drained of peer-to-peer traffic",
    4: "to be drained and reset",
}


@dataclass(slots=True)
class _Gpu:
    """What is remembered of one GPU."""

    uuid: str
    xid: int | None = None
    xid_at: float = 0.0


@dataclass(slots=True)
class HealthWatch:
    """Follows the health of GPUs, in a thread of its own: `run` blocks.

    `on_change` is told all GPUs, each with why it is sick, or nothing, whenever that changes, and
    once at the start.
    """

    driver: Driver
    uuids: Sequence[str]
    on_change: Callable[[Mapping[str, str]], None]
    stop: threading.Event
    _gpus: dict[str, _Gpu] = field(default_factory=dict)
    _told: dict[str, str] | None = None

    def run(self) -> None:
        """Until `stop` is set. Where NVML itself fails, all are sick until it answers again."""
        self._gpus = {uuid: _Gpu(uuid) for uuid in self.uuids}
        while not self.stop.is_set():
            try:
                with nvml_session(self.driver) as nvml:
                    self._follow(nvml)
            except DriverError as error:
                self._tell(dict.fromkeys(self.uuids, error.message))
                self.stop.wait(LOOK_SECONDS)

    def _follow(self, nvml: Any) -> None:
        events = _events(nvml, self.uuids)
        try:
            while not self.stop.is_set():
                self._tell({uuid: self._look(nvml, gpu) for uuid, gpu in self._gpus.items()})
                self._wait(nvml, events)
        finally:
            if events is not None:
                nvml.nvmlEventSetFree(events)

    def _wait(self, nvml: Any, events: Any) -> None:
        """Until an error is told of, or it is time to look."""
        if events is None:
            self.stop.wait(LOOK_SECONDS)
            return
        try:
            told = nvml.nvmlEventSetWait_v2(events, int(LOOK_SECONDS * 1000))
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_TIMEOUT:
                self.stop.wait(LOOK_SECONDS)  # a card that is lost is found by looking
            return
        if told.eventType == nvml.nvmlEventTypeXidCriticalError:
            self._note(nvml, told)

    def _note(self, nvml: Any, told: Any) -> None:
        xid = int(told.eventData)
        if xid in PROGRAMS_OWN_XIDS:
            return
        try:
            uuids = [_text(nvml.nvmlDeviceGetUUID(told.device))]
        except nvml.NVMLError:
            uuids = []  # it is lost: found by looking
        for uuid in uuids:
            if uuid in self._gpus:
                self._gpus[uuid].xid = xid
                self._gpus[uuid].xid_at = time.monotonic()

    def _look(self, nvml: Any, gpu: _Gpu) -> str:
        """Why a GPU is sick; empty: it is well."""
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            return f"it does not answer: {error}"
        action = _recovery_action(nvml, handle)
        settled = time.monotonic() - gpu.xid_at > SETTLE_SECONDS
        if action == 0 and settled:
            gpu.xid = None
        if gpu.xid is not None:
            return f"Xid error {gpu.xid}"
        if action:
            return f"it needs {_ACTIONS.get(action, f'recovery (action {action})')}"
        return _memory_errors(nvml, handle) if action is None else ""

    def _tell(self, sick: dict[str, str]) -> None:
        if sick != self._told:
            self._told = sick
            self.on_change(dict(sick))


def _events(nvml: Any, uuids: Sequence[str]) -> Any:
    """An event set of all GPUs that tell of errors; None where none does."""
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
            continue  # it is looked at all the same
    if registered:
        return events
    nvml.nvmlEventSetFree(events)
    return None


def _recovery_action(nvml: Any, handle: Any) -> int | None:
    """What the driver says is to be done, 0 for nothing; None: it does not know such a thing."""
    try:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    except (nvml.NVMLError, AttributeError):
        return None
    return int(value.value.uiVal) if value.nvmlReturn == nvml.NVML_SUCCESS else None


def _memory_errors(nvml: Any, handle: Any) -> str:
    """For drivers that do not say what is to be done."""
    try:
        count = nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
    except nvml.NVMLError:
        count = 0
    if count:
        return f"{count} memory errors that could not be corrected"
    try:
        failed = nvml.nvmlDeviceGetRemappedRows(handle)[3]
    except nvml.NVMLError:
        failed = 0
    return "its spare memory rows are used up" if failed else ""


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
