"""Events on gangs and their pods: each new phase once, and a new time at which one is to start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.api.gang import GANGS, Phase
from aliquot.kubernetes.api.objects import PODS
from aliquot.kubernetes.api.times import stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aliquot.kubernetes.api.events import Recorder, Type
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.membership import GangKey
    from aliquot.kubernetes.gangs.state import GangState
    from aliquot.kubernetes.gangs.store import Store

TOLD = 16  # members that get an event


class GangEvents:
    """Says what is new."""

    def __init__(self, recorder: Recorder, store: Store) -> None:
        self._recorder = recorder
        self._store = store
        self._told: dict[GangKey, tuple[Phase, str]] = {}

    def tell(self, gang: GangState) -> None:
        """A new phase at once; new words of an old one, where they are about when it starts."""
        words = {
            Phase.GATHERING: "",
            Phase.WAITING: "" if gang.planned is None else stamp(gang.planned)[:16],
        }
        now = gang.phase, words.get(gang.phase, gang.reason)
        if self._told.get(gang.key) == now or not gang.reason:
            return
        self._told[gang.key] = now
        is_bad = gang.phase in {Phase.REFUSED, Phase.BOUND}  # where all is well, nothing is said
        kind: Type = "Warning" if is_bad else "Normal"
        self._say(gang, kind, gang.phase, gang.reason)

    def tell_of_claims(
        self, claims: Iterable[tuple[GangState, str, Mapping[str, str]]], pods: Mapping[str, Pod]
    ) -> None:
        """Who has the places of others; and why not, those whose they were, by UID."""
        for gang, why, told in claims:
            self._say(gang, "Normal", "Preempts", why)
            for uid, text in told.items():
                if uid in pods:
                    self._recorder.record(PODS, pods[uid], "Warning", "Preempted", text)

    def warn(self, gang: GangState, reason: str, message: str) -> None:
        """Something that people may want to do something about."""
        self._say(gang, "Warning", reason, message)

    def forget(self, key: GangKey) -> None:
        """It is gone."""
        self._told.pop(key, None)

    def _say(self, gang: GangState, kind: Type, reason: str, message: str) -> None:
        for pod in gang.members[:TOLD]:
            self._recorder.record(PODS, pod, kind, reason, f"gang {gang.key.name}: {message}")
        self._recorder.record(GANGS, self._store.object(gang.key), kind, reason, message)
