"""A job's pods, as the state machine sees workers. Pure.

A pod that waits for its node is not a worker yet; one that has a node holds GPUs until it has
ended. What is known of a slot without a pod follows from the record: a slot that is new may still
be taken; one that is on its way out is closed, for a pod that came later would be taken away; and a
worker that was there and whose pod is gone was taken away by somebody, which is no fault of
the job's. So was one that was evicted or deleted, or that the kubelet did not let in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.names import JOB_GENERATION, JOB_RANK
from aliquot.model.job import State
from aliquot.model.record import Phase, Seen, Sight, Slot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.jobs.memory import Memory
    from aliquot.kubernetes.jobs.objects import Ended, JobPod
    from aliquot.model.record import Record

CANNOT_RUN = {"StartError", "ContainerCannotRun"}
DISRUPTED = "DisruptionTarget"
USUAL = {"Error", "Completed"}
LONGEST = 300


class Report(msgspec.Struct, frozen=True):
    """How fast the program was, by its own word."""

    samples_per_second: float | None = None
    size: int = 0


class Said(msgspec.Struct, frozen=True):
    """What a program has left in its termination message (`aliquot.worker`)."""

    ready: int | None = None
    report: Report | None = None


def slot_of(pod: JobPod) -> Slot | None:
    """The slot that a pod is; None where its labels do not say."""
    labels = pod.metadata.labels
    generation, rank = labels.get(JOB_GENERATION, ""), labels.get(JOB_RANK, "")
    if not (generation.isdecimal() and rank.isdecimal()):
        return None
    return Slot(int(generation), int(rank))


def look(memory: Memory, pods: Iterable[JobPod], refused: str | None) -> Seen:
    """What the controller of a job sees."""
    record = memory.record
    there = {slot: pod for pod in pods if (slot := slot_of(pod)) is not None}
    sights: dict[Slot, Sight] = {}
    held: set[Slot] = set()
    for slot, pod in there.items():
        if (sight := _sight(pod, stays=_stays(record, slot))) is not None:
            sights[slot] = sight
        if not pod.ended and (pod.spec.node_name or slot not in record.slots):
            held.add(slot)
    for slot in record.slots:
        if slot not in there and (missed := _missed(memory, slot)) is not None:
            sights[slot] = missed
    return Seen(sights, frozenset(held), refused)


def learn(memory: Memory, pods: Iterable[JobPod]) -> Memory:
    """The same with what ended pods say, which may be gone at the next look."""
    record = memory.record
    finished, speeds = set(memory.finished) & set(record.slots), dict(memory.speeds)
    for pod in pods:
        slot = slot_of(pod)
        if slot not in record.slots or not pod.ended:
            continue
        sight = _sight(pod)
        if record.leaving is None and sight is not None and sight.code == 0:
            finished.add(slot)
        said = _said(pod)
        if slot.rank == 0 and said.report and said.report.size and said.report.samples_per_second:
            speeds[said.report.size] = said.report.samples_per_second
    return msgspec.structs.replace(memory, finished=tuple(sorted(finished)), speeds=speeds)


def _missed(memory: Memory, slot: Slot) -> Sight | None:
    record = memory.record
    if slot in memory.finished:
        return Sight(Phase.ENDED, code=0)
    if record.leaving is not None and slot.rank >= record.leaving.keep:
        return Sight(Phase.VOID)
    is_new = slot.generation == record.generation
    if is_new and record.state in {State.STARTING, State.GROWING}:
        return None
    return Sight(Phase.ENDED, excused=True, note="was taken away: its pod is gone")


def _stays(record: Record, slot: Slot) -> bool:
    """Whether a worker goes on when others leave: it has no way to say that it is ready."""
    leaving = record.leaving
    return leaving is not None and slot in record.slots[: leaving.keep]


def _sight(pod: JobPod, *, stays: bool = False) -> Sight | None:
    if pod.ended:
        return _ending(pod)
    if pod.status.phase in {"Running", "Unknown"}:
        return Sight(Phase.ALIVE, ready=stays)
    return None


def _ending(pod: JobPod) -> Sight:
    ready = _said(pod).ready is not None
    if pod.status.phase == "Succeeded":
        return Sight(Phase.ENDED, code=0, ready=ready)
    failed = next((one for one in _ends(pod) if one.exit_code), None)
    disrupted = any(one.type == DISRUPTED and one.status == "True" for one in pod.status.conditions)
    if failed is None or disrupted or pod.metadata.deletion_timestamp:
        why = pod.status.reason or ("its pod was deleted" if failed else "the kubelet refused it")
        return Sight(Phase.ENDED, ready=ready, excused=True, note=f"was taken away: {why}")
    if failed.reason in CANNOT_RUN:
        return Sight(Phase.ENDED, failed.exit_code, unrunnable=failed.message[:LONGEST])
    note = "" if failed.reason in USUAL else failed.reason
    return Sight(Phase.ENDED, failed.exit_code, ready=ready, note=note)


def _ends(pod: JobPod) -> list[Ended]:
    states = (one.state.terminated for one in pod.status.container_statuses)
    return [one for one in states if one is not None]


def _said(pod: JobPod) -> Said:
    for one in _ends(pod):
        if one.message.startswith("{"):
            try:
                return msgspec.json.decode(one.message, type=Said)
            except msgspec.DecodeError:
                continue
    return Said()
