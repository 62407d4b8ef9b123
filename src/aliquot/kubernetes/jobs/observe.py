"""A job's pods, as the state machine sees workers. Pure.

A pod that waits for its node is not a worker yet; one that has a node holds GPUs until it has
ended. What is known of a slot without a pod follows from the record: a slot that is new may still
be taken; one that is on its way out is closed, for a pod that came later would be taken away; and a
worker that was there and whose pod is gone was taken away by somebody, which is no fault of
the job's. So was one that was evicted or deleted, however its program ended then (one that saves
and exits 0 has not finished), or that the kubelet did not let in. While one is taken away the
others break down with it: that is excused as well. All else that fails is the job's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.names import JOB_GENERATION, JOB_RANK
from aliquot.model.job import State
from aliquot.model.status import Phase, Seen, Sight, Slot
from aliquot.placement.elastic.job import plausible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.api.elasticjob import Ended, JobPod
    from aliquot.kubernetes.jobs.codec import Memory
    from aliquot.model.status import Record

CANNOT_RUN = {"StartError", "ContainerCannotRun"}
USUAL = {"Error", "Completed"}
EXCUSES = {
    "Evicted",
    "NodeAffinity",
    "NodeShutdown",
    "Preempting",
    "Terminated",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
}
OUT_OF = "OutOf"  # cpu, memory, pods ...: the node had less than the scheduler thought
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


def look(
    memory: Memory, pods: Iterable[JobPod], refused: str | None, stuck: str | None = None
) -> Seen:
    """What the controller of a job sees."""
    record = memory.record
    there = {slot: pod for pod in pods if (slot := slot_of(pod)) is not None}
    sights: dict[Slot, Sight] = {}
    held: set[Slot] = set()
    taken = record.leaving is None and any(
        slot in record.slots and pod.is_taken for slot, pod in there.items()
    )
    for slot, pod in there.items():
        if (sight := _sight(pod, stays=_stays(record, slot))) is not None:
            finished = slot in memory.finished
            sights[slot] = _judged(sight, finished=finished, taken=taken and slot in record.slots)
        if not pod.ended and (pod.spec.node_name or slot not in record.slots):
            held.add(slot)
    for slot in record.slots:
        if slot not in there and (missed := _missed(memory, slot)) is not None:
            sights[slot] = missed
    return Seen(sights, frozenset(held), refused=refused, stuck=stuck)


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
        if slot.rank == 0 and said.report and said.report.samples_per_second:
            size, speed = said.report.size, said.report.samples_per_second
            if plausible(size, speed):
                speeds[size] = speed
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


def _judged(sight: Sight, *, finished: bool, taken: bool) -> Sight:
    """The same in the light of what was seen before, and of the others."""
    if finished and sight.excused:
        return Sight(Phase.ENDED, code=0, ready=sight.ready)
    failed = sight.closed and sight.code != 0 and not sight.excused
    if taken and failed and sight.unrunnable is None:
        return replace(sight, excused=True, note="ended when another was taken away")
    return sight


def _ending(pod: JobPod) -> Sight:
    ready, reason = _said(pod).ready is not None, pod.status.reason
    if pod.is_taken or reason in EXCUSES or reason.startswith(OUT_OF):
        why = reason or "its pod was deleted"
        return Sight(Phase.ENDED, ready=ready, excused=True, note=f"was taken away: {why}")
    if pod.status.phase == "Succeeded":
        return Sight(Phase.ENDED, code=0, ready=ready)
    failed = next((one for one in _ends(pod) if one.exit_code), None)
    if failed is None:
        return Sight(Phase.ENDED, ready=ready, note=reason)
    if failed.reason in CANNOT_RUN:
        return Sight(Phase.ENDED, failed.exit_code, unrunnable=failed.message[:LONGEST])
    note = reason or ("" if failed.reason in USUAL else failed.reason)
    return Sight(Phase.ENDED, failed.exit_code, ready=ready, note=note)


def _ends(pod: JobPod) -> list[Ended]:
    every = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return [one.state.terminated for one in every if one.state.terminated is not None]


def _said(pod: JobPod) -> Said:
    for one in pod.status.container_statuses:
        ended = one.state.terminated
        if ended is not None and ended.message.startswith("{"):
            try:
                return msgspec.json.decode(ended.message, type=Said)
            except msgspec.DecodeError:
                return Said(ready=0)  # cut off or garbled, but it did speak
    return Said()
