"""Who may see and change what in a pool, and that its answers say nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from http import HTTPStatus
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model import Request, parse_amount
from aliquot.model.errors import InvalidValueError
from aliquot.model.job import ArrayIndex, Job, JobPhase, parse_sizes
from aliquot.model.job_state import JobState
from aliquot.model.owner import Owner
from aliquot.placement.elastic.resize import Rules
from aliquot.pool import api
from aliquot.pool.access import Access, Caller, RefusedError, WantedJob, parse_wanted
from aliquot.pool.admission import RunAdmission
from aliquot.pool.controller import PoolController
from aliquot.pool.directory import PoolDirectory
from aliquot.pool.encoding import (
    Submission,
    decode_change,
    decode_submission,
    encode_submission,
)
from aliquot.pool.peers import Peer, user_name
from aliquot.pool.policy import PolicyFile
from aliquot.pool.runs import RunMode, RunRequest
from aliquot.pool.store import JobStore
from aliquot.slices import StateDirectory

if TYPE_CHECKING:
    from aliquot.pool.runs import RunDesk
    from aliquot.pool.workers import LocalWorkers

ALICE, BOB, ROOT = Owner(4001, 4001, "alice"), Owner(4002, 4002, "bob"), Owner(0, 0, "root")
ADMINS = 4999


def peer(owner: Owner, *groups: int, here: bool = True) -> Peer:
    return Peer(owner, frozenset({owner.gid, *groups}), 1, here)


def caller(owner: Owner, *, admin: bool = False) -> Caller:
    return Caller(owner, frozenset({owner.gid}), admin)


def job_of(owner: Owner, secret: str, *, live: bool = False) -> Submission:
    """A job in which every text that its user chooses contains the secret."""
    request = Request(memory=parse_amount("2GiB"), together=f"g{secret}")
    name = f"n{secret}"
    job = Job(0, name, (f"c{secret}", f"a{secret}"), request, parse_sizes("1..2"), live=live)
    job = replace(job, queue=f"q{secret}")
    return Submission(owner, job, f"/p{secret}", f"/d{secret}", {f"E{secret}": f"v{secret}"})


def run_of(owner: Owner, secret: str, mode: RunMode = RunMode.WAIT) -> RunRequest:
    """A command in which every text that its user chooses contains the secret."""
    request = Request(memory=parse_amount("2GiB"), together=f"g{secret}")
    name, program, visible, queue = f"n{secret}", f"/p{secret}", f"v{secret}", f"q{secret}"
    return RunRequest(1, owner, 7, 1, request, name, program, visible, mode, 5.0, queue)


class Pool:
    """A pool without workers. `runs` are the commands that ask for a grant."""

    def __init__(self, folder: Path) -> None:
        workers = SimpleNamespace(
            arbiter_status=lambda: SimpleNamespace(gpus=(), grants=()),
            limit_processes=lambda _most: None,
        )
        self.store = JobStore(folder / "pool.sqlite")
        directory = PoolDirectory(folder, StateDirectory(folder))
        self.controller = PoolController(
            directory,
            self.store,
            cast("LocalWorkers", workers),
            Rules(),
            PolicyFile(None),
            lambda _: None,
        )
        self.runs: list[RunRequest] = []
        desk = SimpleNamespace(requests=lambda: list(self.runs), cancel=self._cancel)
        self.controller.runs = RunAdmission(cast("RunDesk", desk), folder, self.store)

    def _cancel(self, run: RunRequest, by: str) -> bool:
        self.runs.remove(run)
        return bool(by)

    def ask(self, who: Caller, method: str, target: str, body: object = None) -> tuple[int, bytes]:
        content = b"" if body is None else json.dumps(body).encode()
        answer = api.answer(self.controller, who, method, target, content)
        headers = "".join(f"{key}: {value}" for key, value in answer.headers.items())
        return answer.status, headers.encode() + answer.content

    def forgotten(self, who: Caller) -> list[int]:
        status, content = self.ask(who, "POST", "/v1/prune", {"seconds": 0})
        assert status == HTTPStatus.OK
        return list(json.loads(content)["forgotten"])

    def rows(self, who: Caller, query: str = "", of: str = "jobs") -> list[dict[str, Any]]:
        status, content = self.ask(who, "GET", f"/v1/jobs{query}")
        assert status == HTTPStatus.OK
        return list(json.loads(content)[of])


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool(tmp_path)


class TestNames:
    def test_a_user_without_a_name_is_looked_up_once_a_minute(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A directory server may have to answer."""
        names: dict[int, str] = {}
        asked: list[int] = []

        def getpwuid(uid: int) -> SimpleNamespace:
            asked.append(uid)
            return SimpleNamespace(pw_name=names[uid])

        minute, uid = -10, 3_999_999_999
        monkeypatch.setattr("aliquot.pool.peers.pwd.getpwuid", getpwuid)
        monkeypatch.setattr("aliquot.pool.peers._minute", lambda: minute)
        assert [user_name(uid) for _ in range(3)] == [str(uid)] * 3
        assert asked == [uid]
        names[uid], minute = "late", minute + 1
        assert [user_name(uid) for _ in range(3)] == ["late"] * 3
        names.clear()
        minute += 1
        assert user_name(uid) == "late", "also while the server is down"
        assert asked == [uid, uid]


