"""What requests to the console of a cluster, and its answers, look like: its OpenAPI document."""

from __future__ import annotations

from functools import cache
from typing import Any

from aliquot.console.openapi_document import make_document
from aliquot.console.shapes import (
    BYTES,
    NAME,
    PAGE_QUERY,
    POLICY,
    PRIORITY,
    TIME,
    Schema,
    array,
    flag,
    maybe,
    number,
    page_of,
    record,
    text,
)

KINDS = ("elasticjobs", "gangs", "pods")
VERBS = ("suspend", "resume", "cancel")
MOST_LINES = 5000

_LONG = 1 << 16
OBJECT_NAME: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 253,
    "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
}
KIND = {**NAME, "enum": list(KINDS)}
VERB = {**NAME, "enum": list(VERBS)}

SESSION = record(
    {
        "user": text("the user, as the API server knows the holder of the token", 4096),
        "groups": array(text("a group", 4096)),
    }
)
_LACKS = array(text("a kind of object"), "of which the user may list none: they are not shown")
CLUSTER = record(
    {
        "time": TIME,
        "user": text("the user", 4096),
        "notes": array(text("a sentence", _LONG), "what needs attention"),
        "lacks": _LACKS,
    }
)
NODE = record(
    {
        "name": text("its name", 253),
        "driver_version": maybe(text("of the driver")),
        "problem": maybe(text("why its agent can give no GPUs", _LONG)),
        "unusable": maybe(
            text("why it gets no new pods; null: it does, or you may not list Nodes", _LONG)
        ),
        "reported": maybe(TIME),
        "late": flag("its agent has not reported for three minutes"),
    }
)
GPU = record(
    {
        "node": text("its node", 253),
        "index": number("on its node"),
        "uuid": text("the driver's name for it"),
        "model": text("its model"),
        "memory_bytes": number(f"its memory, {BYTES}"),
        "used_bytes": maybe(number(f"what programs use of it, {BYTES}; null: not known here")),
        "granted_bytes": number(f"what grants have of it, {BYTES}"),
        "free_bytes": maybe(number(f"what a new pod can have of it, {BYTES}")),
        "free_percent": maybe(number("compute time that no pod has asked for")),
        "healthy": flag("the driver reports on it"),
        "why": maybe(text("it is unhealthy", _LONG)),
        "kind": maybe(text("how it is used", enum=["whole", "shared", "sliced"])),
        "strength": maybe(number("100 for an A100", "number")),
        "telemetry": {"type": "null", "description": "not known here"},
    }
)
GRANT = record(
    {
        "id": text("identifies it while this console runs"),
        "node": text("its node", 253),
        "namespace": maybe(text("of its pod", 253)),
        "pod": maybe(text("its pod", 253)),
        "container": maybe(text("its container; null: that of a resource claim", 253)),
        "claim": maybe(text("its resource claim", 253)),
        "hidden": flag("you may not list pods of its namespace: only its size is shown"),
        "state": text("starting: planned, not reported yet", enum=["running", "starting"]),
        "slices": array(
            record(
                {
                    "gpu": text("UUID of its GPU"),
                    "gpu_index": number("of its GPU"),
                    "memory_bytes": number(f"its limit, {BYTES}"),
                    "used_bytes": maybe(number("null: not known here")),
                    "compute_percent": maybe(number("its share; null: an equal part")),
                    "weight_percent": maybe(number("its part of the GPU; null: not known yet")),
                    "got_ratio": maybe(number("null: not known here", "number")),
                    "policy": maybe(POLICY),
                    "priority": maybe(PRIORITY),
                }
            )
        ),
    }
)
JOB = record(
    {
        "id": text("KIND/NAMESPACE/NAME, as in addresses", 600),
        "kind": text("ElasticJob, Gang or Pod", enum=["ElasticJob", "Gang", "Pod"]),
        "namespace": text("its namespace", 253),
        "name": text("its name", 253),
        "phase": maybe(text("its phase; null: none yet")),
        "reason": maybe(text("why it waits, or how it came to its phase", _LONG)),
        "waits": flag("it waits for GPUs"),
        "expected_start": maybe(TIME),
        "workers": number("its pods"),
        "ready": maybe(number("of these are ready")),
        "sizes": maybe(text("numbers of workers that it can have", _LONG)),
        "queue": maybe(text("its queue", 253)),
        "created": maybe(TIME),
        "since": maybe(TIME),
        "topology": maybe(text("how near its GPUs are to each other", _LONG)),
        "suspended": flag("its user suspended it"),
        "node": maybe(text("of a single pod", 253)),
    }
)
_AMOUNTS = record(
    {
        "gpus": maybe(number("GPUs", "number")),
        "memory_bytes": maybe(number(BYTES)),
        "compute_percent": maybe(number("100 for a GPU")),
    }
)
QUEUE = record(
    {
        "name": text("its name", 253),
        "parent": maybe(text("the queue above it", 253)),
        "weight": number("its part of what is free, beside other queues"),
        "quota": maybe(_AMOUNTS),
        "limit": maybe(_AMOUNTS),
        "used": maybe(_AMOUNTS),
        "borrowed": maybe(_AMOUNTS),
        "unused": maybe(_AMOUNTS),
        "running_pods": maybe(number("pods")),
        "running_gangs": maybe(number("gangs among them")),
        "waiting_pods": maybe(number("pods")),
        "waiting_gangs": maybe(number("gangs among them")),
        "waiting_since": maybe(TIME),
        "problem": maybe(text("why nothing can start in it", _LONG)),
    }
)
POD = record(
    {
        "name": text("its name", 253),
        "phase": text("Waiting: it has no node"),
        "reason": maybe(text("of a container that waits or has ended", _LONG)),
        "node": maybe(text("its node", 253)),
        "rank": maybe(text("of a worker", 253)),
        "created": maybe(TIME),
        "started": maybe(TIME),
        "exit_code": maybe(number("of its first container that has ended")),
        "containers": array(text("a container", 253)),
        "memory": maybe(text("annotation: memory of each GPU", _LONG)),
        "compute": maybe(text("annotation: compute of each GPU", _LONG)),
        "policy": maybe(text("annotation", _LONG)),
        "priority": maybe(text("annotation", _LONG)),
        "plan": array(
            record(
                {
                    "container": text("a container", 253),
                    "kind": text("how it uses its GPUs"),
                    "gpus": array(text("UUID")),
                    "memory_bytes": number(f"of each, {BYTES}"),
                    "compute_percent": maybe(number("null: an equal part")),
                }
            ),
            "what it gets, as it was planned",
        ),
    }
)
EVENT = record(
    {
        "at": maybe(TIME),
        "about": text("KIND NAME of its object", 600),
        "type": text("Normal or Warning"),
        "reason": text("in a word", _LONG),
        "message": text("in a sentence", 1 << 20),
        "count": number("how often it happened"),
    }
)
DETAILS = record(
    {
        "job": JOB,
        "pods": maybe(array(POD)),
        "events": maybe(array(EVENT)),
        "history": array(
            record(
                {
                    "at": maybe(TIME),
                    "phase": text("its phase then"),
                    "workers": number("its workers then"),
                    "reason": text("why", _LONG),
                }
            )
        ),
    }
)
LOG = record({"text": text("the last lines", 1 << 22)})
SCALE = record({"workers": number("the most that it may have", minimum=0, maximum=10_000)})
RESIZE = record(
    {
        "memory": maybe(text("of each GPU: 8GiB, 50%; null: as the pod asked for", minLength=1)),
        "compute": maybe(text("1 to 100, or equal; null: as the pod asked for", minLength=1)),
        "policy": maybe(POLICY),
        "priority": maybe(PRIORITY),
    },
    "memory",
    "compute",
    "policy",
    "priority",
)
CHANGED = record({"message": text("what was written", _LONG)})

