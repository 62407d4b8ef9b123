"""Writes the pods of each node into its GPUNode, for agents that have no right to read pods.

The writer compares what each GPUNode should have with what it has (a digest), and writes those that
differ. So it does not matter where it was killed, who has changed an object, or who led before: a
new leader first lists the pods again. Nobody else writes the `spec`, and the agent writes nothing
but the `status`, so neither overwrites what the other has written. A write names the version that
it was compared with: one of a leader before that comes late is refused, and takes no pod from an
agent that the leader of now has written.

A pod that is new or gone, or whose annotations have changed, is written at once, and what comes to
the same node within `BATCH_SECONDS` after that with the next write. That a container runs or was
restarted may wait for `LATER_SECONDS`. Bindings never wait for a write.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.node_pods import NODE_PODS, record_of, spec_of
from aliquot.kubernetes.api.objects import GPU_NODES, LIVE_PODS
from aliquot.kubernetes.api.requests import asks
from aliquot.kubernetes.api.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.node_pods import NodePod, NodePodsSpec, PodRecord
    from aliquot.kubernetes.api.objects import GpuNode
    from aliquot.kubernetes.api.presets import Preset

BATCH_SECONDS = 0.1
LATER_SECONDS = 1.0
RETRY_SECONDS = 1.0
PRUNED_SECONDS = 60.0
AT_ONCE = 16  # writes in flight

_log = structlog.get_logger(__name__)


class NodePodsWriter:
    """Writes while `leading`. `gpu_nodes` gives a GPUNode as a watch has it now."""

    def __init__(
        self,
        client: Client,
        presets: Sequence[Preset],
        gpu_node: Callable[[str], GpuNode | None],
        leading: Callable[[], bool],
    ) -> None:
        self._client = client
        self._presets = presets
        self._gpu_node = gpu_node
        self._leading = leading
        self._pods = Watch(
            client,
            NODE_PODS,
            self._on_pod,
            fields=f"spec.nodeName!=,{LIVE_PODS}",
            keep=lambda pod: bool(pod.spec.resource_claims) or asks(pod, presets),
        )
        self._records: dict[str, dict[str, PodRecord]] = {}  # by node and UID, in their order
        self._specs: dict[str, NodePodsSpec] = {}  # what those are as a `spec`, where it is known
        self._due: dict[str, float] = {}  # when to compare a node
        self._not_before: dict[str, float] = {}
        self._written: dict[str, GpuNode] = {}  # the last answers, until the watch has them
        self._in_flight: set[str] = set()
        self._changed = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether the pods were read once."""
        return self._pods.synced

    async def refresh(self) -> None:
        """List the pods again: this replica is about to lead."""
        await self._pods.refresh()

    def gpu_node_changed(self, name: str) -> None:
        """A GPUNode may have come, gone or changed."""
        there = self._latest(name)
        if there is not None:
            if there.spec.pods_digest != self._spec(name).pods_digest:
                self._compare(name)
            return
        for known in (self._due, self._not_before, self._written, self._specs):
            known.pop(name, None)
        if not self._records.get(name):
            self._records.pop(name, None)

    def compare_all(self, names: Sequence[str]) -> None:
        """This replica leads now: compare these GPUNodes."""
        for name in names:
            self._compare(name)

    async def run(self) -> None:
        """Write, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run())
            while True:
                self._changed.clear()
                now = time.monotonic()
                next_at = now + RETRY_SECONDS
                if self._leading() and self.synced:
                    for name in self._next(now):
                        self._in_flight.add(name)
                        del self._due[name]
                        tasks.create_task(self._write_one(name))
                    waiting = (at for name, at in self._due.items() if name not in self._in_flight)
                    if len(self._in_flight) < AT_ONCE:
                        next_at = min([next_at, *waiting])
                try:
                    async with asyncio.timeout(max(0.0, next_at - now)):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    # --- what is to be written --------------------------------------------------------------------

    def _on_pod(self, before: NodePod | None, now: NodePod | None) -> None:
        one = now or before
        if one is None:
            return
        uid, node = one.metadata.uid, one.spec.node_name
        records = self._records.setdefault(node, {})
        self._specs.pop(node, None)
        if now is None:
            records.pop(uid, None)
            self._compare(node)
            return
        old, new = records.get(uid), record_of(now, self._presets)
        records[uid] = new
        if old is None or old.annotations != new.annotations:
            self._compare(node)
        elif old != new:
            self._compare(node, LATER_SECONDS)

    def _spec(self, node: str) -> NodePodsSpec:
        """The `spec` that a node should have."""
        if node not in self._specs:
            self._specs[node] = spec_of(self._records.get(node, {}).values())
        return self._specs[node]

    def _compare(self, node: str, seconds: float = 0.0) -> None:
        at = max(time.monotonic() + seconds, self._not_before.get(node, 0.0))
        self._due[node] = min(at, self._due.get(node, at))
        self._changed.set()

    def _next(self, now: float) -> list[str]:
        """The nodes whose time has come, and for which there is room."""
        room = AT_ONCE - len(self._in_flight)
        come = [name for name, at in self._due.items() if at <= now and name not in self._in_flight]
        return come[:room]

    # --- writing ----------------------------------------------------------------------------------

    async def _write_one(self, name: str) -> None:
        try:
            await self._write(name)
        except ApiError as error:
            if error.conflict:  # the agent has written meanwhile
                self._compare(name, BATCH_SECONDS)
            elif not error.not_found:  # else the agent makes it again
                _log.warning("the pods of a node were not written", node=name, why=error.message)
                self._compare(name, RETRY_SECONDS)
        finally:
            self._in_flight.discard(name)
            self._changed.set()

    async def _write(self, name: str) -> None:
        there = self._latest(name)
        if there is None:
            return
        spec = self._spec(name)
        if there.spec.pods_digest == spec.pods_digest:
            return
        patch = {
            "metadata": {"resourceVersion": there.metadata.resource_version},
            "spec": {"podsDigest": spec.pods_digest, "pods": msgspec.to_builtins(spec.pods)},
        }
        self._not_before[name] = time.monotonic() + BATCH_SECONDS
        written = await self._client.patch(GPU_NODES, name, patch)
        if written.spec.pods_digest != spec.pods_digest:
            _log.warning(
                "the GPUNode does not keep the pods of its node: the CustomResourceDefinition is an"
                " older one",
                node=name,
            )
            self._not_before[name] = time.monotonic() + PRUNED_SECONDS
            self._compare(name)
            return
        self._written[name] = written

    def _latest(self, name: str) -> GpuNode | None:
        """The GPUNode as the watch has it, or as the answer to the last write, if that is newer."""
        seen, written = self._gpu_node(name), self._written.get(name)
        if seen is None or written is None:
            return seen
        same = seen.metadata.uid == written.metadata.uid
        if same and _version(seen) < _version(written):
            return written
        del self._written[name]
        return seen


def _version(one: GpuNode) -> int:
    text = one.metadata.resource_version
    return int(text) if text.isdecimal() else 0
