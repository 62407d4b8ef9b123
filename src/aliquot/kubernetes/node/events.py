"""Events on this node's pods and on the node itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.objects import NODES, PODS, Meta, Node

if TYPE_CHECKING:
    from aliquot.kubernetes.api.events import Recorder, Type
    from aliquot.kubernetes.node.roster import Guest

_log = structlog.get_logger(__name__)


class Events:
    """Says things, in the log too."""

    def __init__(self, recorder: Recorder, node: str) -> None:
        self._recorder = recorder
        self._node = Node(Meta(name=node, uid=node))  # so the kubelet refers to its node

    def say(self, guest: Guest, reason: str, text: str, *, warning: bool = True) -> None:
        """On a pod; one that nobody knows cannot be told anything."""
        _log.info(text, reason=reason, pod=guest.pod.key)
        if guest.is_known:
            self._recorder.record(PODS, guest.pod, _type(warning=warning), reason, text)

    def say_of_node(self, reason: str, text: str, *, warning: bool = True) -> None:
        """On the node."""
        _log.info(text, reason=reason)
        self._recorder.record(NODES, self._node, _type(warning=warning), reason, text)


def _type(*, warning: bool) -> Type:
    return "Warning" if warning else "Normal"
