"""Why pods keep each other from GPUs: the GPU, its node and the other pod, in a sentence. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.placement.core.wishes import Wishes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.parts import Part

MOST_NAMED = 3  # GPUs in a message
NONE = Wishes()


def why_unwelcome(
    cluster: Cluster,
    requests: Sequence[ContainerRequest],
    counts: Callable[[str], bool] = lambda _: True,
) -> str:
    """Why neighbours, or a choice by UUID, keep a pod from nodes; only those that `counts` accepts.

    One sentence without its full stop, about the first GPU that is found; empty if that is not why.
    """
    for request in requests:
        wishes = request.wishes
        found = "" if wishes is None else _where_named(cluster, wishes)
        found = found or next(_clashes(cluster, request, counts), "")
        found = found or ("" if wishes is None else _where_label_is(cluster, wishes.beside))
        if found:
            return found
    return ""


def _where_named(cluster: Cluster, wishes: Wishes) -> str:
    """Where the GPUs are that a request names; empty if it names none."""
    parts = []
    for word in sorted(wishes.named)[:MOST_NAMED]:
        there = [
            f"GPU {gpu.uuid} is on node {name}"
            for name, node in cluster.nodes.items()
            for gpu in node.status.gpus
            if gpu.uuid.startswith(word)
        ]
        parts.append(min(there, default=f"no node has a GPU {word}"))
    more = len(wishes.named) - MOST_NAMED
    return "; ".join(parts) + (f"; and {more} more are named" if more > 0 else "")


def _clashes(
    cluster: Cluster, request: ContainerRequest, counts: Callable[[str], bool]
) -> Iterator[str]:
    """Each GPU with room for the request that neighbours keep from it, in a sentence."""
    for name in _suspects(cluster, request):
        if not counts(name):
            continue
        there = list(cluster.parts_on(name))
        for gpu in cluster.nodes[name].status.gpus:
            here = [(uid, one) for uid, parts in there for one in parts if gpu.uuid in one.gpus]
            if any(one.kind == "whole" for _, one in here):
                continue
            left = gpu.memory - sum(one.memory for _, one in here)
            if left < request.memory_of(gpu.memory, cluster.nodes[name].status.shares):
                continue
            for uid, one in here:
                why = _why_not(request, one)
                if why:
                    yield f"GPU {gpu.uuid} on node {name} has pod {cluster.pod_name(uid)}, {why}"


def _suspects(cluster: Cluster, request: ContainerRequest) -> list[str]:
    """The nodes with pods that may keep the request away."""
    if request.kind == "whole":
        return []
    allocations = cluster.chooser.allocations
    found = set(cluster.nodes) if request.alone else set(cluster.nodes_with_alone)
    if request.wishes is not None:
        found |= {allocations.hardware.names[row] for row in allocations.marks.nodes()}
    return sorted(name for name in found if name in cluster.nodes)


def _why_not(request: ContainerRequest, other: Part) -> str:
    """Why a request may not be beside a part, as a clause about its pod; empty if it may."""
    if other.alone:
        return "which is alone"
    if request.alone:
        return "and this pod asks to be alone"
    mine, theirs = request.wishes or NONE, other.wishes or NONE
    if theirs.label and theirs.label in mine.apart_from:
        return f"which this pod asks to be apart from (label {_bare(theirs.label)})"
    if mine.label and mine.label in theirs.apart_from:
        return f"which asks to be apart from label {_bare(mine.label)}"
    return ""


def _where_label_is(cluster: Cluster, label: str) -> str:
    """Where a pod with this label is, which a pod asks to be with; empty if there is none."""
    allocations = cluster.chooser.allocations
    rows = allocations.marks.nodes() if label else ()
    for name in sorted(allocations.hardware.names[row] for row in rows):
        for uid, parts in cluster.parts_on(name):
            for one in parts:
                if one.wishes is not None and one.wishes.label == label:
                    return (
                        f"pod {cluster.pod_name(uid)}, which this pod asks to be with (label"
                        f" {_bare(label)}), is on GPU {one.gpus[0]} of node {name}"
                    )
    return ""


def _bare(label: str) -> str:
    """A label without its namespace."""
    return label.partition("/")[2]
