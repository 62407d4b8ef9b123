"""What an arbiter says of itself in its reply to `status`: its GPUs, grants and processes.

An older arbiter leaves out what it does not know; those fields have the value that was meant then.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

from aliquot.model import (
    Admission,
    ComputeUse,
    Gates,
    Gpu,
    GpuProcess,
    Grant,
    GrantState,
    Isolation,
    Life,
    MemoryTurns,
    Moved,
    Parking,
    ParkingStep,
    Policy,
    Priority,
    Process,
    Residence,
    Slice,
    SliceUse,
    Turn,
    format_bytes,
    name_for,
)
from aliquot.model.neighbours import Neighbours
from aliquot.model.strength import UNKNOWN, Throughput, strength_of

_NANOSECONDS = 1_000_000_000
_THRASHES = 0.2  # of the time
MPS_SERVER = "nvidia-cuda-mps"  # the kernel keeps 15 characters of nvidia-cuda-mps-server


@dataclass(frozen=True, slots=True)
class Mover:
    """The process that copies memory between a GPU and the host, and its memory there.

    It has `host_bytes`; copies use `held_bytes` of them. It has made no progress for
    `silent_seconds`, and the arbiter has replaced it `hangs` times because of that.
    """

    host_bytes: int
    held_bytes: int
    hangs: int = 0
    silent_seconds: int = 0


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The host's memory that an arbiter has for memory that leaves GPUs.

    It takes `limit_bytes` at most and has taken `ready_bytes`; copies use `used_bytes` of these.
    """

    limit_bytes: int
    ready_bytes: int
    used_bytes: int

    def __str__(self) -> str:
        ready, used = format_bytes(self.ready_bytes), format_bytes(self.used_bytes)
        return f"{ready} ready, {used} in use, of {format_bytes(self.limit_bytes)}"


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """A GPU, how much of it is granted, and the processes that use it outside all grants.

    `answers`: NVML reports on it; a GPU that has fallen off the bus does not answer.
    `contended`: slices take turns on it. `context_bytes` is what one context takes of it, 0 if that
    is not known yet; `context_is_measured`: it is no estimate. `mover` is None until it has had a
    swappable slice. Slices that take turns may have `overcommit` times its memory together; memory
    moved for turns in the part `moving` of the last minute. The host may have `host_limit` bytes of
    memory that leaves GPUs, None if that is not known; `host_elsewhere` of them are set aside for
    something else than this GPU (`turn_room.with_host_use`). `allows_mps`: slices may be of clients
    of an MPS server; `servers` are the MPS servers on it, which are no strangers.
    """

    gpu: Gpu
    granted_bytes: int
    strangers: tuple[GpuProcess, ...]
    answers: bool = True
    contended: bool = False
    context_bytes: int = 0
    context_is_measured: bool = False
    mover: Mover | None = None
    overcommit: float = 1.0
    moving: float = 0.0
    allows_mps: bool = True
    servers: tuple[GpuProcess, ...] = ()
    host_limit: int | None = None
    host_elsewhere: int = 0

    @property
    def unmanaged_bytes(self) -> int:
        """The memory that programs outside all grants use, as far as the driver says."""
        return sum(process.bytes or 0 for process in (*self.strangers, *self.servers))

    @property
    def thrashes(self) -> bool:
        """Whether more than a fifth of the time goes into moving memory for turns."""
        return self.moving > _THRASHES


@dataclass(frozen=True, slots=True)
class Status:
    """The status of an arbiter at one instant; `answer` is its reply as it came.

    `gpus` are those that slices can be of: of a GPU in MIG mode, its instances.

    `now` is a monotonic clock in seconds. `credit_cpu_seconds` is the processor time of the thread
    that gives credit. `nvml_silent_seconds`: for how long NVML has not answered; 0 if it does.
    `driver_version` is that of the NVML which it loaded; empty if it does not say. `asker_uid` is
    who asked, as the arbiter sees it: in a user namespace this process calls its user another name.
    """

    pid: int
    gpus: tuple[SharedGpu, ...]
    grants: tuple[Grant, ...]
    answer: dict[str, Any]
    now: float = 0.0
    credit_cpu_seconds: float = 0.0
    nvml_silent_seconds: float = 0.0
    driver_version: str = ""
    asker_uid: int = field(default_factory=os.geteuid)

    @property
    def knows_neighbours(self) -> bool:
        """Whether this arbiter keeps slices apart and alone; an older one refuses to."""
        return bool(self.answer.get("knows_neighbours", False))

    @property
    def knows_swap(self) -> bool:
        """Whether this arbiter makes swappable grants; an older one refuses to."""
        return bool(self.answer.get("knows_swap", False))

    @property
    def knows_parking(self) -> bool:
        """Whether this arbiter parks idle grants; an older one refuses to."""
        return bool(self.answer.get("knows_parking", False))

    @property
    def knows_swap_wait(self) -> bool:
        """Whether a slice may say how long it is off its GPU; an older arbiter refuses to."""
        return bool(self.answer.get("knows_swap_wait", False))

    @property
    def knows_queue_overcommit(self) -> bool:
        """Whether a slice may say how much is granted beside it; an older arbiter refuses to."""
        return bool(self.answer.get("knows_queue_overcommit", False))

    @property
    def knows_spill(self) -> bool:
        """Whether this arbiter grants memory of the host; an older one refuses to."""
        return bool(self.answer.get("knows_spill", False))

    @property
    def knows_mps(self) -> bool:
        """Whether this arbiter makes grants for clients of MPS servers; an older one refuses to."""
        return bool(self.answer.get("knows_mps", False))

    @property
    def host_memory(self) -> HostMemory | None:
        """The host's memory for memory that leaves GPUs; None if no GPU has used it."""
        movers = [one.mover for one in self.gpus if one.mover is not None]
        if not movers:
            return None
        return HostMemory(
            limit_bytes=self.answer.get("host_memory_bytes", 0),  # an older arbiter does not say
            ready_bytes=sum(one.host_bytes for one in movers),
            used_bytes=sum(one.held_bytes for one in movers),
        )

    @property
    def admission(self) -> Admission:
        """Who may ask this arbiter for grants."""
        return Admission(self.answer.get("admission", Admission.USERS))  # an older one has none


