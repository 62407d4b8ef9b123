"""What people are told about gangs: why one waits and until when, and events for what is new."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aliquot.kubernetes.api.gang import GANGS, Phase
from aliquot.kubernetes.api.objects import PODS
from aliquot.kubernetes.api.times import clock, stamp
from aliquot.placement.core.demand import Kind
from aliquot.placement.core.links import Reach
from aliquot.placement.core.topology import slowest_link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aliquot.kubernetes.api.events import Recorder, Type
    from aliquot.kubernetes.api.gang import GangObject
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.membership import GangKey
    from aliquot.kubernetes.cluster.workloads import Workloads
    from aliquot.kubernetes.gangs.state import GangState
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Gang, Placement, Running
    from aliquot.placement.core.snapshot import Hardware

MOST_PODS = 16  # members of a gang that get an event
MOST_DELAYED = 16  # events of a Gang that the API server does not have yet; the last ones are kept


@dataclass(frozen=True, slots=True)
class PreemptionNotice:
    """A gang that gets the GPUs of others, why, and what each victim pod is told, by UID."""

    preemptor: GangKey
    why: str
    victims: Mapping[str, str]


class GangEvents:
    """Writes an event for each new phase, and for each new planned start.

    `object_of` is the Gang object that an event is about. Until the object exists it has no UID,
    and `kubectl describe gang` shows no event without one: such events wait for `written`.
    """

    def __init__(
        self, recorder: Recorder, workloads: Workloads, object_of: Callable[[GangKey], GangObject]
    ) -> None:
        self._recorder = recorder
        self._workloads = workloads
        self._object_of = object_of
        self._last: dict[GangKey, tuple[Phase, str]] = {}
        self._delayed: dict[GangKey, deque[tuple[Type, str, str]]] = {}

    def report(self, gang: GangState) -> None:
        """Write an event if the phase is new, or the planned start of a gang that waits."""
        planned = "" if gang.planned is None else stamp(gang.planned.start)[:16]
        texts = {Phase.GATHERING: "", Phase.WAITING: planned}
        now = gang.phase, texts.get(gang.phase, gang.reason)
        if self._last.get(gang.key) == now or not gang.reason:
            return
        self._last[gang.key] = now
        # A gang that is bound as planned has no reason: one with a reason has a problem.
        is_problem = gang.phase in {Phase.REFUSED, Phase.BOUND}
        self._record(gang.key, "Warning" if is_problem else "Normal", gang.phase, gang.reason)

    def report_preemptions(self, preemptions: Iterable[PreemptionNotice]) -> None:
        """Tell each gang that it preempts others, and each victim why."""
        for one in preemptions:
            self._record(one.preemptor, "Normal", "Preempts", one.why)
            for uid, text in one.victims.items():
                pod = self._workloads.pods.get(uid)
                if pod is not None:
                    self._recorder.record(PODS, pod, "Warning", "Preempted", text)

    def warn(self, key: GangKey, reason: str, message: str) -> None:
        """Write an event about something that people may want to act on."""
        self._record(key, "Warning", reason, message)

    def written(self, key: GangKey) -> None:
        """The API server has the Gang: write the events that waited for it."""
        about = self._object_of(key)
        if about.metadata.uid:
            for kind, reason, message in self._delayed.pop(key, ()):
                self._recorder.record(GANGS, about, kind, reason, message)

    def forget(self, key: GangKey) -> None:
        """A gang is gone."""
        self._last.pop(key, None)
        self._delayed.pop(key, None)

    def _record(self, key: GangKey, kind: Type, reason: str, message: str) -> None:
        pods = self._workloads.gangs.get(key)
        members: Sequence[Pod] = [] if pods is None else pods.members
        about = "" if pods is None or pods.is_single else f"gang {key.name}: "
        for pod in members[:MOST_PODS]:
            self._recorder.record(PODS, pod, kind, reason, f"{about}{message}")
        self._delayed.setdefault(key, deque(maxlen=MOST_DELAYED)).append((kind, reason, message))
        self.written(key)


# --- messages -------------------------------------------------------------------------------------


def why_later(
    gang: Gang,
    allocations: Allocations,
    planned: Running | None,
    running: Sequence[Running],
    now: float,
) -> str:
    """Why a gang waits, and until when: "4 GPUs requested; 2 free; planned for about 14:05 UTC"."""
    text = f"{_requested(gang)}; {_free(allocations)}"
    if planned is None:
        return text
    text += f"; planned for about {clock(planned.start, now)}"
    after = _before(planned, running)
    return f"{text}, after {after}" if after else text


def _requested(gang: Gang) -> str:
    count = gang.milli / 1000
    return "1 GPU requested" if count == 1 else f"{count:g} GPUs requested"


def _free(allocations: Allocations) -> str:
    hardware = allocations.hardware
    free = (hardware.present & (allocations.kind == Kind.FREE)).sum(axis=1)
    text = f"{int(free.sum())} free"
    rows = hardware.present.any(axis=1)
    if len(np.unique(hardware.rack[rows])) in {0, 1, int(rows.sum())}:
        return text  # there are no racks, or only one
    return f"{text}, {int(np.bincount(hardware.rack, weights=free).max())} of them in one rack"


def _before(planned: Running, running: Sequence[Running]) -> str:
    """The work that must end first on the nodes of a planned start: the last of it."""
    nodes = {one.node for one in planned.placements}
    first = sorted(
        (
            one
            for one in running
            if one.end <= planned.start and nodes & {place.node for place in one.placements}
        ),
        key=lambda one: (one.end, one.gang.name),
    )
    if not first:
        return ""
    others = len(first) - 1
    more = "" if not others else f" and {others} other{'s' if others > 1 else ''}"
    return f"{first[-1].gang.name}{more}"


def closeness(hardware: Hardware, placements: Sequence[Placement]) -> str:
    """How close members are to each other."""
    rows = sorted({one.node for one in placements})
    link = slowest_link(hardware, placements)
    if len(rows) == 1:
        gpus = {gpu for one in placements for gpu in one.gpus}
        return "one node, NVLink" if link >= Reach.NVLINK and len(gpus) > 1 else "one node"
    racks, blocks = set(hardware.rack[rows].tolist()), set(hardware.block[rows].tolist())
    if len(racks) == 1:
        return f"{len(rows)} nodes of one rack"
    if len(blocks) > 1:
        return f"{len(blocks)} blocks"
    named = len(np.unique(hardware.block)) > 1
    many = f"{len(racks)} racks" if len(racks) < len(rows) else f"{len(rows)} nodes"
    return f"{many} of one block" if named else many