class TestCallers:
    def test_admins_of_roots_pool_are_root_and_the_admins_group(self) -> None:
        access = Access(0, frozenset({ADMINS}))
        assert access.admit(peer(ROOT)).admin
        assert access.admit(peer(ALICE, ADMINS)).admin
        assert not access.admit(peer(ALICE, 4998)).admin
        assert not Access(0).admit(peer(ALICE, ADMINS)).admin

    @pytest.mark.parametrize("who", [peer(ROOT, here=False), peer(ALICE, ADMINS, here=False)])
    def test_programs_in_containers_are_refused(self, who: Peer) -> None:
        with pytest.raises(RefusedError, match="containers"):
            Access(0, frozenset({ADMINS})).admit(who)

    def test_a_users_own_pool_is_for_that_user_and_root(self) -> None:
        access = Access(ALICE.uid)
        assert access.admit(peer(ALICE, here=False)).admin
        assert access.admit(peer(ROOT)).admin
        with pytest.raises(RefusedError):
            access.admit(peer(BOB))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("12", WantedJob(number=12)),
        ("train", WantedJob(name="train")),
        ("alice:train", WantedJob(user="alice", name="train")),
    ],
)
def test_a_job_is_named_by_number_by_name_or_by_user_and_name(text: str, wanted: WantedJob) -> None:
    assert parse_wanted(text) == wanted


@pytest.mark.parametrize("text", ["", ":", "a:", ":a", "a:b:c", "a b"])
def test_other_names_of_jobs_are_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_wanted(text)


