"""Fixtures: one cluster for each process of tests, a namespace of it for each test.

A test that changes a server's configuration, or needs several nodes, starts a cluster of its own:
`with Cluster(nodes=2) as cluster`. A failed test is reported with what the cluster says.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Generator, Iterator

import pytest

from cluster.agent import Agent
from cluster.cluster import Cluster
from cluster.obstacles import obstacle
from cluster.programs import ProgramsError, find_programs, find_runtime
from cluster.python_image import project_image
from cluster.registry import ClusterError


@pytest.hookimpl(trylast=True)  # after those that nobody asked for are gone
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where no cluster can run, its tests are skipped, and say so; or fail, if it must run."""
    marked = [item for item in items if item.get_closest_marker("cluster")]
    if marked and (why := _why_not()) is not None:
        if os.environ.get("ALIQUOT_REQUIRE_CLUSTER"):
            pytest.exit(f"the tests on a real Kubernetes cannot run: {why}", returncode=1)
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the cluster's state and the ends of its logs to what failed."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Cluster):
                report.sections += value.describe()
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def agent(cluster: Cluster) -> Iterator[Agent]:
    """The agent of the first node, with four simulated GPUs."""
    one = Agent(cluster, "rtx6000:4")
    one.start()
    yield one
    one.close()


@pytest.fixture(scope="session")
def project(cluster: Cluster) -> str:
    """An image with Python and this project, on the nodes: its name."""
    image = project_image("aliquot.test/aliquot:1")
    cluster.load(image)
    return image.name


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own; its pods are gone when the test is over."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.create_namespace(name)
    yield name
    with contextlib.suppress(ClusterError):  # the test may have left the API server broken
        cluster.kubectl("delete", "pods", "--all", f"--namespace={name}")
        cluster.kubectl("delete", "namespace", name, "--wait=false")


def _why_not() -> str | None:
    if os.environ.get("PYTEST_XDIST_WORKER") and not os.environ.get("ALIQUOT_CLUSTERS"):
        return "a machine has room for two clusters of tests: make test-cluster"
    try:
        find_programs()
        find_runtime()
    except ProgramsError as error:
        return str(error)
    return obstacle()
