"""The shipped CRD, example and docs of elastic jobs agree with the code."""

from __future__ import annotations

import msgspec
import typer

from aliquot.cli.app import app
from aliquot.kubernetes.api.elasticjob import JOBS, ElasticJob, ElasticJobSpec, ElasticJobStatus
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.jobs.spec import parse_job, worker_pod, worker_requests
from aliquot.model.job import MAX_WORKERS, JobPhase
from kubernetes import chart
from kubernetes.shipped import container_of, find, shape_of_schema, shape_of_type

PAGE = (chart.ROOT / "docs" / "jobs.md").read_text("utf-8")


def test_the_crd_has_the_fields_of_the_object() -> None:
    text = (chart.CHART / "files" / "elasticjob.yaml").read_text("utf-8")
    assert text == (chart.ROOT / "deploy" / "crds" / "elasticjob.yaml").read_text("utf-8")
    (crd,) = chart.objects(text)
    assert crd["spec"]["names"]["plural"] == JOBS.plural
    (version,) = crd["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]
    spec, status = fields["spec"], fields["status"]
    phases = [one for one in JobPhase if one is not JobPhase.CANCELLING]  # jobs are deleted instead
    assert status["properties"]["phase"]["enum"] == phases
    assert spec["properties"]["replicas"]["default"] == MAX_WORKERS
    spec["properties"]["template"] = {"type": "string"}  # it may contain any field of a pod
    assert shape_of_schema(spec) == shape_of_type(ElasticJobSpec)
    for name, one in spec["properties"].items():
        if "default" in one:
            (field,) = [
                each for each in msgspec.structs.fields(ElasticJobSpec) if each.encode_name == name
            ]
            assert field.default == one["default"], name
    every = shape_of_schema(status)
    assert isinstance(every, dict)
    assert {(name, False): shape for (name, _), shape in every.items()} == shape_of_type(
        ElasticJobStatus
    )


def test_the_example_is_a_job_of_one_to_four_whole_gpus() -> None:
    (body,) = chart.objects((chart.ROOT / "examples/kubernetes/elastic.yaml").read_text("utf-8"))
    one = msgspec.convert(body, ElasticJob, strict=False)
    assert str(parse_job(one).sizes) == "1..4"
    (asked,) = worker_requests(worker_pod(one), (ALIQUOT,))
    assert (asked.kind, asked.gpus) == ("whole", 1)
    compile(one.spec.template["spec"]["containers"][0]["command"][2], "example", "exec")


def test_every_option_in_the_chart_exists() -> None:
    manifest = chart.objects(chart.MANIFEST.read_text("utf-8"))
    container = container_of(find(manifest, "Deployment", "aliquot-controller"))
    commands = typer.main.get_command(app)
    params = commands.commands["controller"].params  # type: ignore[attr-defined]
    known = {opt for one in params for opt in one.opts}
    assert container["command"] == ["aliquot", "controller"]
    assert {argument.partition("=")[0] for argument in container["args"]} <= known


def test_the_docs_name_every_field_and_condition() -> None:
    fields = [one.encode_name for one in msgspec.structs.fields(ElasticJobSpec)]
    conditions = ("Accepted", "Placed", "Suspended", "Complete", "Failed")
    assert [one for one in fields if f"`{one}" not in PAGE] == []
    assert [one for one in conditions if f"`{one}`" not in PAGE] == []
