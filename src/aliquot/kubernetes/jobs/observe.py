"""A job's pods as the workers of its state machine: who failed, who was only disrupted. Pure.

A pod without a node is not a worker yet. A pod with a node has GPUs until it has ended. For a slot
without a pod the answer follows from the job's state:

- A slot of a new generation may still get a pod.
- A slot that is being stopped is closed: a pod that appears later is deleted.
- Any other worker's pod was deleted by somebody, which is not the job's fault.

A worker is disrupted, at no cost to the job, if its pod was evicted or deleted, however its program
ended (a program that saves and exits with 0 has not finished), or if the kubelet did not admit it.
While one worker is disrupted, failures of the others count as disrupted too. All other failures are
the job's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.decode import decode_json
from aliquot.kubernetes.api.names import JOB_GENERATION, JOB_RANK
from aliquot.model.job import JobPhase
from aliquot.model.job_state import ObservedJob, ObservedWorker, Slot, WorkerPhase
from aliquot.placement.elastic.job import plausible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.api.elasticjob import ContainerTerminated, JobPod
    from aliquot.kubernetes.jobs.codec import SavedState
    from aliquot.model.job_state import JobState

CANNOT_RUN = {"StartError", "ContainerCannotRun"}
USUAL = {"Error", "Completed"}
DISRUPTION_REASONS = {
    "Evicted",
    "NodeAffinity",
    "NodeShutdown",
    "Preempting",
    "Terminated",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
}
OUT_OF = "OutOf"  # cpu, memory, pods ...: the node had less than the scheduler assumed
LONGEST_NOTE = 300


class SpeedReport(msgspec.Struct, frozen=True):
    """The speed that a program reported."""

    samples_per_second: float | None = None
    size: int = 0


class TerminationMessage(msgspec.Struct, frozen=True):
    """What a program wrote into its termination message (`aliquot.worker`)."""

    ready: int | None = None
    report: SpeedReport | None = None


def slot_of(pod: JobPod) -> Slot | None:
    """The slot of a pod; None if its labels do not name one."""
    labels = pod.metadata.labels
    generation, rank = labels.get(JOB_GENERATION, ""), labels.get(JOB_RANK, "")
    if not (generation.isdecimal() and rank.isdecimal()):
        return None
    return Slot(int(generation), int(rank))


def observe_job(
    saved: SavedState, pods: Iterable[JobPod], refused: str | None, blocked: str | None = None
) -> ObservedJob:
    """The job's workers as observed."""
    state = saved.state
    present = {slot: pod for pod in pods if (slot := slot_of(pod)) is not None}
    workers: dict[Slot, ObservedWorker] = {}
    allocated: set[Slot] = set()
    others_disrupted = state.stopping is None and any(
        slot in state.slots and pod.is_disrupted for slot, pod in present.items()
    )
    for slot, pod in present.items():
        if (worker := _worker_of(pod, keeps_running=_keeps_running(state, slot))) is not None:
            finished = slot in saved.finished
            workers[slot] = _with_disruptions(
                worker, finished=finished, others_disrupted=others_disrupted and slot in state.slots
            )
        if not pod.ended and (pod.spec.node_name or slot not in state.slots):
            allocated.add(slot)
    for slot in state.slots:
        if slot not in present and (worker := _without_pod(saved, slot)) is not None:
            workers[slot] = worker
    return ObservedJob(workers, frozenset(allocated), refused=refused, blocked=blocked)


def remember_ended(saved: SavedState, pods: Iterable[JobPod]) -> SavedState:
    """The saved state with what ended pods say: somebody may delete them before the next step."""
    state = saved.state
    finished, speeds = set(saved.finished) & set(state.slots), dict(saved.speeds)
    for pod in pods:
        slot = slot_of(pod)
        if slot not in state.slots or not pod.ended:
            continue
        worker = _worker_of(pod)
        if state.stopping is None and worker is not None and worker.code == 0:
            finished.add(slot)
        message = _termination_message(pod)
        if slot.rank == 0 and message.report and message.report.samples_per_second:
            size, speed = message.report.size, message.report.samples_per_second
            if plausible(size, speed):
                speeds[size] = speed
    return msgspec.structs.replace(saved, finished=tuple(sorted(finished)), speeds=speeds)


def _without_pod(saved: SavedState, slot: Slot) -> ObservedWorker | None:
    state = saved.state
    if slot in saved.finished:
        return ObservedWorker(WorkerPhase.ENDED, code=0)
    if state.stopping is not None and slot.rank >= state.stopping.keep:
        return ObservedWorker(WorkerPhase.VOID)
    is_new = slot.generation == state.generation
    if is_new and state.phase in {JobPhase.STARTING, JobPhase.GROWING}:
        return None
    return ObservedWorker(
        WorkerPhase.ENDED, disrupted=True, note="was disrupted: its pod was deleted"
    )


def _keeps_running(state: JobState, slot: Slot) -> bool:
    """Whether a worker keeps running while others stop: it cannot report that it is ready."""
    stopping = state.stopping
    return stopping is not None and slot in state.slots[: stopping.keep]


def _worker_of(pod: JobPod, *, keeps_running: bool = False) -> ObservedWorker | None:
    if pod.ended:
        return _ended_worker(pod)
    if pod.status.phase in {"Running", "Unknown"}:
        return ObservedWorker(WorkerPhase.ALIVE, ready=keeps_running)
    return None


def _with_disruptions(
    worker: ObservedWorker, *, finished: bool, others_disrupted: bool
) -> ObservedWorker:
    """The worker, corrected by what was saved before and by disruptions of the others."""
    if finished and worker.disrupted:
        return ObservedWorker(WorkerPhase.ENDED, code=0, ready=worker.ready)
    failed = worker.closed and worker.code != 0 and not worker.disrupted
    if others_disrupted and failed and worker.unrunnable is None:
        return replace(worker, disrupted=True, note="ended when another worker was disrupted")
    return worker


def _ended_worker(pod: JobPod) -> ObservedWorker:
    ready, reason = _termination_message(pod).ready is not None, pod.status.reason
    if pod.is_disrupted or reason in DISRUPTION_REASONS or reason.startswith(OUT_OF):
        why = reason or "its pod was deleted"
        return ObservedWorker(
            WorkerPhase.ENDED, ready=ready, disrupted=True, note=f"was disrupted: {why}"
        )
    if pod.status.phase == "Succeeded":
        return ObservedWorker(WorkerPhase.ENDED, code=0, ready=ready)
    failed = next((one for one in _ends(pod) if one.exit_code), None)
    if failed is None:
        return ObservedWorker(WorkerPhase.ENDED, ready=ready, note=reason)
    if failed.reason in CANNOT_RUN:
        return ObservedWorker(
            WorkerPhase.ENDED, failed.exit_code, unrunnable=failed.message[:LONGEST_NOTE]
        )
    note = reason or ("" if failed.reason in USUAL else failed.reason)
    return ObservedWorker(WorkerPhase.ENDED, failed.exit_code, ready=ready, note=note)


def _ends(pod: JobPod) -> list[ContainerTerminated]:
    every = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return [one.state.terminated for one in every if one.state.terminated is not None]


def _termination_message(pod: JobPod) -> TerminationMessage:
    for one in pod.status.container_statuses:
        ended = one.state.terminated
        if ended is not None and ended.message.startswith("{"):
            try:
                return decode_json(ended.message, TerminationMessage)
            except msgspec.DecodeError:
                return TerminationMessage(ready=0)  # truncated or garbled, but the program wrote it
    return TerminationMessage()
