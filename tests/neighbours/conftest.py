"""Where a neighbour was not built, its tests are skipped and say how to build it."""

from __future__ import annotations

import pytest

from cluster.obstacles import obstacle
from cluster.programs import ProgramsError, find_programs
from neighbours.programs import KARPENTER, KUEUE, OLDER_KUBERNETES, Neighbour


@pytest.fixture(scope="module")
def kueue() -> Neighbour:
    return _built(KUEUE)


@pytest.fixture(scope="module")
def karpenter() -> Neighbour:
    return _built(KARPENTER)


@pytest.fixture(scope="module")
def older_kubernetes() -> Neighbour:
    return _built(OLDER_KUBERNETES)


def _built(one: Neighbour) -> Neighbour:
    try:
        find_programs()
    except ProgramsError as error:
        pytest.skip(str(error))
    if why := obstacle():
        pytest.skip(why)
    if one.programs.missing:
        pytest.skip(f"{one.program} does not exist (make test-neighbours builds it)")
    return one