_JOB_PATH = "/jobs/{kind}/{namespace}/{name}"
_READS = (400, 404, 409, 503)
_WRITES = (400, 404, 409, 413, 503)

# operation: see `openapi_document`
OPERATIONS: dict[str, dict[str, Any]] = {
    "session": {
        "method": "get",
        "path": "/session",
        "summary": "Whose the token of this request is.",
        "answer": SESSION,
        "problems": (503,),
    },
    "cluster": {
        "method": "get",
        "path": "/cluster",
        "summary": "What needs attention, and what you may not list.",
        "answer": CLUSTER,
        "problems": (503,),
    },
    "nodes": {
        "method": "get",
        "path": "/nodes",
        "summary": "The nodes with GPUs.",
        "query": PAGE_QUERY,
        "answer": page_of(NODE),
        "problems": (400, 503),
    },
    "gpus": {
        "method": "get",
        "path": "/gpus",
        "summary": "The GPUs, by node and index.",
        "query": PAGE_QUERY,
        "answer": page_of(GPU),
        "problems": (400, 503),
    },
    "grants": {
        "method": "get",
        "path": "/grants",
        "summary": "What containers have of GPUs.",
        "query": PAGE_QUERY,
        "answer": page_of(GRANT),
        "problems": (400, 503),
    },
    "queues": {
        "method": "get",
        "path": "/queues",
        "summary": "The queues with their quotas, and what they use.",
        "query": PAGE_QUERY,
        "answer": page_of(QUEUE),
        "problems": (400, 503),
    },
    "jobs": {
        "method": "get",
        "path": "/jobs",
        "summary": "Elastic jobs, gangs and single pods: what waits first.",
        "query": PAGE_QUERY,
        "answer": page_of(JOB),
        "problems": (400, 503),
    },
    "job": {
        "method": "get",
        "path": _JOB_PATH,
        "summary": "One of them with its pods and events, read with your token.",
        "answer": DETAILS,
        "problems": _READS,
    },
    "log": {
        "method": "get",
        "path": "/pods/{namespace}/{pod}/log",
        "summary": "The last lines of a container's output, read with your token.",
        "query": {
            "container": OBJECT_NAME,
            "lines": {"type": "integer", "minimum": 1, "maximum": MOST_LINES, "default": 500},
        },
        "answer": LOG,
        "problems": _READS,
    },
    "request": {
        "method": "post",
        "path": f"{_JOB_PATH}/{{verb}}",
        "summary": "Suspend, resume or cancel an elastic job, or delete a pod (cancel).",
        "answer": CHANGED,
        "problems": _READS,
    },
    "scale": {
        "method": "put",
        "path": "/elasticjobs/{namespace}/{name}/workers",
        "summary": "Set how many workers an elastic job may have.",
        "body": SCALE,
        "answer": CHANGED,
        "problems": _WRITES,
    },
    "resize": {
        "method": "post",
        "path": "/pods/{namespace}/{pod}/resize",
        "summary": "Ask for other slices for a running pod, by its annotations.",
        "body": RESIZE,
        "answer": CHANGED,
        "problems": _WRITES,
    },
    "events": {
        "method": "get",
        "path": "/events",
        "summary": "Server-sent events: `machine` with `nodes`, `gpus` and `grants`, and `jobs`"
        " with `queues`; then `machine-delta` and `jobs-delta` with what changed.",
        "query": {},
        "media": "text/event-stream",
        "problems": (400, 503),
    },
    "openapi": {
        "method": "get",
        "path": "/openapi.json",
        "summary": "This document.",
        "answer": {"type": "object"},
    },
}

_PATHS = {
    "kind": KIND,
    "verb": VERB,
    "namespace": OBJECT_NAME,
    "name": OBJECT_NAME,
    "pod": OBJECT_NAME,
}
_SCHEMES = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "a token that the cluster's API server accepts",
    }
}


@cache
def document(base_path: str = "") -> dict[str, Any]:
    """The whole document."""
    about = "GPUs, queues and jobs of a cluster, as far as the holder of the token may see them."
    return make_document(
        OPERATIONS, about, base_path, paths=_PATHS, schemes=_SCHEMES, unsigned=("openapi",)
    )