def parse_status(answer: dict[str, Any]) -> Status:
    """Read a reply; KeyError, TypeError or ValueError if it is none of this protocol."""
    asker = int(answer.get("asker_uid", os.geteuid()))  # an older arbiter does not tell it
    limit = answer.get("host_memory_bytes")
    known = [replace(_gpu(one), host_limit=limit) for one in answer["gpus"]]
    gpus = [one for one in known if not one.gpu.mig]
    return Status(
        pid=answer["pid"],
        gpus=tuple(sorted(gpus, key=lambda one: one.gpu.index)),
        grants=tuple(_grant(one, asker) for one in answer["grants"]),
        answer=answer,
        now=answer["now_ns"] / _NANOSECONDS,
        credit_cpu_seconds=answer["credit_cpu_ns"] / _NANOSECONDS,
        nvml_silent_seconds=answer.get("nvml_silent_ns", 0) / _NANOSECONDS,
        driver_version=answer.get("driver_version", ""),
        asker_uid=asker,
    )


def _gpu(reply: dict[str, Any]) -> SharedGpu:
    outside = _processes(reply["strangers"])
    servers = tuple(one for one in outside if one.name.startswith(MPS_SERVER))
    return SharedGpu(
        gpu=Gpu(
            index=reply["index"],
            uuid=reply["uuid"],
            name=reply["name"],
            pci_bus_id=reply["pci_bus_id"],
            memory_bytes=reply["memory_bytes"],
            used_bytes=reply["used_bytes"],
            strength=strength_of(reply["name"]) or _reported_strength(reply.get("figures")),
            mig=reply.get("mig", False),  # an older arbiter does not say
            instance_of=reply.get("instance_of"),
            gone=reply.get("gone", False),
        ),
        granted_bytes=reply["granted_bytes"],
        strangers=tuple(one for one in outside if one not in servers),
        answers=reply.get("answers", True),
        contended=reply["compute"]["contended"],
        context_bytes=reply.get("context_bytes", 0),
        context_is_measured=reply.get("context_is_measured", False),
        mover=_mover(reply.get("mover")),
        overcommit=reply.get("overcommit_percent", 100) / 100,  # an older arbiter has no turns
        moving=reply.get("moving_permille", 0) / 1000,
        allows_mps=reply.get("allows_mps", False),  # an older arbiter makes no such grants
        servers=servers,
    )


def _mover(reply: dict[str, Any] | None) -> Mover | None:
    """An older arbiter has none, or one that it does not watch."""
    if reply is None:
        return None
    return Mover(
        host_bytes=reply["host_bytes"],
        held_bytes=reply["held_bytes"],
        hangs=reply.get("hangs", 0),
        silent_seconds=reply.get("silent_seconds", 0),
    )


def _reported_strength(figures: dict[str, Any] | None) -> float:
    """By what the driver reports; an older arbiter or driver says nothing."""
    if figures is None:
        return UNKNOWN
    capability = tuple(figures["capability"])
    return Throughput.of_device(**{**figures, "capability": capability}).strength


def _processes(reply: list[dict[str, Any]]) -> tuple[GpuProcess, ...]:
    return tuple(GpuProcess(pid=one["pid"], name=one["name"], bytes=one["bytes"]) for one in reply)


