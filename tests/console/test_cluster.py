"""The console of a cluster: what each user sees and changes, by the user's own token."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from aliquot.console import schema
from aliquot.console.cluster import openapi
from aliquot.kubernetes.extender.certificates import Authority
from aliquot.model.errors import InvalidValueError
from conftest import Cli
from console.conftest import Console, end_console
from console.everything import ask_everything
from console.team_cluster import TeamCluster, pod, start_cluster_console
from support import environment, wait_until

ALICE, BOB = "Bearer token-of-alice", "Bearer token-of-bob"
TRAIN, SECRET = "/jobs/elasticjobs/team-a/train", "/jobs/elasticjobs/team-b/secret-job"


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamCluster]:
    with TeamCluster(tmp_path_factory.mktemp("teams")).serving() as found:
        yield found


@pytest.fixture(scope="module")
def served(teams: TeamCluster) -> Iterator[Console]:
    found = start_cluster_console(teams, environment())
    try:
        wait_until(lambda: found.ask("GET", "/api/v1/gpus").status == 200)
        yield found
    finally:
        end_console(found)


def test_only_a_token_that_the_api_server_accepts_is_let_in(served: Console) -> None:
    for path in ("/session", "/cluster", "/gpus", "/jobs", "/events", TRAIN, "/nothing"):
        for given in (None, "Bearer ", "Bearer wrong", "Bearer a b", "Basic token-of-alice"):
            found = served.problem(401, "GET", f"/api/v1{path}", authorization=given)
            assert "kubectl create token" in found["hint"]
    assert served.get("/session") == {"user": "alice", "groups": ["people"]}
    assert served.get("/openapi.json", authorization=None)["info"]


def test_other_hosts_and_origins_are_refused(served: Console) -> None:
    served.problem(421, "GET", "/api/v1/gpus", host="evil.example")
    served.problem(403, "GET", "/api/v1/gpus", origin="https://evil.example")
    page = served.ask("GET", "/", authorization=None)
    assert b'name="aliquot-console" content="cluster"' in page.body
    assert "script-src 'self'" in page.headers["content-security-policy"]


def test_gpus_are_cut_into_the_grants_of_all_teams(served: Console) -> None:
    gpus = served.get("/gpus")["items"]
    assert [(one["node"], one["index"], one["healthy"]) for one in gpus] == [
        ("n1", 0, True),
        ("n1", 1, True),
        ("n1", 2, True),
        ("n1", 3, False),
    ]
    gib = 1 << 30
    assert [one["granted_bytes"] // gib for one in gpus] == [32, 80, 0, 0]
    assert [one["free_percent"] for one in gpus] == [20, 0, 100, None]
    assert [one["free_bytes"] and one["free_bytes"] // gib for one in gpus] == [48, 0, 80, None]
    assert {one["used_bytes"] for one in gpus} == {None}, "what nobody measures here is absent"
    assert gpus[3]["why"] == "Xid 79: it has fallen off the bus"


def test_grants_of_other_namespaces_have_no_name(served: Console) -> None:
    grants = served.get("/grants")["items"]
    assert {one["pod"] for one in grants} == {"train-0", None}
    assert [one["slices"][0]["memory_bytes"] >> 30 for one in grants if one["hidden"]] == [24, 80]
    told = json.dumps(grants)
    assert "team-b" not in told
    assert "serve" not in told
    assert "uid-" not in told


def test_without_the_right_to_list_gpunodes_no_gpu_is_shown(served: Console) -> None:
    assert served.get("/gpus", authorization=BOB)["items"] == []
    assert served.get("/queues", authorization=BOB)["items"] == []
    lacks = served.get("/cluster", authorization=BOB)["lacks"]
    assert lacks == ["gpunodes.aliquot.io", "queues.aliquot.io"]


def test_a_user_sees_only_jobs_of_namespaces_that_the_user_may_list(served: Console) -> None:
    rows = served.get("/jobs")["items"]
    assert {one["id"] for one in rows} == {
        "elasticjobs/team-a/train",
        "gangs/team-a/large",
        "pods/team-a/notebook",
    }
    (large,) = [one for one in rows if one["name"] == "large"]
    assert large["phase"] == "Waiting"
    assert "needs 8 GPUs" in large["reason"]
    assert large["expected_start"] == 1795096800.0
    others = served.get("/jobs", authorization=BOB)["items"]
    assert {one["namespace"] for one in others} == {"team-b"}
    served.problem(403, "GET", f"/api/v1{SECRET}")
    served.problem(403, "GET", "/api/v1/pods/team-b/serve/log")


def test_a_job_has_its_pods_its_events_and_logs(served: Console) -> None:
    found = served.get(TRAIN)
    assert found["job"]["sizes"] == "1..4"
    assert [one["name"] for one in found["pods"]] == ["train-0"]
    assert {one["message"] for one in found["events"]} == {"1 worker started", "8 GiB on GPU 0"}
    assert [one["reason"] for one in found["history"]] == ["started"]
    assert "step 2 of train-0" in served.get("/pods/team-a/train-0/log?lines=10")["text"]
    served.problem(404, "GET", "/api/v1/jobs/elasticjobs/team-a/gone")


def test_queues_have_quota_use_and_what_they_borrow(served: Console) -> None:
    own, other = served.get("/queues")["items"]
    assert (own["quota"]["gpus"], own["used"]["gpus"], own["unused"]["gpus"]) == (3, 0.4, 2.6)
    assert own["quota"]["memory_bytes"] is None, "a bound that nobody set is absent"
    assert other["borrowed"]["gpus"] == 0.5
    assert other["waiting_gangs"] == 1


def test_changes_are_made_with_the_users_own_token(served: Console, teams: TeamCluster) -> None:
    before = len(teams.api.writes)
    served.ask("POST", f"/api/v1{TRAIN}/suspend")
    assert teams.get("elasticjobs", "team-a", "train")["spec"]["suspend"] is True
    served.ask("POST", f"/api/v1{TRAIN}/resume")
    assert teams.get("elasticjobs", "team-a", "train")["spec"]["suspend"] is False
    assert (
        served.ask("PUT", "/api/v1/elasticjobs/team-a/train/workers", {"workers": 2}).status == 200
    )
    assert teams.get("elasticjobs", "team-a", "train")["spec"]["replicas"] == 2
    served.ask("POST", "/api/v1/pods/team-a/train-0/resize", {"memory": "12GiB", "compute": "50"})
    notes = teams.get("pods", "team-a", "train-0")["metadata"]["annotations"]
    assert (notes["aliquot.io/memory"], notes["aliquot.io/compute"]) == ("12GiB", "50")
    assert {who for who, _, _ in teams.api.writes[before:]} == {"alice"}
    teams.put("pods", pod("team-a", "spare"))
    assert served.ask("POST", "/api/v1/jobs/pods/team-a/spare/cancel").status == 200
    assert ("pods", "team-a", "spare") not in teams.api.objects


def test_nobody_changes_what_belongs_to_another_team(served: Console, teams: TeamCluster) -> None:
    before = list(teams.api.writes)
    for verb in ("suspend", "resume", "cancel"):
        found = served.problem(403, "POST", f"/api/v1{SECRET}/{verb}")
        assert "is forbidden" in found["detail"]
    served.problem(403, "PUT", "/api/v1/elasticjobs/team-b/secret-job/workers", {"workers": 1})
    served.problem(403, "POST", "/api/v1/pods/team-b/serve/resize", {"memory": "1GiB"})
    served.problem(409, "POST", "/api/v1/jobs/gangs/team-a/large/suspend")
    assert teams.api.writes == before


def test_names_cannot_leave_their_place_in_an_address(served: Console) -> None:
    for name in ("..", "a%2Fb", "a%3Fb=c", "A", "-a", "a" * 254):
        answer = served.ask("GET", f"/api/v1/jobs/pods/team-a/{name}")
        assert answer.status in {400, 404}, name
        assert answer.headers["content-type"] == "application/problem+json"
    with pytest.raises(InvalidValueError):
        schema.check("train\n", openapi.OBJECT_NAME)
    for body in ({}, {"memory": "much"}, {"compute": "0"}, {"size": "1"}):
        served.problem(400, "POST", "/api/v1/pods/team-a/train-0/resize", body)


@pytest.mark.parametrize("user", [ALICE, BOB])
@pytest.mark.parametrize("operation", ["session", "cluster", "nodes", "gpus", "grants", "queues"])
def test_answers_are_as_the_document_describes_them(
    served: Console, operation: str, user: str
) -> None:
    described = openapi.OPERATIONS[operation]
    schema.check(served.get(described["path"], authorization=user), described["answer"])


def test_jobs_are_as_the_document_describes_them(served: Console) -> None:
    schema.check(served.get("/jobs"), openapi.OPERATIONS["jobs"]["answer"])
    for kind in ("elasticjobs/team-a/train", "gangs/team-a/large", "pods/team-a/notebook"):
        schema.check(served.get(f"/jobs/{kind}"), openapi.OPERATIONS["job"]["answer"])


@pytest.mark.filterwarnings("default")
def test_every_answer_of_a_cluster_is_as_the_document_says(served: Console) -> None:
    document = served.get("/openapi.json")
    del document["paths"]["/events"]  # it does not end
    assert len(ask_everything(served, document)) == len(openapi.OPERATIONS) - 1


def test_a_second_page_begins_where_the_first_ended(served: Console) -> None:
    first = served.get("/gpus?limit=3")
    rest = served.get(f"/gpus?limit=3&after={first['next']}")
    assert [one["index"] for one in (*first["items"], *rest["items"])] == [0, 1, 2, 3]
    assert rest["next"] is None


def test_https_is_served_with_a_certificate(teams: TeamCluster, tmp_path: Path) -> None:
    authority = Authority.create("tests")
    made = authority.sign_server(["127.0.0.1"])
    files = {"ca": authority.certificate, "crt": made.certificate, "key": made.key}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    options = ("--tls-cert", str(tmp_path / "crt"), "--tls-key", str(tmp_path / "key"))
    console = start_cluster_console(teams, environment(), ":0", *options)
    try:
        assert console.link.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=tmp_path / "ca")
        connection = http.client.HTTPSConnection(console.host, timeout=60, context=trust)
        with closing(connection):
            connection.request("GET", "/api/v1/session", headers={"Authorization": ALICE})
            assert json.load(connection.getresponse())["user"] == "alice"
    finally:
        end_console(console)


def test_a_console_without_rights_of_its_own_says_so(tmp_path: Path, cli: Cli) -> None:
    missing: Any = cli("console", "--cluster", "--kubeconfig", str(tmp_path / "none"))
    assert missing.returncode != 0
    assert "cannot connect to the API server" in missing.stderr
