"""The console in the chart: what its account may do, and how it is reached."""

from __future__ import annotations

import pytest
import typer

from aliquot.cli.app import app
from console.team_cluster import READER
from kubernetes import chart
from kubernetes.shipped import container_of, find
from kubernetes.test_deploy import helm

__all__ = ["helm"]

VALUES = (
    "console.enabled=true",
    "console.hosts={gpu.example.org}",
    "console.basePath=aliquot",
    "console.frameAncestors={https://portal.example}",
    "console.tlsSecret=certificate",
    "console.replicas=2",
)


def test_the_chart_installs_no_console_unless_it_is_asked_to() -> None:
    shipped = chart.objects(chart.MANIFEST.read_text("utf-8"))
    assert not [one for one in shipped if one["metadata"]["name"] == "aliquot-console"]


def test_the_consoles_account_has_the_rights_of_the_tests_and_writes_nothing(helm: None) -> None:
    objects = chart.objects(chart.render("console.enabled=true"))
    rules = find(objects, "ClusterRole", "aliquot-console")["rules"]
    found = {kind: tuple(rule["verbs"]) for rule in rules for kind in rule["resources"]}
    assert found == READER[""], "the console of the tests has exactly these"
    written = {kind for kind, verbs in found.items() if {*verbs} - {"list", "watch"}}
    assert written == {"tokenreviews", "subjectaccessreviews"}, "which are questions"
    assert "aliquot-console" not in {
        one["metadata"]["name"] for one in objects if one["kind"] in {"Role", "RoleBinding"}
    }


@pytest.mark.parametrize("values", [VALUES[:1], VALUES])
def test_the_console_is_reached_by_the_names_that_it_is_given(
    helm: None, values: tuple[str, ...]
) -> None:
    objects = chart.objects(chart.render(*values))
    container = container_of(find(objects, "Deployment", "aliquot-console"))
    command = typer.main.get_command(app).commands["console"]  # type: ignore[attr-defined]
    known = {option for one in command.params for option in one.opts}
    assert {argument.partition("=")[0] for argument in container["args"]} <= known
    probe = container["readinessProbe"]["httpGet"]
    host, _, port = probe["httpHeaders"][0]["value"].partition(":")
    assert f"--server-name={host}" in container["args"]
    assert f"--listen=0.0.0.0:{port}" in container["args"]
    (served,) = find(objects, "Service", "aliquot-console")["spec"]["ports"]
    assert str(served["port"]) == port
    assert served["name"].upper() == probe["scheme"]
    assert ("--tls-cert=/etc/aliquot/tls/tls.crt" in container["args"]) is (values == VALUES)


@pytest.mark.parametrize(
    ("values", "page"),
    [
        (("console.basePath=/aliquot",), "http://localhost:8470/aliquot/:"),
        (("console.tlsSecret=certificate",), "https://localhost:8470/:"),
    ],
)
def test_the_notes_name_the_address_that_the_console_serves(
    helm: None, values: tuple[str, ...], page: str
) -> None:
    words = chart.notes("console.enabled=true", *values).split()
    assert page in words
    assert "localhost:8470" not in chart.notes(*values), "without a console there is none"
