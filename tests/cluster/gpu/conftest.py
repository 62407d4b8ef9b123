"""Fixtures: one node with a GPU for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.gpu.gpu_node import GpuNode, gpu_node


@pytest.fixture(scope="session")
def shared_node() -> Iterator[GpuNode]:
    with gpu_node() as node:
        yield node


@pytest.fixture
def node(shared_node: GpuNode) -> Iterator[GpuNode]:
    """The node without pods; they are gone again after the test."""
    empty = shared_node.free()
    yield shared_node
    shared_node.cluster.kubectl("delete", "pods", "--all", "--now", timeout=120)
    shared_node.cluster.wait_until(lambda: shared_node.free() == empty, 60, "the node is empty")
