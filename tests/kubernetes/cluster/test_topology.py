"""The racks and blocks of nodes, by the labels that the scheduler and the controller are given."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from aliquot.cli.app import app
from aliquot.kubernetes import scheduler
from aliquot.kubernetes.api import log
from aliquot.kubernetes.api.objects import Meta, Node
from aliquot.kubernetes.cluster.topology import Labels
from aliquot.kubernetes.cluster.view import ClusterView
from aliquot.kubernetes.jobs import run
from aliquot.kubernetes.jobs.allocations import JobAllocations
from kubernetes.builders import make_node

GIVEN = ("--rack-label=my/rack", "--block-label=my/block")


def racks(view: ClusterView) -> dict[str, tuple[int, int]]:
    """The block and rack of each node, as numbers."""
    labels = {
        "a": {"my/rack": "1", "aliquot.io/rack": "left", "my/block": "x"},
        "b": {"my/rack": "1", "aliquot.io/rack": "right", "my/block": "x"},
        "c": {"aliquot.io/rack": "1", "my/block": "x"},
        "d": {"my/rack": "1", "my/block": "y"},
    }
    for name, has in labels.items():
        view.set_node(name, Node(Meta(name=name, labels=has)))
        view.set_gpu_node(name, make_node(name))
    found = view.topology.hardware()
    rows = view.cluster.rows
    return {name: (int(found.block[row]), int(found.rack[row])) for name, row in rows.items()}


@pytest.mark.parametrize("view", [ClusterView, JobAllocations])
def test_a_label_of_ones_own_comes_before_the_usual_ones(view: Any) -> None:
    own = racks(view(labels=Labels.preferring("my/rack", "my/block")))
    assert own["a"] == own["b"] == own["c"]
    assert own["d"] not in (own["a"], own["c"])
    usual = racks(view())
    assert len({usual["a"], usual["b"], usual["c"]}) == 3


def test_the_scheduler_reads_racks_from_the_label_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = options_of("scheduler", scheduler, monkeypatch)
    assert given.gangs.labels == Labels.preferring("my/rack", "my/block")


def test_the_controller_reads_racks_from_the_label_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = options_of("controller", run, monkeypatch)
    views = []

    def view(*presets: Any, **options: Any) -> JobAllocations:
        views.append(JobAllocations(*presets, **options))
        return views[-1]

    monkeypatch.setattr(run, "JobAllocations", view)
    run.Replica(_NO_CLIENT, given)
    own = racks(views[0])
    assert own["a"] == own["b"]


class _NoClient:
    namespace = "ns"


_NO_CLIENT: Any = _NoClient()


def options_of(command: str, module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The options that a command makes of its command line."""
    found: list[Any] = []

    async def serve(options: Any) -> None:
        found.append(options)

    monkeypatch.setattr(module, "serve", serve)
    monkeypatch.setattr(log, "set_up_log", lambda: None)
    result = CliRunner().invoke(app, [command, *GIVEN])
    assert result.exit_code == 0, result.output
    return found[0]
