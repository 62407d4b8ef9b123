"""The chart, manifest, dashboard, examples and page agree with the programs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from aliquot import __version__
from aliquot.cli.app import app
from aliquot.kubernetes.api import client
from aliquot.kubernetes.api.gpunode import GpuNodeStatus
from aliquot.kubernetes.api.names import PLACEHOLDER, SCHEDULE
from aliquot.kubernetes.api.node_pods import NodePodsSpec
from aliquot.kubernetes.api.objects import GPU_NODES
from aliquot.kubernetes.api.presets import PRESETS
from aliquot.kubernetes.api.requests import requests_of
from aliquot.kubernetes.cluster.membership import (
    BY_LABEL,
    KUBEFLOW,
    KUBEFLOW_JOBS,
    MEMBERSHIP_KEYS,
    RAY,
)
from aliquot.kubernetes.extender import bind
from aliquot.kubernetes.gangs import answers
from kubernetes import chart
from kubernetes.builders import pod_of
from kubernetes.shipped import (
    container_of,
    event_reasons,
    extender_of,
    find,
    metric_names,
    pod_in,
    shape_of_schema,
    shape_of_type,
)

DEPLOY = chart.ROOT / "deploy"
EXAMPLES = chart.ROOT / "examples" / "kubernetes"
RUNBOOK = chart.ROOT / "docs" / "runbook.md"
PAGE = chart.ROOT / "docs" / "kubernetes.md"
TAINT = "aliquot.io/gpu"
_PROGRAMS = {"DaemonSet", "Deployment"}


@pytest.fixture(scope="module")
def helm() -> None:
    """Helm is there; where it is not, only a machine that checks changes must have it."""
    try:
        chart.find_helm()
    except chart.NoHelmError as error:
        if os.environ.get("ALIQUOT_REQUIRE_CLUSTER"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def manifest() -> chart.Objects:
    return chart.objects(chart.MANIFEST.read_text("utf-8"))


# --- the chart ------------------------------------------------------------------------------------


def test_the_manifest_is_what_the_chart_renders(helm: None) -> None:
    assert chart.static_manifest() == chart.MANIFEST.read_text("utf-8"), "make manifest"


def test_helm_finds_nothing_wrong_with_the_chart(helm: None) -> None:
    assert "0 chart(s) failed" in chart.helm("lint", "--strict", str(chart.CHART))


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("scheduler.tls.certManager=true",),
        ("node.dra=true",),
        ("node.dra=true", "scheduler.resourceClaims=true"),
        ("node.readsPods=false",),
        ("scheduler.tls.serverSecret=a", "scheduler.tls.clientSecret=b"),
        ("serviceMonitor.enabled=true", "prometheusRule.enabled=true", "openshift=true"),
    ],
)
def test_the_chart_renders_the_same_twice(helm: None, values: tuple[str, ...]) -> None:
    """Tools that render it again and again (Argo CD) would else change what runs."""
    assert chart.render(*values) == chart.render(*values)


def test_every_switch_of_the_chart_renders(helm: None) -> None:
    switches = ["serviceMonitor", "prometheusRule", "networkPolicy", "quota"]
    objects = chart.objects(chart.render(*(f"{one}.enabled=true" for one in switches)))
    kinds = {one["kind"] for one in objects}
    assert {"ServiceMonitor", "PrometheusRule", "NetworkPolicy", "ResourceQuota"} <= kinds
    assert {"FlowSchema", "Secret"} <= kinds
    assert "Namespace" not in kinds
    objects = chart.objects(chart.render("kubeScheduler.enabled=false", "crds.install=false"))
    names = {(one["kind"], one["metadata"]["name"]) for one in objects}
    assert not {kind for kind, _ in names} & {"CustomResourceDefinition", "ConfigMap"}
    assert not {name for _, name in names if "kube-scheduler" in name}


def test_resource_claims_are_allocated_by_aliquot_only_where_a_value_says_so(helm: None) -> None:
    def parts(*values: str) -> tuple[bool, bool, set[str]]:
        objects = chart.objects(chart.render("node.dra=true", *values))
        agent = container_of(find(objects, "DaemonSet", "aliquot-node"))["args"]
        scheduler = container_of(find(objects, "Deployment", "aliquot-scheduler"))["args"]
        rules = find(objects, "ClusterRole", "aliquot-scheduler")["rules"]
        may = {name for one in rules for name in one["resources"] if "resourceclaims" in name}
        return "--scheduled" in agent, "--resource-claims" in scheduler, may

    assert parts() == (False, False, set())
    rights = {"resourceclaims", "resourceclaims/status", "resourceclaims/binding"}
    assert parts("scheduler.resourceClaims=true") == (True, True, rights)
    with pytest.raises(chart.HelmError, match=r"needs node\.dra"):
        chart.render("scheduler.resourceClaims=true")


def test_agents_have_no_right_to_pods_where_the_scheduler_writes_them(helm: None) -> None:
    def rights(*values: str) -> tuple[set[str], set[str], list[bool]]:
        objects = chart.objects(chart.render("node.dra=true", *values))
        agent = find(objects, "ClusterRole", "aliquot-node")["rules"]
        scheduler = find(objects, "ClusterRole", "aliquot-scheduler")["rules"]
        programs = ("DaemonSet", "aliquot-node"), ("Deployment", "aliquot-scheduler")
        return (
            {name for one in agent if "get" in one["verbs"] for name in one["resources"]},
            {verb for one in scheduler if "gpunodes" in one["resources"] for verb in one["verbs"]},
            ["--pods-by-gpunode" in container_of(find(objects, *one))["args"] for one in programs],
        )

    others, follow = {"nodes", "resourceslices", "resourceclaims"}, {"get", "list", "watch"}
    assert rights() == ({*others, "pods"}, follow, [False, False])
    without = {*others, "gpunodes"}, {*follow, "patch"}, [True, True]
    assert rights("node.readsPods=false") == without


def test_kube_scheduler_and_extender_identify_themselves_to_each_other(helm: None) -> None:
    ways = {
        "aliquot-extender-client": ("scheduler.replicas=2",),
        "b": ("scheduler.tls.serverSecret=a", "scheduler.tls.clientSecret=b"),
    }
    for secret, values in ways.items():
        objects = chart.objects(chart.render(*values))
        tls = extender_of(objects)["tlsConfig"]
        assert {"caFile", "certFile", "keyFile", "serverName"} == set(tls)
        pod = find(objects, "Deployment", "aliquot-kube-scheduler")["spec"]["template"]["spec"]
        (mounted,) = [one["secret"] for one in pod["volumes"] if "secret" in one]
        assert mounted["secretName"] == secret
        given = container_of(find(objects, "Deployment", "aliquot-scheduler"))["args"]
        assert [one for one in given if one.startswith(("--tls-client-ca", "--tls-secret"))]


def test_certificates_of_cert_manager_reach_both(helm: None) -> None:
    objects = chart.objects(chart.render("scheduler.tls.certManager=true"))
    assert "Secret" not in {one["kind"] for one in objects}
    made = {one["spec"]["secretName"] for one in objects if one["kind"] == "Certificate"}
    used = {
        volume["secret"]["secretName"]
        for one in objects
        if one["kind"] == "Deployment"
        for volume in one["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    }
    assert used == {"aliquot-extender", "aliquot-extender-client"}
    assert made == {*used, "aliquot-extender-authority"}
    server = find(objects, "Certificate", "aliquot-extender")["spec"]
    assert extender_of(objects)["tlsConfig"]["serverName"] in server["dnsNames"]


def test_the_extender_reads_and_writes_only_its_own_two_secrets(manifest: chart.Objects) -> None:
    rules = [
        (one["kind"], rule)
        for one in manifest
        if one["kind"] in {"ClusterRole", "Role"}
        for rule in one["rules"]
        if "secrets" in rule["resources"]
    ]
    ((kind, rule),) = rules
    assert kind == "Role"
    assert rule["resourceNames"] == ["aliquot-extender", "aliquot-extender-client"]
    assert rule["verbs"] == ["get", "patch"]


def test_the_secrets_of_the_chart_are_empty(helm: None) -> None:
    secrets = [one for one in chart.objects(chart.render()) if one["kind"] == "Secret"]
    assert len(secrets) == 2
    assert not any({"data", "stringData"} & set(one) for one in secrets)


def test_the_leader_writes_the_endpoints_of_the_service(manifest: chart.Objects) -> None:
    service = find(manifest, "Service", "aliquot-scheduler")
    assert "selector" not in service["spec"]
    container = container_of(find(manifest, "Deployment", "aliquot-scheduler"))
    assert "--service=aliquot-scheduler" in container["args"]
    assert {one["name"] for one in container["env"]} == {"POD_NAME", "POD_UID", "POD_IP"}
    (port,) = service["spec"]["ports"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert (port["name"], port["targetPort"]) == ("https", ports["https"])


def test_every_program_has_a_service_monitor_that_finds_it(helm: None) -> None:
    objects = chart.objects(chart.render("serviceMonitor.enabled=true"))
    monitors = [one for one in objects if one["kind"] == "ServiceMonitor"]
    programs = {one["metadata"]["name"] for one in objects if one["kind"] in _PROGRAMS}
    assert {one["metadata"]["name"] for one in monitors} == programs
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"]
        (endpoint,) = monitor["spec"]["endpoints"]
        found = [
            port["port"]
            for one in objects
            if one["kind"] == "Service" and wanted.items() <= one["metadata"]["labels"].items()
            for port in one["spec"]["ports"]
            if port["name"] == endpoint["port"]
        ]
        name = monitor["metadata"]["name"]
        (program,) = [
            one for one in objects if one["kind"] in _PROGRAMS and one["metadata"]["name"] == name
        ]
        assert found[0] in {one["containerPort"] for one in container_of(program)["ports"]}
        assert len(found) == 1


def test_the_leases_of_all_leaders_have_their_own_priority(manifest: chart.Objects) -> None:
    (schema,) = [one for one in manifest if one["kind"] == "FlowSchema"]
    (rules,) = schema["spec"]["rules"]
    named = {one["serviceAccount"]["name"] for one in rules["subjects"]}
    leaders = {one["metadata"]["name"] for one in manifest if one["kind"] == "Deployment"}
    assert named == leaders


def test_openshift_lets_the_agent_do_what_it_asks_for(helm: None) -> None:
    objects = chart.objects(chart.render("openshift=true"))
    (allowed,) = [one for one in objects if one["kind"] == "SecurityContextConstraints"]
    agent = find(objects, "DaemonSet", "aliquot-node")["spec"]["template"]["spec"]
    assert allowed["users"] == [f"system:serviceaccount:{chart.NAMESPACE}:aliquot-node"]
    assert allowed["allowHostPID"] is agent["hostPID"] is True
    kinds = {kind for one in agent["volumes"] for kind in one if kind != "name"}
    assert kinds <= set(allowed["volumes"])
    assert "SecurityContextConstraints" not in {
        one["kind"] for one in chart.objects(chart.render())
    }


@pytest.mark.parametrize(("own", "served"), [("true", "mine"), ("false", "default-scheduler")])
def test_workers_of_elastic_jobs_name_the_scheduler_that_serves_them(
    helm: None, own: str, served: str
) -> None:
    text = chart.render(f"kubeScheduler.enabled={own}", "kubeScheduler.profile=mine")
    assert f"- --scheduler-name={served}\n" in text


def test_scheduler_and_controller_read_racks_and_blocks_from_the_same_labels(helm: None) -> None:
    objects = chart.objects(chart.render("gangs.rackLabel=my/rack", "gangs.blockLabel=my/block"))
    for name in ("aliquot-scheduler", "aliquot-controller"):
        args = container_of(find(objects, "Deployment", name))["args"]
        assert {"--rack-label=my/rack", "--block-label=my/block"} <= set(args)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("colour=red", "'colour' not allowed"),
        ("node.share=2", "'share' not allowed"),
        ("node.shares=0", "minimum"),
        ("node.simulate=8xH100", "pattern"),
        ("node.strength.models.T4=0", "exclusiveMinimum|greater than 0|got 0"),
        ("node.strength.nodes.n1=-2", "exclusiveMinimum|greater than 0|got -2"),
        ("node.strength.nodes.n1=fast", "want number"),
        ("node.hostMemory=64GB", "pattern"),
        ("node.parkAfter=soon", "pattern"),
        ("node.swap=true", "node.swap needs node.hostMemory"),
        ("node.overcommit=1.5", "node.overcommit needs node.hostMemory"),
        ("node.overcommit=0.5", "pattern"),
        ("presets={aliquot,hami}", "value must be one of"),
        ("presets={tuya,nvidia}", "both use nvidia.com/gpu"),
        ("kubeScheduler.extenderTimeout=5", "pattern|want string"),
        ("kubeScheduler.extenderTimeout=5s", "pattern"),
        ("kubeScheduler.extenderTimeout=59s", "pattern"),
        ("kubeScheduler.extenderTimeout=900ms", "pattern"),
        ("scheduler.tls.serverSecret=a", "go together"),
        ("image.digest=sha256:12", "pattern"),
        ("openshift=yes", "value must be one of"),
    ],
)
def test_an_invalid_value_is_refused(helm: None, value: str, complaint: str) -> None:
    with pytest.raises(chart.HelmError, match=complaint):
        chart.render(value)


@pytest.mark.parametrize("timeout", ["60s", "75s", "120s", "2m"])
def test_kube_scheduler_may_wait_longer_for_the_extender(helm: None, timeout: str) -> None:
    objects = chart.objects(chart.render(f"kubeScheduler.extenderTimeout={timeout}"))
    assert extender_of(objects)["httpTimeout"] == timeout


def test_kube_scheduler_waits_for_the_longest_binding(manifest: chart.Objects) -> None:
    assert extender_of(manifest)["httpTimeout"] == "60s"
    assert answers.PERMIT_SECONDS + bind.PATIENCE + client.SECONDS <= 60


def test_the_extender_is_configured_with_every_name_of_the_presets(helm: None) -> None:
    objects = chart.objects(chart.render("presets={aliquot,nvidia,aliyun}"))
    managed = [one["name"] for one in extender_of(objects)["managedResources"]]
    chosen = (PRESETS[name] for name in ("aliquot", "nvidia", "aliyun"))
    assert managed == [name for preset in chosen for name in preset.resources]


def test_agents_get_the_strengths_of_models_and_nodes(helm: None) -> None:
    objects = chart.objects(
        chart.render("node.strength.models.RTX 4070 Ti=70", "node.strength.nodes.gpu-7=50")
    )
    (agent,) = (one for one in objects if one["kind"] == "DaemonSet")
    given = [one for one in container_of(agent)["args"] if "strength" in one]
    assert given == ["--model-strength=RTX 4070 Ti=70", "--node-strength=gpu-7=50"]


def test_the_agents_pod_has_room_for_memory_that_leaves_gpus(helm: None) -> None:
    more = ("node.swap=true", r"node.parkAfter=10m\,always")
    objects = chart.objects(
        chart.render("node.hostMemory=64Gi", "node.resources.limits.memory=1Gi", *more)
    )
    (agent,) = (one for one in objects if one["kind"] == "DaemonSet")
    found = container_of(agent)
    assert found["resources"]["requests"] == {"cpu": "100m", "memory": f"{192 + 64 * 1024}Mi"}
    assert found["resources"]["limits"] == {"memory": f"{65 * 1024}Mi"}
    wanted = {"--host-memory=64GiB", "--swap", "--park-after=10m,always"}
    assert wanted <= set(found["args"])
    with pytest.raises(chart.HelmError, match="write it in Mi or Gi"):
        chart.render("node.hostMemory=64Gi", "node.resources.requests.memory=200M")


def test_a_node_may_let_slices_take_turns_with_memory(helm: None) -> None:
    values = ("node.hostMemory=64Gi", "node.overcommit=1.5")
    (agent,) = (one for one in chart.objects(chart.render(*values)) if one["kind"] == "DaemonSet")
    assert {"--host-memory=64GiB", "--overcommit=1.5"} <= set(container_of(agent)["args"])
    (usual,) = (one for one in chart.objects(chart.render()) if one["kind"] == "DaemonSet")
    assert not [one for one in container_of(usual)["args"] if "overcommit" in one]
    with pytest.raises(chart.HelmError, match="resource claims take no turns"):
        chart.render(*values, "node.dra=true")


def test_an_image_can_be_named_by_its_digest(helm: None) -> None:
    digest = f"sha256:{'ab' * 32}"
    objects = chart.objects(chart.render("image.repository=r/a", f"image.digest={digest}"))
    for one in objects:
        if one["kind"] in _PROGRAMS and "kube-scheduler" not in one["metadata"]["name"]:
            assert container_of(one)["image"] == f"r/a@{digest}"


def test_the_chart_knows_the_names_of_every_preset() -> None:
    (known,) = chart.objects((chart.CHART / "files" / "presets.yaml").read_text("utf-8"))
    assert known == {name: list(one.resources) for name, one in PRESETS.items()}


def test_kube_scheduler_has_the_version_of_its_cluster(helm: None) -> None:
    objects = chart.objects(chart.render(kubernetes="v1.34.7-gke.1234"))
    container = container_of(find(objects, "Deployment", "aliquot-kube-scheduler"))
    assert container["image"].endswith(":v1.34.7")


def test_the_chart_has_the_version_of_the_program() -> None:
    (about,) = chart.objects((chart.CHART / "Chart.yaml").read_text("utf-8"))
    assert about["appVersion"] == __version__


# --- the manifest ---------------------------------------------------------------------------------


def test_the_manifest_has_no_key_in_it(manifest: chart.Objects) -> None:
    assert not any("data" in one for one in manifest if one["kind"] == "Secret")
    assert "PRIVATE KEY" not in chart.MANIFEST.read_text("utf-8")


@pytest.mark.parametrize(
    ("kind", "name"), [("DaemonSet", "aliquot-node"), ("Deployment", "aliquot-scheduler")]
)
def test_every_option_that_is_given_exists(helm: None, kind: str, name: str) -> None:
    manifest = chart.objects(chart.render("node.readsPods=false"))
    container = container_of(find(manifest, kind, name))
    program, command = container["command"]
    assert program == "aliquot"
    commands = typer.main.get_command(app)
    known = {opt for one in commands.commands[command].params for opt in one.opts}  # type: ignore[attr-defined]
    assert {argument.partition("=")[0] for argument in container["args"]} <= known


def test_only_the_agent_is_privileged(manifest: chart.Objects) -> None:
    for one in manifest:
        if one["kind"] not in {"DaemonSet", "Deployment"}:
            continue
        limits = container_of(one)["securityContext"]
        assert limits["readOnlyRootFilesystem"]
        if one["kind"] == "Deployment":
            assert limits["runAsNonRoot"]
            assert limits["capabilities"] == {"drop": ["ALL"]}
            assert "hostPID" not in one["spec"]["template"]["spec"]


def test_no_role_allows_everything(manifest: chart.Objects) -> None:
    rules = [
        rule
        for one in manifest
        if one["kind"] in {"ClusterRole", "Role"} and "-users-" not in one["metadata"]["name"]
        for rule in one["rules"]
    ]
    said = {word for rule in rules for words in rule.values() for word in words}
    assert not {"*", "pods/exec"} & said
    ended = {one for rule in rules if "delete" in rule["verbs"] for one in rule["resources"]}
    # Pods: the controller's own. Endpoints and slices: of the extender's Service.
    assert ended <= {"gangs", "pods", "endpoints", "endpointslices"}
    of_nodes = {verb for rule in rules if "nodes" in rule["resources"] for verb in rule["verbs"]}
    assert of_nodes <= {"get", "list", "watch"}


def test_the_custom_resource_has_the_fields_that_the_agent_writes(manifest: chart.Objects) -> None:
    crd = find(manifest, "CustomResourceDefinition", "gpunodes.aliquot.io")["spec"]
    assert crd["names"]["kind"] == GPU_NODES.kind
    assert crd["names"]["plural"] == GPU_NODES.plural
    (version,) = crd["versions"]
    assert f"{crd['group']}/{version['name']}" == GPU_NODES.api_version
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert shape_of_schema(status) == shape_of_type(GpuNodeStatus)
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert shape_of_schema(spec) == shape_of_type(NodePodsSpec)


def test_the_custom_resource_has_the_path_of_the_client() -> None:
    there = (DEPLOY / "crds" / "gpunode.yaml").read_text("utf-8")
    assert there == (chart.CHART / "files" / "gpunode.yaml").read_text("utf-8")


def test_a_gpunode_says_in_columns_what_is_free_and_used(manifest: chart.Objects) -> None:
    for name, wanted in {
        "gpunodes": {"GPUs", "Free", "Used", "Kinds", "Reported", "Problem"},
        "queues": {"Quota", "Used", "Quota-Memory", "Used-Memory"},
    }.items():
        crd = find(manifest, "CustomResourceDefinition", f"{name}.aliquot.io")["spec"]
        (version,) = crd["versions"]
        fields = version["schema"]["openAPIV3Schema"]["properties"]
        columns = version["additionalPrinterColumns"]
        assert wanted <= {one["name"] for one in columns}
        for one in columns:
            if re.fullmatch(r"[.](spec|status)[.a-zA-Z]+", one["jsonPath"]):
                field = {"properties": fields}
                for part in one["jsonPath"].split(".")[1:]:
                    field = field["properties"][part]


# --- the alerts -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alerts(helm: None) -> list[dict[str, Any]]:
    objects = chart.objects(chart.render("prometheusRule.enabled=true"))
    (group,) = find(objects, "PrometheusRule", "aliquot")["spec"]["groups"]
    return list(group["rules"])


def test_every_metric_of_an_alert_exists(alerts: list[dict[str, Any]]) -> None:
    named = {name for one in alerts for name in re.findall(r"\baliquot_[a-z0-9_]+", one["expr"])}
    assert len(named) > 10
    assert named <= metric_names() | {"aliquot_controller_leader"}


def test_every_alert_has_a_section_of_the_runbook(alerts: list[dict[str, Any]]) -> None:
    sections = re.findall(r"^## (Aliquot\w+)$", RUNBOOK.read_text("utf-8"), re.MULTILINE)
    assert sorted(sections) == sorted(one["alert"] for one in alerts)
    for one in alerts:
        notes = one["annotations"]
        assert notes["runbook_url"] == f"docs/runbook.md#{one['alert'].lower()}"
        assert notes["summary"].endswith(".")


def test_an_alert_about_an_absent_agent_names_its_service(alerts: list[dict[str, Any]]) -> None:
    (down,) = [one for one in alerts if one["alert"] == "AliquotAgentDown"]
    assert down["expr"] == 'up{job="aliquot-node"} == 0'


# --- the dashboard --------------------------------------------------------------------------------


def test_every_metric_of_the_dashboard_exists() -> None:
    dashboard = (DEPLOY / "grafana" / "aliquot.json").read_text("utf-8")
    named = set(re.findall(r"\baliquot_[a-z0-9_]+", dashboard))
    assert len(named) > 20
    assert named <= metric_names()


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "aliquot.json").read_text("utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


# --- the examples and the page --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "gpus", "memory", "compute"),
    [
        ("half-gpus", "shared", 2, 40, 0),
        ("slice", "sliced", 1, 8, 30),
        ("whole", "whole", 4, 80, 100),
        ("resize", "sliced", 1, 8, 30),
        ("several", "sliced", 2, 10, 25),
    ],
)
def test_an_example_asks_for_what_it_says(
    name: str, kind: str, gpus: int, memory: int, compute: int
) -> None:
    (one,) = chart.objects((EXAMPLES / f"{name}.yaml").read_text("utf-8"))
    (request,) = requests_of(pod_of(pod_in(one)))
    gib = 1 << 30
    assert (request.kind, request.gpus, request.compute) == (kind, gpus, compute)
    assert request.memory_of(80 * gib, 2) == memory * gib


def test_every_example_is_tested() -> None:
    tried = {"half-gpus", "slice", "whole", "resize", "several"}
    tried |= {"queues"}  # tests/kubernetes/queues/test_shipped_queue.py
    tried |= {"service"}  # tests/kubernetes/gangs/test_services.py
    tried |= {"gang"}  # tests/kubernetes/gangs/test_shipped_gang.py
    tried |= {"mixed"}  # tests/cluster/test_deploy.py
    tried |= {"elastic"}  # tests/kubernetes/jobs/test_shipped_crd.py
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == tried


def test_the_policy_for_pods_gates_only_what_the_scheduler_takes_for_a_gang() -> None:
    """A gate on a pod that is in no gang would never be removed."""
    text = (chart.CHART / "templates" / "pod-admission.yaml").read_text("utf-8")
    lists = [set(re.findall(r'"([^"]+)"', one)) for one in re.findall(r"{{ list (.*?) \|", text)]
    always = BY_LABEL.keys() - {RAY}  # a label that also pods outside of the gang have
    assert lists == [always, KUBEFLOW_JOBS.keys()]
    assert f'labels[?"{KUBEFLOW}"]' in text


def test_a_pod_with_a_node_keeps_all_that_decides_its_gang(manifest: chart.Objects) -> None:
    policy = find(manifest, "ValidatingAdmissionPolicy", "aliquot-queue-boundary")["spec"]
    assert policy["failurePolicy"] == "Fail"
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["pods", "pods/status"], ["UPDATE"])
    (kept,) = [
        one["expression"]
        for one in policy["validations"]
        if "all(name, object.metadata.?labels" in one["expression"]
    ]
    assert kept.startswith('oldObject.spec.?nodeName.orValue("") == "" || [')
    assert set(re.findall(r'"([^"]+/[^"]+)"', kept)) == {*MEMBERSHIP_KEYS, PLACEHOLDER}
    for field in ("labels", "annotations"):
        assert f"object.metadata.?{field}[?name] == oldObject.metadata.?{field}[?name]" in kept


def test_the_mixed_example_names_no_scheduler() -> None:
    text = (EXAMPLES / "mixed.yaml").read_text("utf-8")
    assert f"kubectl label namespace mixed {SCHEDULE}=true" in text
    others = chart.objects(text)
    assert [requests_of(pod_of(pod_in(one)))[0].kind for one in others] == [
        "whole",
        "shared",
        "sliced",
    ]
    for one in others:
        assert not {"schedulerName", "tolerations", "schedulingGates"} & pod_in(one)["spec"].keys()


@pytest.mark.parametrize(
    "path",
    sorted({*EXAMPLES.glob("*.yaml")} - {EXAMPLES / "mixed.yaml"}),
    ids=lambda path: path.stem,
)
def test_an_example_goes_through_our_scheduler_to_tainted_nodes(path: Path) -> None:
    pods = (one for one in chart.objects(path.read_text("utf-8")) if one["kind"] != "Queue")
    for one in pods:
        spec = pod_in(one)["spec"]
        if one["kind"] != "ElasticJob":  # whose controller sets the scheduler
            assert spec["schedulerName"] == "aliquot"
        assert {"key": TAINT, "operator": "Exists"} in spec["tolerations"]


def test_the_pages_first_pod_asks_for_two_half_gpus() -> None:
    (text,) = re.findall(r"<<'EOF'\n(.*?)\n\s*EOF", PAGE.read_text("utf-8"), re.DOTALL)
    (pod,) = chart.objects(text)
    (request,) = requests_of(pod_of(pod))
    assert (request.kind, request.gpus) == ("shared", 2)


def test_the_pages_extender_is_the_charts(manifest: chart.Objects) -> None:
    texts = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (text,) = (one for one in texts if "KubeSchedulerConfiguration" in one)
    (config,) = chart.objects(text)
    assert config["percentageOfNodesToScore"] == 100
    (told,) = config["extenders"]
    ours = extender_of(manifest)
    for one in (told, ours):
        one.pop("urlPrefix")
        for name in ("caFile", "certFile", "keyFile"):
            one["tlsConfig"].pop(name)
    assert told == ours


def test_the_page_names_every_preset_and_its_resources() -> None:
    page = PAGE.read_text("utf-8")
    for name, preset in PRESETS.items():
        rows = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert len(rows) == 1, name
        for resource in preset.resources:
            assert f"`{resource}`" in rows[0]


def test_the_page_names_every_metric_of_agent_and_extender() -> None:
    page = PAGE.read_text("utf-8")
    ours = ("aliquot_node_", "aliquot_scheduler_")
    named = {name for name in metric_names() if name.startswith(ours)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in named}
    assert {name for name in families if f"`{name}`" not in page} == set()


def test_the_page_explains_every_reason_that_events_give() -> None:
    page = PAGE.read_text("utf-8")
    reasons = event_reasons()
    assert {"InsufficientGPUs", "InvalidAnnotation", "Resized", "GPUUnhealthy"} <= reasons
    assert {reason for reason in reasons if f"`{reason}`" not in page} == set()


def test_the_image_is_made_of_existing_files() -> None:
    lines = (chart.ROOT / "Containerfile").read_text("utf-8").splitlines()
    copied = [line.split()[1:-1] for line in lines if re.match(r"COPY (?!--from)", line)]
    sources = {name for names in copied for name in names}
    assert sources == {name for name in sources if (chart.ROOT / name).exists()}
    let_in = (chart.ROOT / ".dockerignore").read_text("utf-8").split()
    assert sources == {name.removeprefix("!") for name in let_in if name.startswith("!")}
