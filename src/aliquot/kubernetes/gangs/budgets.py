"""What follows where disruption budgets keep pods from ending.

Who was to make room for another gang is spared for a while, and another way is sought; nobody else
ends for what was claimed. A half of a gang that was to end stays, and is told so: its missing
members are placed when there is room. That is also so for one of which some have ended for another,
and the others may not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.cluster.workloads import work_name

if TYPE_CHECKING:
    from aliquot.kubernetes.cluster.workloads import Workloads
    from aliquot.kubernetes.gangs.events import GangEvents
    from aliquot.kubernetes.gangs.evictions import GatesAndEvictions
    from aliquot.kubernetes.gangs.reservations import Reservations, Times
    from aliquot.kubernetes.gangs.state import GangState


class Budgets:
    """Looks at what evictions were answered with."""

    def __init__(
        self,
        roster: Workloads,
        reservations: Reservations,
        doors: GatesAndEvictions,
        teller: GangEvents,
        times: Times,
    ) -> None:
        self._roster = roster
        self._reservations = reservations
        self._doors = doors
        self._teller = teller
        self._times = times

    def look(self, now: float) -> None:
        """All refusals so far."""
        if not self._doors.refusals:
            return
        gangs = self._roster.gangs.values()
        for gang in gangs:
            self._give_up_claim(gang, now)
        wanted = {uid for gang in gangs for uid in gang.making_room}
        for gang in gangs:
            if gang.leaving and not any(uid in wanted for uid in gang.pods):
                self._keep_half(gang, now)

    def _give_up_claim(self, gang: GangState, now: float) -> None:
        """Others that are kept from ending are not waited for: another way is sought."""
        refused = [uid for uid in gang.making_room if uid in self._doors.refusals]
        since = min((self._doors.refused_at[uid] for uid in refused), default=now)
        if now - max(gang.moved, since) <= self._times.room:
            return
        for uid in refused:
            pod = self._roster.pods.get(uid)
            if pod is not None:
                gang.spared[work_name(pod)] = now + 5 * self._times.room
        why = str(self._doors.refusals[refused[0]])
        self._doors.forget(refused)
        self._reservations.give_up(gang, why, now, pause=False)

    def _keep_half(self, gang: GangState, now: float) -> None:
        """A half that may not be ended stays, and is to be completed."""
        refused = [
            self._doors.refusals[one.metadata.uid]
            for one in gang.staying
            if one.metadata.uid in self._doors.refusals
        ]
        if not refused or (now - gang.ends_at <= self._times.room and not gang.kept):
            return
        first = not gang.kept
        gang.stay(str(refused[0]), now)
        self._doors.forget(one.metadata.uid for one in gang.staying)
        if first:
            text = f"{gang.kept}: its other pods are placed as soon as there is room"
            self._teller.warn(gang, "Kept", text)
