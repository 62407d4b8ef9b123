"""The cluster in the numbers of the brain, at one moment.

The brain knows models of GPUs, and no selectors or taints. So here the nodes of one model that are
not open to the same pods are given models of their own, and a pod's demand names those that it may
go to. Racks and blocks come from the nodes' labels (`ground`).

A pod is one demand on one node. One whose containers ask for parts of different kinds cannot be put
into one, and is refused as a member of a gang; several containers that ask for whole GPUs can.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from aliquot.kubernetes.api.requests import InvalidRequestError
from aliquot.kubernetes.cluster.demands import ANY_SIZE, NO_MODEL, demand_of
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

CLASS = "\0"  # between the name of a model and the number of its nodes' class


class Picture:
    """The allocations with what pods of these limits may use of them."""

    def __init__(self, ground: Topology, limits: Collection[NodeConstraints] = ()) -> None:
        self._ground = ground
        self._cluster = ground.cluster
        self._nodes = dict(ground.cluster.nodes)
        self._open_to: dict[NodeConstraints, frozenset[str]] = {}
        allocations = ground.cluster.chooser.allocations.copy()
        self.hardware = self._with_classes(ground, list(dict.fromkeys(limits)))
        self.by: Strategy = strategy(ground.cluster.by, self.hardware)
        allocations.hardware = self.hardware
        self.allocations: Allocations = allocations

    # --- what pods ask for ------------------------------------------------------------------------

    def demand(self, requests: Sequence[ContainerRequest], limits: NodeConstraints) -> Demand:
        """What a pod asks for; InvalidRequestError where that cannot be said as one demand."""
        largest = largest_demand(self._cluster, as_one(requests), self.hardware)
        allowed = self._open_to[limits]
        if len(allowed) == len(self.hardware.models):
            return largest
        both = allowed & largest.models if largest.models else allowed
        return replace(largest, models=both or NO_MODEL)

    def row(self, node: str) -> int | None:
        """A node's row, where it has one; as it is now, so while the picture is new."""
        return self._cluster.rows.get(node)

    def node(self, row: int) -> str:
        """Whose row this is."""
        return self.hardware.names[row]

    def placement(self, node: str, gpus: tuple[int, ...]) -> Placement | None:
        """GPUs of a node, where it has a row."""
        row = self.row(node)
        return None if row is None else Placement(row, gpus)

    def parts(self, requests: Sequence[ContainerRequest], placement: Placement) -> Parts:
        """What the containers of a pod get there: those that run together, GPUs of their own."""
        return parts_on(self._nodes[self.node(placement.node)], requests, placement)

    def kept_by(self, limits: Collection[NodeConstraints]) -> list[str]:
        """The taints, as nodes have them now, that keep pods of these limits away."""
        return sorted(set().union(*(self._ground.kept_by(one) for one in set(limits))))

    def still_holds(self, rows: Collection[int]) -> bool:
        """Whether these rows are still those of the same nodes, with the same GPUs."""
        for row in rows:
            name = self.node(row)
            then, now = self._nodes.get(name), self._cluster.nodes.get(name)
            if self._cluster.rows.get(name) != row or self._cluster.why_unusable(name):
                return False
            if then is None or now is None:
                return False
            if then is not now and _cards(then) != _cards(now):
                return False
        return True

    def _with_classes(self, ground: Topology, limits: Sequence[NodeConstraints]) -> Hardware:
        """Models by which limits can be told from each other."""
        hardware = ground.hardware()
        masks = [ground.open_to(one) for one in limits]
        if all(bool(mask.all()) for mask in masks):
            self._open_to = dict.fromkeys(limits, frozenset(hardware.models))
            return hardware
        number = hardware.model
        for mask in masks:
            _, number = np.unique(2 * number + mask, return_inverse=True)
        _, first, number = np.unique(number, return_index=True, return_inverse=True)
        old = hardware.model[first]
        names = tuple(f"{hardware.models[one]}{CLASS}{place}" for place, one in enumerate(old))
        for one, mask in zip(limits, masks, strict=True):
            self._open_to[one] = frozenset(
                name for name, row in zip(names, first, strict=True) if mask[row]
            )
        sizes = tuple(hardware.model_bytes[one] for one in old)
        return replace(hardware, models=names, model_bytes=sizes, model=number)


def largest_demand(cluster: Cluster, request: ContainerRequest, hardware: Hardware) -> Demand:
    """What is asked for where that is the most: a share may be more on one node than another."""
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
    """The containers of a pod as if they were one."""
    if len(requests) == 1:
        return requests[0]
    if any(one.kind != "whole" for one in requests):
        names = ", ".join(repr(one.container) for one in requests)
        raise InvalidRequestError(
            "SeveralContainers",
            f"containers {names} of one pod ask for GPUs, and not all for whole ones",
            "In a gang, let one container of a pod ask for them, or all for whole GPUs.",
        )
    beside = sum(one.gpus for one in requests if not one.init)
    return replace(requests[-1], gpus=max(beside, *(one.gpus for one in requests)))


def bare(demand: Demand) -> Demand:
    """A demand without its models, whose names change from picture to picture."""
    return replace(demand, models=frozenset())


def _cards(node: GpuNode) -> list[str]:
    return [one.uuid for one in node.status.gpus]