def _grant(reply: dict[str, Any], asker: int) -> Grant:
    return Grant(
        name=name_for(asker, reply["owner_uid"], reply["name"]),
        directory=reply["directory"] or "",
        owner_pid=reply["owner_pid"],
        owner_alive=reply["owner_alive"],
        owner_uid=reply["owner_uid"],
        life=Life(reply["life"]),
        state=_state(reply),
        together=reply.get("together"),
        neighbours=Neighbours(
            label=reply.get("label"),  # an older arbiter has none of these
            apart_from=tuple(reply.get("apart", ())),
            alone=reply.get("alone", False),
        ),
        created=reply["created"],
        broken=reply["broken"],
        residence=_residence(reply),
        staying_bytes=reply.get("staying_bytes", 0),
        parking=_parking(reply),
        spill_bytes=reply.get("spill_bytes", 0),  # an older arbiter has none
        on_host_bytes=reply.get("on_host_bytes", 0),
        isolation=Isolation(
            reply.get("isolation", Isolation.SOFT)
        ),  # an older arbiter has no other
        turns=_turns(reply),
        cgroup=reply.get("cgroup"),
        cgroup_is_told=reply.get("cgroup_is_told", False),
        unjoined=_processes(reply.get("unjoined", [])),
        slices=tuple(
            Slice(
                gpu_uuid=part["gpu"],
                memory_bytes=part["memory_bytes"],
                compute_percent=part["compute_percent"],
                policy=Policy(part["policy"]),
                priority=Priority(part["priority"]),
            )
            for part in reply["slices"]
        ),
        use=tuple(map(_use, reply["slices"])),
        compute=tuple(_compute(part["compute"]) for part in reply["slices"]),
        processes=tuple(
            Process(
                pid=one["pid"],
                name=one["name"],
                state=one["state"],
                use=tuple(map(_use, one["slices"])),
                ties=tuple(one.get("ties", ())),
                inside=one.get("inside", 0),
                ungated=one.get("ungated"),
                stopped=one.get("stopped", False),
                moved=_moved(one),
                on_host_bytes=one.get("on_host_bytes", 0),
            )
            for one in reply["processes"]
        ),
    )


def _state(reply: dict[str, Any]) -> GrantState:
    """Its state; for the arbiter, a grant is parked while others have their turn."""
    if reply.get("off_turn", False):
        return GrantState.ACTIVE
    return GrantState(reply.get("state", GrantState.ACTIVE))  # an older arbiter has none


def _turns(reply: dict[str, Any]) -> MemoryTurns | None:
    """None if it takes none; an older arbiter knows of no turns."""
    if not reply.get("takes_turns", False):
        return None
    off_for = reply["off_for_ns"]
    return MemoryTurns(
        wait_seconds=reply["swap_wait_ms"] / 1000,
        is_off=reply["off_turn"],
        times=reply["off_times"],
        seconds=reply["off_ns"] / _NANOSECONDS,
        longest_seconds=reply["longest_off_ns"] / _NANOSECONDS,
        for_seconds=None if off_for is None else off_for / _NANOSECONDS,
        why=reply["parking_why"],
        most=reply.get("turns_percent", 0) / 100 or None,  # an older arbiter does not say
    )


def _residence(reply: dict[str, Any]) -> Residence | None:
    """Where its memory shall be; grants of an older arbiter are not swappable."""
    return Residence(reply["residence"]) if reply.get("swap", False) else None


def _parking(reply: dict[str, Any]) -> Parking | None:
    """None if it stays on its GPU; an older arbiter parks nothing."""
    if reply.get("park_after_ms") is None:
        return None
    parked_for = reply["parked_for_ns"]
    return Parking(
        after_seconds=reply["park_after_ms"] / 1000,
        step=ParkingStep(reply["parking"]),
        times=reply["parked_times"],
        seconds=reply["parked_ns"] / _NANOSECONDS,
        for_seconds=None if parked_for is None else parked_for / _NANOSECONDS,
        waits=reply["parking_waits"],
        why=reply["parking_why"],
        if_wanted=reply["park_if_wanted"],
        is_due=reply["park_due"],
    )


def _moved(reply: dict[str, Any]) -> Moved | None:
    if "settled" not in reply:
        return None
    return Moved(
        residence=Residence(reply["residence"]),
        settled=reply["settled"],
        away_bytes=reply["away_bytes"],
        fixed_bytes=reply["fixed_bytes"],
        failed=reply["move_failed"],
    )


def _use(part: dict[str, Any]) -> SliceUse:
    return SliceUse(
        gpu_uuid=part["gpu"],
        counted_bytes=part["counted_bytes"],
        driver_bytes=part["driver_bytes"],
    )


def _compute(reply: dict[str, Any]) -> ComputeUse:
    return ComputeUse(
        gates=Gates(reply["gates"]),
        why=reply["why"],
        turn=Turn(reply["state"]),
        weight_percent=reply["weight_percent"],
        used_seconds=reply["used_ns"] / _NANOSECONDS,
        handovers=reply["handovers"],
        fallbacks=reply["fallbacks"],
        backlog_quanta=reply["backlog"],
        waits=reply["waits"],
        waited_seconds=reply["waited_ns"] / _NANOSECONDS,
        wait_p50_seconds=reply["wait_p50_ns"] / _NANOSECONDS if reply["waits"] else None,
        wait_p99_seconds=reply["wait_p99_ns"] / _NANOSECONDS if reply["waits"] else None,
        recent_used_seconds=reply["recent_used_ns"] / _NANOSECONDS,
        recent_seconds=reply["recent_ns"] / _NANOSECONDS,
        idle_seconds=None if reply.get("idle_ns") is None else reply["idle_ns"] / _NANOSECONDS,
    )