class TestJobsOfOthers:
    def test_a_row_shows_user_size_phase_and_age(self, pool: Pool) -> None:
        pool.store.add(job_of(ALICE, "x"), JobState(since=5.0))
        (row,) = pool.rows(caller(BOB))
        assert (row["hidden"], row["user"], row["uid"]) == (True, "alice", ALICE.uid)
        assert (row["sizes"], row["request"]["gpus"], row["state"]["phase"]) == (
            [1, 2],
            1,
            "Pending",
        )
        assert (row["name"], row["command"], row["directory"], row["waiting"]) == (None,) * 4
        (own,) = pool.rows(caller(ALICE))
        assert (own["hidden"], own["name"]) == (False, "nx")
        assert own.keys() == row.keys()

    def test_a_command_that_waits_has_a_row_that_shows_others_no_more_than_a_jobs(
        self, pool: Pool
    ) -> None:
        pool.runs = [run_of(ALICE, "x"), run_of(ALICE, "y", RunMode.NOW)]
        (own,) = pool.rows(caller(ALICE), of="runs")
        assert (own["hidden"], own["name"], own["program"], own["pid"]) == (False, "nx", "/px", 7)
        assert (own["queue"], own["submitted"], own["state"]["phase"]) == ("qx", 5.0, "Pending")
        (row,) = pool.rows(caller(BOB), of="runs")
        assert own.keys() == row.keys()
        shown = {key: value for key, value in row.items() if value is not None}
        request = dict.fromkeys(row["request"]) | {"gpus": 1, "memory": own["request"]["memory"]}
        assert shown == {
            "user": "alice",
            "uid": ALICE.uid,
            "submitted": 5.0,
            "request": request,
            "state": {"phase": "Pending", "since": 5.0},
            "hidden": True,
        }

    def test_commands_of_others_are_listed_where_their_unfinished_jobs_are(
        self, pool: Pool
    ) -> None:
        pool.runs = [run_of(ALICE, "x"), run_of(BOB, "y")]
        for query, admin, users in (
            ("", False, ["alice", "bob"]),
            ("?recent=60", False, ["alice", "bob"]),
            ("?all=1", False, ["bob"]),
            ("?all=1", True, ["alice", "bob"]),
        ):
            found = pool.rows(caller(BOB, admin=admin), query, of="runs")
            assert [row["user"] for row in found] == users

    def test_users_cancel_their_own_commands_and_admins_all(self, pool: Pool) -> None:
        pool.runs = [run_of(ALICE, "x"), run_of(BOB, "x"), run_of(BOB, "y")]
        for name in ("alice:nx", f"{ALICE.uid}:nx", "nz"):
            found = pool.ask(caller(BOB), "GET", f"/v1/jobs/{name}/members?runs=1")
            ended = pool.ask(caller(BOB), "POST", f"/v1/runs/{name}/cancel")
            assert (found[0], ended[0]) == (HTTPStatus.NOT_FOUND, HTTPStatus.NOT_FOUND)
        assert pool.ask(caller(BOB), "GET", "/v1/jobs/nx/members")[0] == HTTPStatus.NOT_FOUND
        _, content = pool.ask(caller(BOB), "GET", "/v1/jobs/nx/members?runs=1")
        assert [row["user"] for row in json.loads(content)["runs"]] == ["bob"]
        status, content = pool.ask(caller(BOB), "POST", "/v1/runs/nx/cancel")
        assert status == HTTPStatus.OK
        assert [one.owner.name for one in pool.runs] == ["alice", "bob"]
        admin = caller(ROOT, admin=True)
        _, content = pool.ask(admin, "GET", "/v1/jobs/nx/members?runs=1")
        assert json.loads(content)["hint"] == "Choose one of alice:nx."
        assert pool.ask(admin, "POST", "/v1/runs/alice:nx/cancel")[0] == HTTPStatus.OK
        assert [one.shown_name for one in pool.runs] == ["ny"]

    def test_finished_jobs_of_others_are_not_listed(self, pool: Pool) -> None:
        for owner in (ALICE, BOB):
            stored = pool.store.add(job_of(owner, "x"), JobState())
            pool.store.save(stored, replace(stored.state, phase=JobPhase.SUCCEEDED))
        assert [row["user"] for row in pool.rows(caller(BOB), "?all=1")] == ["bob"]
        assert len(pool.rows(caller(BOB, admin=True), "?all=1")) == 2
        assert pool.ask(caller(BOB), "GET", "/v1/jobs/1")[0] == HTTPStatus.NOT_FOUND

    def test_admins_name_a_job_by_its_user(self, pool: Pool) -> None:
        for owner in (ALICE, BOB):
            pool.store.add(job_of(owner, "x"), JobState())
        admin = caller(ROOT, admin=True)
        for name in ("alice:nx", f"{ALICE.uid}:nx"):
            assert json.loads(pool.ask(admin, "GET", f"/v1/jobs/{name}")[1])["uid"] == ALICE.uid
        status, content = pool.ask(admin, "POST", "/v1/jobs/nx/cancel")
        assert status == HTTPStatus.NOT_FOUND
        assert json.loads(content)["hint"] == "Choose one of alice:nx, bob:nx."
        assert pool.ask(admin, "POST", "/v1/jobs/alice:nx/cancel")[0] == HTTPStatus.OK
        cancelled = [one.state.desired for one in pool.store.all()]
        assert cancelled == ["cancel", "run"]

    def test_admins_name_an_array_by_its_user(self, pool: Pool) -> None:
        for owner in (ALICE, BOB):
            one = job_of(owner, "x")
            jobs = [replace(one.job, name=f"s-{at}", array=ArrayIndex("s", at)) for at in (1, 2)]
            pool.store.add_all([replace(one, job=job) for job in jobs], JobState())
        admin = caller(ROOT, admin=True)

        def members(who: Caller, name: str) -> list[int]:
            status, content = pool.ask(who, "GET", f"/v1/jobs/{name}/members")
            return [row["number"] for row in json.loads(content)["jobs"]] if status == 200 else []

        for name in ("alice:s", f"{ALICE.uid}:s"):
            assert members(admin, name) == members(caller(ALICE), name) == [1, 2]
            assert members(caller(BOB), name) == []
        _, content = pool.ask(admin, "GET", "/v1/jobs/s/members")
        assert json.loads(content)["hint"] == "Choose one of alice:s, bob:s."

    def test_the_owner_of_a_listed_job_is_named(self, pool: Pool) -> None:
        pool.store.add(job_of(ALICE, "x"), JobState())
        status, content = pool.ask(caller(BOB), "POST", "/v1/jobs/1/cancel")
        assert status == HTTPStatus.FORBIDDEN
        assert json.loads(content)["error"] == "job 1 belongs to alice"

    @given(
        st.lists(st.tuples(st.sampled_from([ALICE, BOB]), st.sampled_from(list(JobPhase)),
                           st.booleans()), min_size=1, max_size=6),
    )  # fmt: skip
    def test_no_answer_contains_a_hidden_field(
        self, jobs: list[tuple[Owner, JobPhase, bool]]
    ) -> None:
        """Every request about every job, by each name that others could guess."""
        with TemporaryDirectory() as folder:
            pool, secrets = Pool(Path(folder)), count(7_000_000)
            hidden = []
            for owner, phase, live in jobs:
                secret = str(next(secrets))
                state = JobState(phase=phase, reason=f"r{secret}", since=1.0)
                stored = pool.store.add(job_of(owner, secret, live=live), state)
                pool.store.save(stored, replace(state, resizes=1))
                pool.store.save_progress(stored.job.number, {"step": int(secret)}, {1: int(secret)})
                log = pool.controller.directory.log(stored.job.number, 0)
                log.parent.mkdir(parents=True)
                log.write_text(f"l{secret}")
                if owner is ALICE:
                    hidden.append(secret)
            bob, said = caller(BOB), b""
            for number, (owner, *_) in enumerate(jobs, 1):
                name = f"n{7_000_000 + number - 1}"
                for wanted in (str(number), name, f"{owner.name}:{name}", f"{owner.uid}:{name}"):
                    if owner is ALICE and name in wanted:
                        continue  # the answer may repeat what the caller asked for
                    asked = ("", "/log", "/log?tail=9", "/members", "/members?runs=1")
                    for verb in (*asked, "/ranks", "/times"):
                        said += pool.ask(bob, "GET", f"/v1/jobs/{wanted}{verb}")[1]
                    for verb in api.REQUESTS:
                        said += pool.ask(bob, "POST", f"/v1/jobs/{wanted}/{verb}")[1]
                    said += pool.ask(bob, "POST", f"/v1/jobs/{wanted}/update", {"urgency": 1})[1]
                    after = encode_submission(job_of(BOB, "x"))
                    after["after"] = [{"job": wanted, "needs": "any"}]
                    said += pool.ask(bob, "POST", "/v1/jobs", after)[1]
            pool.runs = [run_of(ALICE, secret) for secret in hidden]
            for query in ("", "?all=1", "?recent=1e9"):
                said += pool.ask(bob, "GET", f"/v1/jobs{query}")[1]
            theirs = {one.job.number for one in pool.store.all() if one.owner == ALICE}
            assert not theirs & set(pool.forgotten(bob))
            assert not [secret for secret in hidden if secret.encode() in said]
            alices = [one for one in pool.store.all() if one.owner == ALICE]
            assert len(alices) == len(hidden)
            assert {(one.state.desired, one.job.urgency) for one in alices} <= {("run", 0)}
            pool.store.close()

    def test_a_guessed_name_tells_nothing(self, pool: Pool) -> None:
        pool.store.add(job_of(ALICE, "x"), JobState())
        asked = [("GET", one) for one in ("", "/log", "/members", "/ranks", "/times")]
        for method, verb in (*asked, ("POST", "/cancel"), ("POST", "/update")):
            there, not_there = (
                pool.ask(caller(BOB), method, f"/v1/jobs/alice:{name}{verb}")
                for name in ("nx", "ny")
            )
            assert there[0] == not_there[0] == HTTPStatus.NOT_FOUND
            assert there[1].replace(b"nx", b"ny") == not_there[1]

    def test_names_of_other_users_are_not_searched(
        self, pool: Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A search takes longer if it finds something, most of all a large array."""
        searched = []

        def search(user: str, name: str) -> None:
            searched.append(f"{user}:{name}")

        monkeypatch.setattr(pool.store, "named_of", search)
        monkeypatch.setattr(pool.store, "array_of", search)
        for name in ("alice:nx", f"{ALICE.uid}:nx"):
            for verb in ("", "/members"):
                status, _ = pool.ask(caller(BOB), "GET", f"/v1/jobs/{name}{verb}")
                assert status == HTTPStatus.NOT_FOUND
        assert searched == []
        for one in (caller(ALICE), caller(ROOT, admin=True)):
            pool.ask(one, "GET", "/v1/jobs/alice:nx/members")
        assert searched == ["alice:nx"] * 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("urgency", "high"), ("urgency", True), ("urgency", 1 << 60), ("queue", ["a"]),
        ("retries", 1.5), ("live", "yes"), ("grace_seconds", float("nan")), ("name", 7),
        ("notice_seconds", float("inf")), ("command", ["a\0b"]), ("sizes", ["1"]),
        ("environment", {"A": "\0"}), ("program", "x" * (1 << 18)), ("owner", {"uid": 0}),
        ("time_seconds", 0), ("time_seconds", -1), ("time_seconds", 1e10), ("time_seconds", "1"),
        ("time_seconds", float("nan")), ("after", ["1"]), ("after", [{"job": "1", "needs": "no"}]),
        ("after", [{"job": "\ud800", "needs": "ok"}]), ("after", 1), ("queue", "\ud800"),
        ("array", {"name": "a", "index": float("inf"), "at_once": None}),
        ("array", {"name": "a", "index": 1, "at_once": 1 << 60}), ("array", [1]),
    ],
)  # fmt: skip
def test_a_job_with_an_invalid_field_is_refused(key: str, value: object) -> None:
    fields = encode_submission(job_of(ALICE, "x"))
    assert decode_submission(fields, ALICE).owner == ALICE
    with pytest.raises(InvalidValueError):
        decode_submission({**fields, key: value}, ALICE)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("urgency", 1 << 60), ("urgency", True), ("urgency", 1.5), ("queue", 7),
        ("time_seconds", float("inf")), ("time_seconds", "1"), ("sizes", [float("inf")]),
        ("sizes", ["1"]), ("sizes", 1), ("sizes", [1 << 60]), ("queue", "\ud800"),
        ("memory", {"bytes": 1 << 53, "percent": None}), ("memory", 1), ("compute_percent", "1"),
        ("owner", {"uid": 0}), ("number", 2), ("priority", "most"),
    ],
)  # fmt: skip
def test_a_change_with_an_invalid_field_is_refused(key: str, value: object) -> None:
    assert decode_change({"urgency": 3}).urgency == 3
    with pytest.raises(InvalidValueError):
        decode_change({key: value})


@pytest.mark.parametrize(
    ("indices", "at_once"),
    [
        ([], None), ([1, 1], None), ([-1], None), ([100_000], None), (list(range(1001)), None),
        (["1"], None), ([1.0], None), ([True], None), (1, None), ("12", None), ([1 << 60], None),
        ([1], 0), ([1], -1), ([1], 1 << 60), ([1], 10_000), ([1], "1"), ([1], True),
    ],
)  # fmt: skip
def test_an_invalid_array_is_refused(pool: Pool, indices: object, at_once: object) -> None:
    body = {**encode_submission(job_of(ALICE, "x")), "indices": indices, "at_once": at_once}
    status, content = pool.ask(caller(ALICE), "POST", "/v1/jobs", body)
    assert (status, b"array" in content) == (HTTPStatus.BAD_REQUEST, True), content
    assert pool.store.all() == []


@pytest.mark.parametrize("seconds", [-1, "x", None, float("nan"), float("inf"), 10**400])
def test_an_invalid_age_forgets_nothing(pool: Pool, seconds: object) -> None:
    stored = pool.store.add(job_of(ALICE, "x"), JobState())
    pool.store.save(stored, replace(stored.state, phase=JobPhase.SUCCEEDED))
    status, _ = pool.ask(caller(ALICE), "POST", "/v1/prune", {"seconds": seconds})
    assert status == HTTPStatus.BAD_REQUEST
    assert len(pool.store.all()) == 1


@pytest.mark.parametrize("query", ["from", "rank", "tail", "since"])
def test_a_number_of_thirty_digits_is_refused(pool: Pool, query: str) -> None:
    stored = pool.store.add(job_of(ALICE, "x"), JobState())
    target = f"/v1/jobs/{stored.job.number}/log?{query}={'9' * 30}"
    status, _ = pool.ask(caller(ALICE), "GET", target)
    assert status == HTTPStatus.BAD_REQUEST
