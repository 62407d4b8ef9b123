"""The OpenAPI document of the console: also what requests are checked against (`schema`)."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from aliquot.console.problems import MEDIA_TYPE

Schema = dict[str, Any]

PREFIX = "/api/v1"
MOST_ITEMS = 500
VERBS = ("suspend", "resume", "cancel")

_WORDS = 200


def _text(description: str, most: int = _WORDS, **more: Any) -> Schema:
    return {"type": "string", "description": description, "maxLength": most, **more}


def _number(description: str, kind: str = "integer", **more: Any) -> Schema:
    return {"type": kind, "description": description, **more}


def _maybe(schema: Schema) -> Schema:
    """The same, or null: it is not known, or this user may not see it."""
    enum = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [schema["type"], "null"], **enum}


def _flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def _object(properties: dict[str, Schema], *optional: str) -> Schema:
    """An object; all properties are required but those that are named."""
    return {
        "type": "object",
        "properties": properties,
        "required": [one for one in properties if one not in optional],
        "additionalProperties": False,
    }


def _list(items: Schema, description: str = "") -> Schema:
    return {"type": "array", "items": items, "description": description}


_BYTES = "in bytes"
_TIME = _number("seconds since 1970", "number")
_POLICY = _text("what it gets beyond its share", enum=["elastic", "hard"])
_PRIORITY = _text("who comes first", enum=["latency", "normal", "background"])

TELEMETRY = _object(
    {
        "busy_ratio": _maybe(_number("how much of the time it computed, 0 to 1", "number")),
        "power_watts": _maybe(_number("power", "number")),
        "power_limit_watts": _maybe(_number("limit of its power", "number")),
        "celsius": _maybe(_number("temperature", "number")),
        "clock_mhz": _maybe(_number("clock", "number")),
    }
)
GPU = _object(
    {
        "index": _number("as in `aliquot gpus`"),
        "uuid": _text("the driver's name for it"),
        "model": _text("its model"),
        "memory_bytes": _number(f"its memory, {_BYTES}"),
        "used_bytes": _maybe(_number(f"what all programs use of it, {_BYTES}")),
        "granted_bytes": _number(f"what grants have of it, {_BYTES}"),
        "free_bytes": _number(f"what a new grant can have of it, {_BYTES}"),
        "free_percent": _number("compute time that no slice has asked for"),
        "healthy": _flag("the driver reports on it"),
        "contended": _flag("slices take turns on it"),
        "strength": _maybe(_number("100 for an A100", "number")),
        "context_bytes": _maybe(_number(f"what one CUDA context takes, {_BYTES}")),
        "telemetry": _maybe(TELEMETRY),
        "outside": _list(
            _object(
                {
                    "pid": _number("process"),
                    "name": _text("program", 4096),
                    "bytes": _maybe(_number("its memory")),
                }
            ),
            "processes that use it outside all grants",
        ),
    }
)
SLICE = _object(
    {
        "gpu_index": _maybe(_number("of its GPU")),
        "gpu": _text("UUID of its GPU"),
        "memory_bytes": _number(f"its limit, {_BYTES}"),
        "used_bytes": _number(f"what its programs use, {_BYTES}"),
        "compute_percent": _maybe(_number("its share; null: an equal part")),
        "weight_percent": _maybe(_number("its part, by the requests of all slices of the GPU")),
        "got_ratio": _maybe(_number("what it got since the last reading, 0 to 1", "number")),
        "policy": _POLICY,
        "priority": _PRIORITY,
        "turn": _text("where it is among the turns of its GPU"),
        "shares_work": _maybe(_flag("whether compute shares work; null: not tried yet")),
        "idle_seconds": _maybe(_number("since when it has no work", "number")),
        "wait_p99_seconds": _maybe(_number("how long work waits at most, of 99 %", "number")),
    }
)
GRANT = _object(
    {
        "name": _maybe(_text("name; null: another user's")),
        "id": _text("identifies it, also against a later grant of the same name", 400),
        "user": _text("its owner"),
        "own": _flag("it is this user's"),
        "hidden": _flag("it is another user's, of which only the slices are shown"),
        "state": _text("what its programs do"),
        "created": _TIME,
        "command": _maybe(_text("its command", 1 << 22)),
        "broken": _maybe(_text("why it is broken", 4096)),
        "swappable": _flag("its memory can leave the GPU"),
        "away_bytes": _maybe(_number(f"its memory on the host, {_BYTES}")),
        "parked_seconds": _maybe(_number("since when it is parked", "number")),
        "park_after_seconds": _maybe(_number("when it is parked, if it is idle", "number")),
        "parked_because": _maybe(_text("why it was not parked, or does not come back", 4096)),
        "slices": _list(SLICE),
        "processes": _list(
            _object(
                {
                    "pid": _number("process"),
                    "name": _text("program", 4096),
                    "stopped": _flag("a signal or a debugger has stopped it"),
                    "used_bytes": _number("its memory"),
                    "ungated": _maybe(_text("why its share is not held", 4096)),
                }
            )
        ),
    }
)
HISTORY = _object(
    {
        "step": _number("seconds between two points; where one is missing, nothing was measured"),
        "since": _TIME,
        "slices": _list(
            _object(
                {
                    "gpu": _text("UUID of its GPU"),
                    "times": _list(_TIME),
                    "used_bytes": _list(_maybe(_number("memory, the most in each step"))),
                    "part_bytes": _list(_maybe(_number("its limit; of a GPU: what is granted"))),
                    "got_ratio": _list(_maybe(_number("0 to 1, the mean of each step", "number"))),
                }
            )
        ),
    }
)
_PRICES = {
    "type": "object",
    "description": "what an hour of a GPU costs, by model",
    "additionalProperties": _number("in the currency that you think in", "number"),
}
WASTE = _object(
    {
        "items": _list(
            _object(
                {
                    "month": _text("YYYY-MM, in UTC", examples=["2026-11"]),
                    "user": _text("whose grants"),
                    "queue": _maybe(_text("of the job; null: of no job, or not known")),
                    "model": _text("of the GPU"),
                    "granted_hours": _number("GPU hours", "number"),
                    "idle_hours": _number("of these without work", "number"),
                    "unknown_hours": _number("of these not known", "number"),
                    "idle_cost": _maybe(_number("null: the model has no price", "number")),
                }
            )
        ),
        "prices": _PRICES,
        "problem": _maybe(_text("why nothing is recorded", 1 << 16)),
    }
)
PRICE = _object(
    {
        "model": _text("as GPUs have it", minLength=1),
        "per_hour": _maybe(_number("null: it has none", "number", minimum=0, maximum=1_000_000)),
    }
)
_REQUEST = _object(
    {
        "gpus": _number("GPUs of each worker"),
        "memory_bytes": _maybe(_number(f"of each GPU, {_BYTES}")),
        "memory_percent": _maybe(_number("of each GPU", "number")),
        "compute_percent": _maybe(_number("share; null: an equal part")),
    }
)
_JOB: dict[str, Schema] = {
    "number": _maybe(_number("its number; null: a command that waits")),
    "name": _maybe(_text("its name")),
    "kind": _text("a job, or a command of `aliquot run --wait`", enum=["job", "command"]),
    "user": _text("its owner"),
    "hidden": _flag("it is another user's, of which only the size is shown"),
    "phase": _text("as in `aliquot jobs`"),
    "reason": _maybe(_text("why it waits, or how it came to its phase", 1 << 16)),
    "place": _maybe(_number("its place among all that wait")),
    "of": _maybe(_number("how many wait")),
    "expected_start": _maybe(_TIME),
    "workers": _number("workers now"),
    "next_workers": _maybe(_number("workers after the resize that is under way")),
    "sizes": _text("numbers of workers that it can have", 1 << 16),
    "queue": _maybe(_text("its queue")),
    "command": _maybe(_text("its command", 1 << 22)),
    "directory": _maybe(_text("where it runs", 1 << 16)),
    "request": _REQUEST,
    "submitted": _TIME,
    "started": _maybe(_TIME),
    "since": _maybe(_TIME),
    "exit_code": _maybe(_number("null: not finished")),
    "step": _maybe(_number("as it reports", "number")),
    "samples_per_second": _maybe(_number("as it reports", "number")),
    "time_seconds": _maybe(_number("its time limit", "number")),
}
JOB = _object(_JOB)
JOB_DETAILS = _object(
    {
        **_JOB,
        "history": _list(
            _object(
                {
                    "at": _TIME,
                    "phase": _text("phase"),
                    "size": _number("workers"),
                    "reason": _text("why", 1 << 16),
                }
            )
        ),
        "worker_list": _list(
            _object(
                {
                    "rank": _number("rank"),
                    "gpus": _list(_maybe(_number("index"))),
                    "grant": _maybe(_text("its grant")),
                    "pids": _list(_number("process")),
                }
            )
        ),
        "ranks": _list(_number("a rank that has a log")),
    }
)
LOG = _object(
    {
        "start": _number("number of the first byte; larger than asked if some were dropped"),
        "end": _number("where to continue"),
        "text": _text("the output", 1 << 22),
        "phase": _maybe(_text("the job's phase before that was read")),
    }
)
MACHINE = _object(
    {
        "time": _TIME,
        "name": _text("the machine"),
        "simulated": _maybe(_text("its shape, if it is simulated")),
        "user": _text("whose rights the console has"),
        "arbiter_is_up": _flag("an arbiter answers"),
        "pool_is_up": _flag("a pool answers"),
        "driver_version": _maybe(_text("of the driver")),
        "notes": _list(_text("a sentence", 1 << 16), "what needs attention"),
    }
)
_CREDENTIAL = _text("name of a credential: token, or that of a session or a link")
PROVE = _object(
    {
        "name": _CREDENTIAL,
        "challenge": _text("16 random bytes, hexadecimal", pattern="^[0-9a-f]{32}$"),
    }
)
PROOF = _object(
    {
        "run": _text("identifies this run of the console"),
        "proof": _text(
            "HMAC-SHA256 by the credential's key of console:HOST, run and challenge, a line each"
        ),
    }
)
SESSION = _object(
    {
        "name": _CREDENTIAL,
        "key": _text("its key, which is never sent: it signs `page:HOST` and the run, a line each"),
        "expires": _TIME,
    }
)
_SETTINGS = _object(
    {
        "memory_bytes": _number(f"its limit, {_BYTES}"),
        "compute_percent": _maybe(_number("its share; null: an equal part")),
        "policy": _POLICY,
        "priority": _PRIORITY,
    }
)
_MEMORY = _text("as --memory: 8GiB, 50%", 40, examples=["8GiB"])
_COMPUTE = _text("as --compute: 30, or equal", 40, examples=["30", "equal"])
RESIZE = _object(
    {
        "memory": _MEMORY,
        "compute": _COMPUTE,
        "policy": _POLICY,
        "priority": _PRIORITY,
        "dry_run": _flag("only say what would change"),
    },
    "memory",
    "compute",
    "policy",
    "priority",
    "dry_run",
)
RESIZED = _object(
    {
        "slices": _list(
            _object(
                {
                    "gpu": _text("UUID of its GPU"),
                    "gpu_index": _number("of its GPU"),
                    "before": _SETTINGS,
                    "after": _SETTINGS,
                    "free_bytes": _number("memory of the GPU that stays free"),
                    "free_percent": _number("compute time that nobody has asked for then"),
                }
            )
        ),
        "command_line": _text("the command that does the same", 1 << 20),
    }
)
_SUBMISSION: dict[str, Schema] = {
    "command": _text("what each worker runs, split as a shell does", 1 << 16),
    "name": _text("its name"),
    "workers": _text("as --workers: 2, 1..4", 40, examples=["1", "1..4"]),
    "gpus": _number("GPUs of each worker", minimum=1, maximum=1024),
    "memory": _MEMORY,
    "compute": _COMPUTE,
    "policy": _POLICY,
    "priority": _PRIORITY,
    "queue": _text("its queue"),
    "time": _text("as --time: 2h", 40, examples=["2h"]),
    "retries": _number("as --retries", minimum=0, maximum=1_000_000),
    "swap": _flag("as --swap"),
    "directory": _text("where it runs; the console's home folder by default", 4096),
}
EXPLAIN = _object(_SUBMISSION, *_SUBMISSION)
SUBMIT = _object(_SUBMISSION, *(one for one in _SUBMISSION if one != "command"))
SUBMITTED = _object(
    {
        "number": _number("its number"),
        "name": _text("its name"),
        "command_line": _text("the command that does the same", 1 << 20),
    }
)
_CHANGED_LIMITS = {
    "type": "array",
    "description": "other limits than now",
    "maxItems": 64,
    "items": _object(
        {
            "name": _text("the user or the queue"),
            "gpus": _maybe(_number("null: none", "number", minimum=0, maximum=1_000_000)),
        }
    ),
}
_NUMBERS = {"type": "array", "maxItems": 64, "items": _number("number", minimum=0, maximum=1 << 31)}
_ASKED = ("memory", "compute", "gpus", "policy", "priority", "swap", "workers", "queue")
WHAT_IF = _object(
    {
        "add": _object({key: _SUBMISSION[key] for key in _ASKED}, *_ASKED),
        "without_gpus": {**_NUMBERS, "description": "GPUs that would be gone, by index"},
        "without_jobs": {**_NUMBERS, "description": "jobs that would be gone, by number"},
        "user_limits": _CHANGED_LIMITS,
        "queue_limits": _CHANGED_LIMITS,
        "queue_quotas": _CHANGED_LIMITS,
    },
    *("add", "without_gpus", "without_jobs", "user_limits", "queue_limits", "queue_quotas"),
)
_DOES = ["starts", "grows", "shrinks", "waits", "runs", "rests", "ends"]
OUTCOME = _object(
    {
        "does": _text("what it does now", enum=_DOES),
        "size": _number("workers"),
        "reason": _maybe(_text("why it waits", 1 << 16)),
        "place": _number("its place among all that wait"),
        "of": _number("how many wait"),
        "expected_start": _maybe(_TIME),
        "gpus": _list(_number("index"), "the GPUs of its workers"),
    },
    *("size", "reason", "place", "of", "expected_start", "gpus"),
)
WHAT_WOULD = _object(
    {
        "asked": _maybe(OUTCOME),
        "jobs": _list(
            _object(
                {
                    "number": _number("its number"),
                    "name": _maybe(_text("its name; null: another user's")),
                    "user": _text("its owner"),
                    "queue": _maybe(_text("its queue; null: another user's")),
                    "before": _maybe(OUTCOME),
                    "after": _maybe(OUTCOME),
                }
            )
        ),
        "commands": _list(
            _object(
                {
                    "user": _text("its owner"),
                    "name": _maybe(_text("its name; null: another user's")),
                    "before": _maybe(OUTCOME),
                    "after": _maybe(OUTCOME),
                }
            ),
            "commands of `aliquot run --wait` that wait",
        ),
        "ended_grants": _list(_text("a name"), "this user's commands that would lose their GPU"),
        "gpus": _list(
            _object(
                {
                    "uuid": _text("UUID"),
                    "index": _number("index"),
                    "granted_bytes": _maybe(_number("without what starts; null: it is gone")),
                }
            )
        ),
    }
)
EXPLAINED = _object(
    {
        "fits": _flag("it would start now"),
        "error": _maybe(_text("why not", 1 << 20)),
        "hint": _maybe(_text("a way out", 1 << 16)),
        "waiting": _maybe(
            _object(
                {
                    "reason": _maybe(_text("what it would wait for", 1 << 16)),
                    "place": _number("its place among all that wait"),
                    "of": _number("how many would wait"),
                    "expected_start": _maybe(_TIME),
                }
            )
        ),
        "slices": _list(
            _object(
                {
                    "gpu": _text("UUID"),
                    "index": _number("GPU"),
                    "memory_bytes": _number("limit"),
                    "compute_percent": _maybe(_number("share")),
                }
            ),
            "where one worker would go",
        ),
        "gpus": _list(
            _object(
                {
                    "index": _number("GPU"),
                    "uuid": _text("UUID"),
                    "name": _text("model"),
                    "memory_bytes": _number("memory"),
                    "free_bytes": _number("free memory"),
                    "free_percent": _number("free compute time"),
                    "fits": _flag("it fits there"),
                    "why": _text("what speaks for or against it", 1 << 16),
                }
            )
        ),
        "command_line": _text("the command that does the same", 1 << 20),
    }
)
CHANGED = _object({"message": _text("what that does", 1 << 16), "phase": _text("its phase now")})
PROBLEM = _object(
    {
        "type": _text("the sort of problem"),
        "title": _text("the status in words"),
        "status": _number("the status"),
        "detail": _text("what is wrong", 1 << 20),
        "hint": _maybe(_text("a way out", 1 << 16)),
    }
)


def _page(items: Schema) -> Schema:
    return _object(
        {"items": _list(items), "next": _maybe(_text("`after` of the next page; null: the last"))}
    )


INDEX = {"type": "integer", "minimum": 0, "maximum": 1 << 20}
_SPAN = {"type": "string", "enum": ["day", "month"]}
LIMIT = {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS, "default": 100}
_NAME = {"type": "string", "minLength": 1, "maxLength": _WORDS}
_BIG = {"type": "integer", "minimum": 0, "maximum": 1 << 53}
_PAGE_QUERY = {"limit": LIMIT, "after": {"type": "string", "maxLength": _WORDS}}

# operation: method, path, summary, query, body, answer's status and schema, statuses of problems
OPERATIONS: dict[str, dict[str, Any]] = {
    "proof": {
        "method": "post",
        "path": "/proof",
        "summary": "Let the console prove that it is the one that knows this credential's key.",
        "body": PROVE,
        "answer": PROOF,
        "problems": (400, 401, 413),
    },
    "sign_in": {
        "method": "post",
        "path": "/session",
        "summary": "Begin a session, with the token or the credential of a link.",
        "answer": SESSION,
    },
    "session": {
        "method": "get",
        "path": "/session",
        "summary": "The kind of credential of this request.",
        "answer": _object({"kind": _text("kind", enum=["token", "session"])}),
    },
    "sign_out": {
        "method": "delete",
        "path": "/session",
        "summary": "End the session.",
        "status": 204,
    },
    "machine": {
        "method": "get",
        "path": "/machine",
        "summary": "The machine, and what needs attention.",
        "answer": MACHINE,
    },
    "gpus": {
        "method": "get",
        "path": "/gpus",
        "summary": "The GPUs, by index.",
        "query": _PAGE_QUERY,
        "answer": _page(GPU),
    },
    "grants": {
        "method": "get",
        "path": "/grants",
        "summary": "The grants with their slices, oldest first.",
        "query": _PAGE_QUERY,
        "answer": _page(GRANT),
    },
    "grant": {
        "method": "get",
        "path": "/grants/{name}",
        "summary": "One grant.",
        "answer": GRANT,
        "problems": (400, 404),
    },
    "history": {
        "method": "get",
        "path": "/grants/{name}/history",
        "summary": "What its slices used and got: in the last ten minutes, a day, or a month.",
        "query": {"span": _SPAN},
        "answer": HISTORY,
        "problems": (400, 404, 503),
    },
    "gpu_history": {
        "method": "get",
        "path": "/gpus/{index}/history",
        "summary": "What a GPU used in a day or a month.",
        "query": {"span": {**_SPAN, "default": "day"}},
        "answer": HISTORY,
        "problems": (400, 404, 503),
    },
    "history_csv": {
        "method": "get",
        "path": "/history.csv",
        "summary": "All points of GPUs or slices, as CSV.",
        "query": {
            "kind": {"type": "string", "enum": ["gpu", "slice"], "default": "slice"},
            "span": {**_SPAN, "default": "day"},
        },
        "media": "text/csv",
    },
    "waste": {
        "method": "get",
        "path": "/waste",
        "summary": "GPU hours that were granted and idle, by month, user, queue and model.",
        "query": {},
        "answer": WASTE,
    },
    "waste_csv": {
        "method": "get",
        "path": "/waste.csv",
        "summary": "The same as CSV.",
        "query": {},
        "media": "text/csv",
    },
    "price": {
        "method": "put",
        "path": "/prices",
        "summary": "Set what an hour of a model of GPU costs, or remove it.",
        "body": PRICE,
        "answer": _object({"prices": _PRICES}),
        "problems": (400, 413, 503),
    },
    "jobs": {
        "method": "get",
        "path": "/jobs",
        "summary": "The jobs, newest first; before them on the first page commands that wait.",
        "query": {
            **_PAGE_QUERY,
            "which": {"type": "string", "enum": ["unfinished", "all"], "default": "unfinished"},
        },
        "answer": _page(JOB),
        "problems": (400, 503),
    },
    "job": {
        "method": "get",
        "path": "/jobs/{job}",
        "summary": "One job, by name or number, with its history, workers and logs.",
        "answer": JOB_DETAILS,
        "problems": (400, 403, 404, 503),
    },
    "log": {
        "method": "get",
        "path": "/jobs/{job}/log",
        "summary": "The output of a worker from a byte on, or its last lines. To follow it, ask"
        " again from `end` on.",
        "query": {
            "rank": {**_BIG, "maximum": 1 << 20},
            "from": _BIG,
            "tail": {**_BIG, "maximum": 100_000},
        },
        "answer": LOG,
        "problems": (400, 403, 404, 409, 503),
    },
    "resize": {
        "method": "post",
        "path": "/grants/{name}/resize",
        "summary": "Change all slices of a grant while its programs run, or say the effect.",
        "body": RESIZE,
        "answer": RESIZED,
        "problems": (400, 404, 409, 413, 503),
    },
    "request": {
        "method": "post",
        "path": "/jobs/{job}/{verb}",
        "summary": "Suspend, resume or cancel a job: `verb`.",
        "answer": CHANGED,
        "problems": (400, 403, 404, 409, 503),
    },
    "explain": {
        "method": "post",
        "path": "/explain",
        "summary": "Where one worker of a job would go now, or what it would wait for.",
        "body": EXPLAIN,
        "answer": EXPLAINED,
        "problems": (400, 409, 413, 503),
    },
    "what_if": {
        "method": "post",
        "path": "/what-if",
        "summary": "What the pool would decide now if something were different.",
        "body": WHAT_IF,
        "answer": WHAT_WOULD,
        "problems": (400, 403, 404, 409, 413, 503),
    },
    "submit": {
        "method": "post",
        "path": "/jobs",
        "summary": "Submit a job, with the environment of the console.",
        "status": 201,
        "body": SUBMIT,
        "answer": SUBMITTED,
        "problems": (400, 403, 409, 413, 503),
    },
    "events": {
        "method": "get",
        "path": "/events",
        "summary": "Server-sent events: `machine` with `gpus` and `grants`, and `jobs`; then once"
        " a second `machine-delta` and `jobs-delta` with what changed.",
        "query": {},
        "media": "text/event-stream",
    },
    "openapi": {
        "method": "get",
        "path": "/openapi.json",
        "summary": "This document.",
        "answer": {"type": "object"},
    },
}


@cache
def document(base_path: str = "") -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, Any] = {}
    for name, operation in OPERATIONS.items():
        paths.setdefault(operation["path"], {})[operation["method"]] = _operation(name, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Aliquot console",
            "version": version("aliquot"),
            "description": "GPUs, grants and jobs of one machine, with the rights of the user who"
            " runs the console.",
        },
        "servers": [{"url": f"{base_path}{PREFIX}"}],
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-Aliquot-Key",
                    "description": "NAME SIGNATURE, as a page makes it from `/proof`",
                },
            },
            "schemas": {"Problem": PROBLEM},
        },
    }


def _operation(name: str, operation: dict[str, Any]) -> dict[str, Any]:
    status = operation.get("status", 200)
    found: dict[str, Any] = {
        "operationId": name,
        "summary": operation["summary"],
        "parameters": [*_path_parameters(operation), *_query_parameters(operation)],
        "responses": {str(status): _answer(operation, status)},
    }
    if "body" in operation:
        content = {"application/json": {"schema": operation["body"]}}
        found["requestBody"] = {"required": True, "content": content}
    if name in {"proof", "openapi"}:
        found["security"] = []
    default = (400,) if "query" in operation else ()
    own = {*operation.get("problems", default), *((408,) if "body" in operation else ())}
    for problem in sorted({*own, 403, 421, *(() if name == "openapi" else (401,))}):
        found["responses"][str(problem)] = {
            "description": HTTPStatus(problem).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return found


def _answer(operation: dict[str, Any], status: int) -> dict[str, Any]:
    found: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if "answer" in operation:
        found["content"] = {"application/json": {"schema": operation["answer"]}}
    elif "media" in operation:
        found["content"] = {operation["media"]: {"schema": {"type": "string"}}}
    return found


def _path_parameters(operation: dict[str, Any]) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in operation["path"].split("/") if part.startswith("{")]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": INDEX
            if name == "index"
            else {**_NAME, "enum": list(VERBS)}
            if name == "verb"
            else _NAME,
        }
        for name in names
    ]


def _query_parameters(operation: dict[str, Any]) -> list[dict[str, Any]]:
    query = operation.get("query", {})
    return [{"name": name, "in": "query", "schema": schema} for name, schema in query.items()]
