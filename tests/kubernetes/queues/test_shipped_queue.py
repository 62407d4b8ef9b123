"""The shipped definition of Queue has the fields of the types, and its example is valid."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped] # lightkube brings it, without types

from aliquot.kubernetes.api.objects import QUEUES, QueueObject
from aliquot.kubernetes.api.queue import LEVELS, QueueSpec, QueueStatus
from kubernetes.chart import ROOT
from kubernetes.queues.builders import know
from kubernetes.shipped import shape_of_schema, shape_of_type

DEFINITION = ROOT / "deploy" / "chart" / "files" / "queue.yaml"
EXAMPLE = ROOT / "examples" / "kubernetes" / "queues.yaml"


def read(path: Any) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text("utf-8")) if one]


def test_the_definition_has_the_fields_of_the_types() -> None:
    (definition,) = read(DEFINITION)
    names = definition["spec"]["names"]
    assert (names["kind"], names["plural"]) == (QUEUES.kind, QUEUES.plural)
    (version,) = definition["spec"]["versions"]
    assert f"{definition['spec']['group']}/{version['name']}" == QUEUES.api_version
    fields = version["schema"]["openAPIV3Schema"]["properties"]
    assert shape_of_schema(fields["spec"]) == shape_of_type(QueueSpec)
    assert shape_of_schema(fields["status"]) == shape_of_type(QueueStatus)


def test_the_example_is_a_valid_tree_without_warnings() -> None:
    every = [msgspec.convert(one, QueueObject) for one in read(EXAMPLE) if one["kind"] == "Queue"]
    known = know(*every)
    assert len(every) >= 3
    for one in every:
        name = one.metadata.name
        assert not known.problem_of(name)
        assert not known.warnings_of(name)


def test_the_page_says_how_deep_a_tree_may_be() -> None:
    page = (ROOT / "docs" / "queues.md").read_text("utf-8")
    assert f"{LEVELS} levels" in page
