"""A cluster of two teams for the console: an API server with users and rights, and the console.

The API server runs in a thread, the console is `aliquot console --cluster` as people start it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from aliquot.kubernetes.api.gpunode import NodeGrant
from aliquot.kubernetes.api.names import GANG, GANG_SIZE, JOB, JOB_RANK
from aliquot.kubernetes.api.objects import GPU_NODES
from conftest import aliquot_command
from console.conftest import Console
from kubernetes.builders import GIB, GPU_BYTES, make_gpu, make_node, node_json
from kubernetes.fake_api import FakeApi, Json, _Where, as_json

T = TypeVar("T")

LIST = ("get", "list", "watch")
OURS = "/apis/aliquot.io/v1alpha1"
START = "2026-11-19T12:00:00Z"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Team:
    """A user, and the verbs that the user has on kinds of objects, by namespace ("": in all)."""

    name: str
    rights: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)

    def may(self, verb: str, plural: str, namespace: str) -> bool:
        return any(verb in self.rights.get(where, {}).get(plural, ()) for where in {"", namespace})


def _member(namespace: str, **everywhere: tuple[str, ...]) -> dict[str, dict[str, tuple[str, ...]]]:
    """As the roles `edit` and `view` give it in one namespace."""
    writes = (*LIST, "patch", "delete")
    own = {"pods": writes, "elasticjobs": writes, "gangs": LIST, "events": LIST, "pods/log": LIST}
    return {namespace: own, "": everywhere}


READER = {
    "": {
        **dict.fromkeys(("pods", "nodes", "namespaces"), ("list", "watch")),
        **dict.fromkeys(("gpunodes", "queues", "gangs", "elasticjobs"), ("list", "watch")),
        "tokenreviews": ("create",),
        "subjectaccessreviews": ("create",),
    }
}


class TeamApi(FakeApi):
    """An API server that knows users by their tokens, and lets each do what the user may."""

    def reset(self) -> None:
        super().reset()
        self.users = {
            "token-of-console": Team("console", READER),
            "token-of-alice": Team("alice", _member("team-a", gpunodes=LIST, queues=LIST)),
            "token-of-bob": Team("bob", _member("team-b")),
        }
        self.writes: list[tuple[str, str, str]] = []  # who, how, where

    async def _answer(self, request: Request) -> Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        user = self.users.get(token)
        if user is None:
            return self._refuse(401, "Unauthorized")
        where = _Where.of(request.url.path)
        reads = "watch" if request.query_params.get("watch") else "get" if where.name else "list"
        verb = _VERBS.get(request.method, reads)
        plural = f"{where.plural}/{where.sub}" if where.sub else where.plural
        if not user.may(verb, plural, where.namespace):
            text = f'{plural} is forbidden: User "{user.name}" cannot {verb} {plural}'
            return self._refuse(403, f'{text} in the namespace "{where.namespace}"')
        review = {"tokenreviews": self._review_token, "subjectaccessreviews": self._review_access}
        if where.plural in review:
            self.requests.append((request.method, request.url.path))
            return review[where.plural](await request.json())
        if where.sub == "log":
            return PlainTextResponse(f"step 1 of {where.name}\nstep 2 of {where.name}\n")
        if request.method != "GET":
            self.writes.append((user.name, request.method, request.url.path))
        return await super()._answer(request)

    def _review_token(self, body: Json) -> Response:
        user = self.users.get(body["spec"]["token"])
        told = {"username": user.name, "groups": ["people"]} if user else {}
        status = {"authenticated": user is not None, "user": told}
        return JSONResponse({**body, "status": status}, 201)

    def _review_access(self, body: Json) -> Response:
        spec = body["spec"]
        asked = spec["resourceAttributes"]
        (user,) = [one for one in self.users.values() if one.name == spec["user"]]
        allowed = user.may(asked["verb"], asked["resource"], asked.get("namespace", ""))
        return JSONResponse({**body, "status": {"allowed": allowed}}, 201)

    @staticmethod
    def _refuse(code: int, message: str) -> Response:
        return JSONResponse({"kind": "Status", "code": code, "message": message}, code)


class TeamCluster:
    """The API server in its thread; `call` runs something there."""

    def __init__(self, folder: Path) -> None:
        self.api = TeamApi()
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.kubeconfig = folder / "kubeconfig"

    @contextmanager
    def serving(self) -> Iterator[TeamCluster]:
        self._thread.start()
        assert self._up.wait(60)
        self.kubeconfig.write_text(json.dumps(self._config()))
        self.call(lambda: fill(self.api))
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(60)

    def call(self, act: Callable[[], T]) -> T:
        async def run() -> T:
            return act()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def put(self, plural: str, one: Json) -> None:
        self.call(lambda: self.api.put(plural, one))

    def get(self, plural: str, namespace: str, name: str) -> Json:
        return self.call(lambda: self.api.objects[plural, namespace, name])

    def _run(self) -> None:
        async def main() -> None:
            async with self.api.serving():
                self._up.set()
                await self._end.wait()

        self._loop.run_until_complete(main())
        self._loop.close()

    def _config(self) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "teams",
            "contexts": [{"name": "teams", "context": {"cluster": "teams", "user": "console"}}],
            "clusters": [{"name": "teams", "cluster": {"server": self.api.url}}],
            "users": [{"name": "console", "user": {"token": "token-of-console"}}],
        }


def start_cluster_console(
    cluster: TeamCluster, env: dict[str, str], listen: str = ":0", *options: str
) -> Console:
    """`aliquot console --cluster`, and requests to it as alice."""
    command = [aliquot_command(), "console", "--cluster", "--kubeconfig", str(cluster.kubeconfig)]
    process = subprocess.Popen(
        [*command, "--listen", listen, *options],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    link = process.stdout.readline().strip()
    if not link:
        raise AssertionError(process.communicate()[1])
    return Console(process, link, "token-of-alice")


# --- what there is in the cluster -----------------------------------------------------------------


def grant(namespace: str, pod: str, gib: int, compute: int = 0, **more: Any) -> NodeGrant:
    uid = f"uid-{namespace}-{pod}"
    return NodeGrant(uid, namespace, pod, "main", gib * GIB, compute, **more)


def pod(namespace: str, name: str, node: str = "n1", **more: Any) -> Json:
    labels, notes = more.pop("labels", {}), more.pop("annotations", {})
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"}
    meta |= {"labels": labels, "annotations": notes, "creationTimestamp": START}
    limits = {"aliquot.io/vcuda-memory": "32", "aliquot.io/vcuda-core": "30"}
    container = {"name": "main", "resources": {"limits": limits}}
    spec = {"containers": [container], **({"nodeName": node} if node else {})}
    status = {"phase": "Running" if node else "Pending", "startTime": START if node else None}
    return {"metadata": meta, "spec": spec, "status": status}


def gang(namespace: str, name: str, **status: Any) -> Json:
    meta = {"name": name, "namespace": namespace, "creationTimestamp": START}
    return {"metadata": meta, "spec": {"size": 8, "queue": namespace}, "status": status}


def elastic_job(namespace: str, name: str) -> Json:
    meta = {"name": name, "namespace": namespace, "generation": 1, "creationTimestamp": START}
    step = {"at": START, "phase": "Running", "generation": 1, "workers": 1, "reason": "started"}
    return {
        "metadata": meta,
        "spec": {"workers": {"min": 1, "max": 4}, "template": {}, "queue": namespace},
        "status": {
            "phase": "Running",
            "reason": "runs with 1 of 4 workers",
            "generation": 1,
            "workers": 1,
            "ready": 1,
            "history": [step],
        },
    }


def queue(name: str, gpus: int, used: str, borrowed: str = "0") -> Json:
    ready = {"type": "Ready", "status": "True", "reason": "Valid", "message": ""}
    amounts = {"memory": "80Gi", "compute": 100}
    return {
        "metadata": {"name": name, "creationTimestamp": START},
        "spec": {"quota": {"gpus": gpus}, "limit": {"gpus": 8}},
        "status": {
            "used": {"gpus": used, **amounts},
            "borrowed": {"gpus": borrowed, "memory": "0", "compute": 0},
            "running": {"pods": 2, "gangs": 1},
            "waiting": {"pods": 8, "gangs": 1, "since": START},
            "conditions": [{**ready, "lastTransitionTime": START}],
        },
    }


def event(namespace: str, kind: str, name: str, reason: str, message: str) -> Json:
    return {
        "metadata": {"name": f"{name}.{reason.lower()}", "namespace": namespace},
        "involvedObject": {"kind": kind, "name": name, "namespace": namespace},
        "type": "Normal",
        "reason": reason,
        "message": message,
        "source": {},
        "lastTimestamp": START,
        "count": 1,
    }


def gpu_node() -> Json:
    shared = (grant("team-a", "train-0", 8, 30), grant("team-b", "serve", 24, 50))
    gpus = (
        make_gpu("n1", 0, kind="sliced", grants=shared),
        make_gpu("n1", 1, kind="whole", grants=(grant("team-b", "tune", GPU_BYTES // GIB),)),
        make_gpu("n1", 2),
        make_gpu("n1", 3, healthy=False, why="Xid 79: it has fallen off the bus"),
    )
    found = as_json(GPU_NODES, make_node("n1", 0))
    found["status"] = {"shares": 2, "driverVersion": "580.1", "gpus": as_plain(gpus)}
    return found


def as_plain(one: Any) -> Any:
    return msgspec.to_builtins(one)


def fill(api: TeamApi) -> None:
    """Two teams on one node."""
    api.put("nodes", node_json("n1"))
    api.put("gpunodes", gpu_node())
    for name in ("team-a", "team-b"):
        api.put("namespaces", {"metadata": {"name": name}})
    api.put("queues", queue("team-a", 3, "0.4"))
    api.put("queues", queue("team-b", 1, "1.5", "0.5"))
    api.put("elasticjobs", elastic_job("team-a", "train"))
    api.put("elasticjobs", elastic_job("team-b", "secret-job"))
    member = {GANG: "train-1", GANG_SIZE: "1"}
    worker = {JOB: "train", JOB_RANK: "0"}
    api.put("pods", pod("team-a", "train-0", labels=worker, annotations=member))
    api.put("pods", pod("team-a", "notebook", node=""))
    api.put("pods", pod("team-b", "serve"))
    api.put("gangs", gang("team-a", "train-1", phase="Bound"))
    why = "needs 8 GPUs, 3 are free; it waits for team-b/serve"
    planned = {"plannedStart": "2026-11-19T14:00:00Z", "since": START}
    api.put("gangs", gang("team-a", "large", phase="Waiting", reason=why, **planned))
    api.put("gangs", gang("team-b", "secret-gang", phase="Waiting", reason="of team b"))
    api.put("events", event("team-a", "ElasticJob", "train", "Started", "1 worker started"))
    api.put("events", event("team-a", "Pod", "train-0", "Resized", "8 GiB on GPU 0"))
    api.put("events", event("team-b", "Pod", "serve", "Secret", "of team b"))
