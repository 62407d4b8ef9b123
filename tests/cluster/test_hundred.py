"""A hundred pods at once, deleted in random order, round after round."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cluster import hundred
from cluster.hundred import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.shares, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("ALIQUOT_ROUNDS", "3"))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with hundred.stage(tmp_path_factory.mktemp("hundred")) as ready:
        yield ready


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_hundred_pods_get_what_they_ask_for_and_leak_nothing(stage: Stage, seed: int) -> None:
    namespace = f"round-{seed}"
    stage.cluster.create_namespace(namespace)
    asked = hundred.mix(seed)
    times = hundred.run_all(stage, namespace, asked)
    hundred.check_allocations(stage, asked)
    hundred.check_inside(stage, namespace, asked)
    hundred.delete_all(stage, namespace, list(asked), seed)
    hundred.check_empty(stage)
    assert times.admitted < hundred.ADMITTED_SECONDS
