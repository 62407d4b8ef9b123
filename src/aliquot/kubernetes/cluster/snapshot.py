"""The cluster at one moment, for decisions of `placement` about gangs and jobs.

`placement` knows models of GPUs, but no selectors or taints. So nodes of one model that do not
accept the same pods get models of their own here, and a pod's demand names the models of the nodes
that accept it. Racks and blocks come from the nodes' labels (`topology`).

A pod is one demand on one node. Several containers that ask for whole GPUs become one demand; a pod
whose containers ask for different kinds cannot, and is refused as a member of a gang.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from aliquot.kubernetes.api.requests import InvalidRequestError
from aliquot.kubernetes.cluster.demands import ANY_SIZE, NO_MODEL, demand_of
from aliquot.kubernetes.cluster.hardware import CLASS
from aliquot.kubernetes.cluster.parts import part_of
from aliquot.placement.choose.strategies import strategy
from aliquot.placement.core.demand import Placement

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aliquot.kubernetes.api.objects import GpuNode
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.constraints import NodeConstraints
    from aliquot.kubernetes.cluster.parts import Parts
    from aliquot.kubernetes.cluster.topology import Topology
    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Demand
    from aliquot.placement.core.snapshot import Hardware


class ClusterSnapshot:
    """A copy of the allocations, with the nodes that pods of these constraints may use."""

    def __init__(self, topology: Topology, limits: Collection[NodeConstraints] = ()) -> None:
        self._topology = topology
        self._cluster = topology.cluster
        self._nodes = dict(topology.cluster.nodes)
        self._accepting: dict[NodeConstraints, frozenset[str]] = {}
        allocations = topology.cluster.chooser.allocations.copy()
        self.hardware = self._with_classes(topology, list(dict.fromkeys(limits)))
        self.by: Strategy = strategy(topology.cluster.by, self.hardware)
        allocations.hardware = self.hardware
        self.allocations: Allocations = allocations

    # --- what pods ask for ------------------------------------------------------------------------

    def demand(self, requests: Sequence[ContainerRequest], limits: NodeConstraints) -> Demand:
        """What a pod asks for; InvalidRequestError if that cannot be one demand."""
        largest = largest_demand(self._cluster, as_one(requests), self.hardware)
        allowed = self._accepting[limits]
        if len(allowed) == len(self.hardware.models):
            return largest
        both = allowed & largest.models if largest.models else allowed
        return replace(largest, models=both or NO_MODEL)

    def row(self, node: str) -> int | None:
        """A node's row, if it has one; only valid while the snapshot is new."""
        return self._cluster.rows.get(node)

    def node(self, row: int) -> str:
        """The node of a row."""
        return self.hardware.names[row]

    def placement(self, node: str, gpus: tuple[int, ...]) -> Placement | None:
        """GPUs of a node; None if it has no row."""
        row = self.row(node)
        return None if row is None else Placement(row, gpus)

    def parts(self, requests: Sequence[ContainerRequest], placement: Placement) -> Parts:
        """What the containers of a pod get there; those that run together get different GPUs."""
        return parts_on(self._nodes[self.node(placement.node)], requests, placement)

    def untolerated_taints(self, limits: Collection[NodeConstraints]) -> list[str]:
        """The current taints of nodes that pods of these constraints do not tolerate."""
        return sorted(set().union(*(self._topology.untolerated_taints(one) for one in set(limits))))

    def is_current(self, rows: Collection[int]) -> bool:
        """Whether these rows still belong to the same nodes, usable and with the same GPUs."""
        for row in rows:
            name = self.node(row)
            then, now = self._nodes.get(name), self._cluster.nodes.get(name)
            if self._cluster.rows.get(name) != row or self._cluster.why_unusable(name):
                return False
            if then is None or now is None:
                return False
            if then is not now and _uuids(then) != _uuids(now):
                return False
        return True

    def _with_classes(self, topology: Topology, limits: Sequence[NodeConstraints]) -> Hardware:
        """The hardware with a model for each set of nodes that accept the same pods."""
        hardware = topology.hardware()
        masks = [topology.allowed_rows(one) for one in limits]
        if all(bool(mask.all()) for mask in masks):
            self._accepting = dict.fromkeys(limits, frozenset(hardware.models))
            return hardware
        number = hardware.model
        for mask in masks:
            _, number = np.unique(2 * number + mask, return_inverse=True)
        _, first, number = np.unique(number, return_index=True, return_inverse=True)
        old = hardware.model[first]
        names = tuple(f"{hardware.models[one]}{CLASS}{place}" for place, one in enumerate(old))
        for one, mask in zip(limits, masks, strict=True):
            self._accepting[one] = frozenset(
                name for name, row in zip(names, first, strict=True) if mask[row]
            )
        sizes = tuple(hardware.model_bytes[one] for one in old)
        return replace(hardware, models=names, model_bytes=sizes, model=number)


def largest_demand(cluster: Cluster, request: ContainerRequest, hardware: Hardware) -> Demand:
    """A request as the largest demand that it is on any node: a share may be more on some."""
    sizes = list(cluster.sizes) or [ANY_SIZE]
    every = [demand_of(request, one.gpu_bytes, one.shares, hardware.models) for one in sizes]
    return replace(
        every[0],
        milli=max(one.milli for one in every),
        gpu_bytes=max(one.gpu_bytes for one in every),
    )


def parts_on(node: GpuNode, requests: Sequence[ContainerRequest], placement: Placement) -> Parts:
    """What the containers of a pod get on these GPUs of a node."""
    found, at = [], 0
    for one in requests:
        begin = 0 if one.init or len(requests) == 1 else at
        gpus = placement.gpus[begin : begin + one.gpus]
        at += 0 if one.init else one.gpus
        found.append(part_of(one, gpus, node.status))
    return tuple(found)


def as_one(requests: Sequence[ContainerRequest]) -> ContainerRequest:
    """The containers of a pod as one request."""
    if len(requests) == 1:
        return requests[0]
    if any(one.kind != "whole" for one in requests):
        names = ", ".join(repr(one.container) for one in requests)
        raise InvalidRequestError(
            "SeveralContainers",
            f"containers {names} of one pod ask for GPUs, and not all for whole ones",
            "In a gang, let one container of each pod ask for GPUs, or let all ask for whole GPUs.",
        )
    together = sum(one.gpus for one in requests if not one.init)
    return replace(requests[-1], gpus=max(together, *(one.gpus for one in requests)))


def bare(demand: Demand) -> Demand:
    """A demand without its models, whose names differ from snapshot to snapshot."""
    return replace(demand, models=frozenset())


def _uuids(node: GpuNode) -> list[str]:
    return [one.uuid for one in node.status.gpus]
