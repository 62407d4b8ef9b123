"""What pods with resource claims wait for, and what they were told about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.api.objects import PODS
from aliquot.kubernetes.dra.refusals import PodWait

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from aliquot.kubernetes.api.events import Recorder
    from aliquot.kubernetes.api.objects import Pod


class PodWaits:
    """A `PodWait` for each pod that waits, and events for what is new."""

    def __init__(self, recorder: Recorder, now: Callable[[], float]) -> None:
        self._recorder = recorder
        self._now = now
        self._waits: dict[str, PodWait] = {}  # by the pod's UID

    def of(self, uid: str) -> PodWait:
        """Why a pod waits."""
        return self._waits.get(uid, PodWait())

    def is_later(self, uid: str) -> bool:
        """Whether a pod is only tried again after a while, because the API server refused."""
        return self._now() < self.of(uid).later

    def bar(self, uid: str, node: str) -> None:
        """The pod did not fit a node."""
        self._waits[uid] = self.of(uid).bar(node, self._now())

    def fail(self, uid: str) -> None:
        """The API server refused a request about the pod."""
        self._waits[uid] = self.of(uid).fail(self._now())

    def barred(self, uid: str) -> set[str]:
        """The nodes that are not tried for a pod now."""
        return self.of(uid).barred_at(self._now())

    def bars(self, uid: str) -> str:
        """The nodes that a pod is kept from, as the end of a message; empty if there are none."""
        barred = sorted(self.barred(uid))
        if not barred:
            return ""
        some = ", ".join(barred[:3]) + (f" and {len(barred) - 3} more" if len(barred) > 3 else "")
        return f" kube-scheduler did not accept {some} for it, which is tried again later."

    def tell(
        self, pod: Pod, reason: str, message: str, reasons: Collection[str] | None = None
    ) -> None:
        """Record on a pod why it waits, if that is new: for another reason, or `reasons`."""
        uid = pod.metadata.uid
        why = frozenset((reason, *(reasons if reasons is not None else (message,))))
        after = self.of(uid).tell(why, self._now())
        if after is not None:
            self._waits[uid] = after
            self._recorder.record(PODS, pod, "Warning", reason, message)

    def keep(self, uids: Collection[str]) -> None:
        """Forget all pods but these."""
        self._waits = {uid: one for uid, one in self._waits.items() if uid in uids}
