"""What requests to the console of one machine, and its answers, look like: its OpenAPI document.

Requests are checked against it (`schema`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from aliquot.console.openapi_document import make_document
from aliquot.console.shapes import (
    BYTES,
    INDEX,
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

VERBS = ("suspend", "resume", "cancel")

TELEMETRY = record(
    {
        "busy_ratio": maybe(number("how much of the time it computed, 0 to 1", "number")),
        "power_watts": maybe(number("power", "number")),
        "power_limit_watts": maybe(number("limit of its power", "number")),
        "celsius": maybe(number("temperature", "number")),
        "clock_mhz": maybe(number("clock", "number")),
    }
)
GPU = record(
    {
        "index": number("as in `aliquot gpus`"),
        "uuid": text("the driver's name for it"),
        "model": text("its model"),
        "memory_bytes": number(f"its memory, {BYTES}"),
        "used_bytes": maybe(number(f"what all programs use of it, {BYTES}")),
        "granted_bytes": number(f"what grants have of it, {BYTES}"),
        "free_bytes": number(f"what a new grant can have of it, {BYTES}"),
        "free_percent": number("compute time that no slice has asked for"),
        "healthy": flag("the driver reports on it"),
        "contended": flag("slices take turns on it"),
        "strength": maybe(number("100 for an A100", "number")),
        "context_bytes": maybe(number(f"what one CUDA context takes, {BYTES}")),
        "telemetry": maybe(TELEMETRY),
        "outside": array(
            record(
                {
                    "pid": number("process"),
                    "name": text("program", 4096),
                    "bytes": maybe(number("its memory")),
                }
            ),
            "processes that use it outside all grants",
        ),
    }
)
SLICE = record(
    {
        "gpu_index": maybe(number("of its GPU")),
        "gpu": text("UUID of its GPU"),
        "memory_bytes": number(f"its limit, {BYTES}"),
        "used_bytes": number(f"what its programs use, {BYTES}"),
        "compute_percent": maybe(number("its share; null: an equal part")),
        "weight_percent": maybe(number("its part, by the requests of all slices of the GPU")),
        "got_ratio": maybe(number("what it got since the last reading, 0 to 1", "number")),
        "policy": POLICY,
        "priority": PRIORITY,
        "turn": text("where it is among the turns of its GPU"),
        "shares_work": maybe(flag("whether compute shares work; null: not tried yet")),
        "idle_seconds": maybe(number("since when it has no work", "number")),
        "wait_p99_seconds": maybe(number("how long work waits at most, of 99 %", "number")),
    }
)
GRANT = record(
    {
        "name": maybe(text("name; null: another user's")),
        "id": text("identifies it, also against a later grant of the same name", 400),
        "user": text("its owner"),
        "own": flag("it is this user's"),
        "hidden": flag("it is another user's, of which only the slices are shown"),
        "state": text("what its programs do"),
        "created": TIME,
        "command": maybe(text("its command", 1 << 22)),
        "broken": maybe(text("why it is broken", 4096)),
        "swappable": flag("its memory can leave the GPU"),
        "away_bytes": maybe(number(f"its memory on the host, {BYTES}")),
        "parked_seconds": maybe(number("since when it is parked", "number")),
        "park_after_seconds": maybe(number("when it is parked, if it is idle", "number")),
        "parked_because": maybe(text("why it was not parked, or does not come back", 4096)),
        "slices": array(SLICE),
        "processes": array(
            record(
                {
                    "pid": number("process"),
                    "name": text("program", 4096),
                    "stopped": flag("a signal or a debugger has stopped it"),
                    "used_bytes": number("its memory"),
                    "ungated": maybe(text("why its share is not held", 4096)),
                }
            )
        ),
    }
)
HISTORY = record(
    {
        "step": number("seconds between two points; where one is missing, nothing was measured"),
        "since": TIME,
        "slices": array(
            record(
                {
                    "gpu": text("UUID of its GPU"),
                    "times": array(TIME),
                    "used_bytes": array(maybe(number("memory, the most in each step"))),
                    "part_bytes": array(maybe(number("its limit; of a GPU: what is granted"))),
                    "got_ratio": array(maybe(number("0 to 1, the mean of each step", "number"))),
                }
            )
        ),
    }
)
_PRICES = {
    "type": "object",
    "description": "what an hour of a GPU costs, by model",
    "additionalProperties": number("in the currency that you think in", "number"),
}
WASTE = record(
    {
        "items": array(
            record(
                {
                    "month": text("YYYY-MM, in UTC", examples=["2026-11"]),
                    "user": text("whose grants"),
                    "queue": maybe(text("of the job; null: of no job, or not known")),
                    "model": text("of the GPU"),
                    "granted_hours": number("GPU hours", "number"),
                    "idle_hours": number("of these without work", "number"),
                    "unknown_hours": number("of these not known", "number"),
                    "idle_cost": maybe(number("null: the model has no price", "number")),
                }
            )
        ),
        "prices": _PRICES,
        "problem": maybe(text("why nothing is recorded", 1 << 16)),
    }
)
PRICE = record(
    {
        "model": text("as GPUs have it", minLength=1),
        "per_hour": maybe(number("null: it has none", "number", minimum=0, maximum=1_000_000)),
    }
)
_REQUEST = record(
    {
        "gpus": number("GPUs of each worker"),
        "memory_bytes": maybe(number(f"of each GPU, {BYTES}")),
        "memory_percent": maybe(number("of each GPU", "number")),
        "compute_percent": maybe(number("share; null: an equal part")),
    }
)
_JOB: dict[str, Schema] = {
    "number": maybe(number("its number; null: a command that waits")),
    "name": maybe(text("its name")),
    "kind": text("a job, or a command of `aliquot run --wait`", enum=["job", "command"]),
    "user": text("its owner"),
    "hidden": flag("it is another user's, of which only the size is shown"),
    "phase": text("as in `aliquot jobs`"),
    "reason": maybe(text("why it waits, or how it came to its phase", 1 << 16)),
    "place": maybe(number("its place among all that wait")),
    "of": maybe(number("how many wait")),
    "expected_start": maybe(TIME),
    "workers": number("workers now"),
    "next_workers": maybe(number("workers after the resize that is under way")),
    "sizes": text("numbers of workers that it can have", 1 << 16),
    "queue": maybe(text("its queue")),
    "command": maybe(text("its command", 1 << 22)),
    "directory": maybe(text("where it runs", 1 << 16)),
    "request": _REQUEST,
    "submitted": TIME,
    "started": maybe(TIME),
    "since": maybe(TIME),
    "exit_code": maybe(number("null: not finished")),
    "step": maybe(number("as it reports", "number")),
    "samples_per_second": maybe(number("as it reports", "number")),
    "time_seconds": maybe(number("its time limit", "number")),
}
JOB = record(_JOB)
JOB_DETAILS = record(
    {
        **_JOB,
        "history": array(
            record(
                {
                    "at": TIME,
                    "phase": text("phase"),
                    "size": number("workers"),
                    "reason": text("why", 1 << 16),
                }
            )
        ),
        "worker_list": array(
            record(
                {
                    "rank": number("rank"),
                    "gpus": array(maybe(number("index"))),
                    "grant": maybe(text("its grant")),
                    "pids": array(number("process")),
                }
            )
        ),
        "ranks": array(number("a rank that has a log")),
    }
)
LOG = record(
    {
        "start": number("number of the first byte; larger than asked if some were dropped"),
        "end": number("where to continue"),
        "text": text("the output", 1 << 22),
        "phase": maybe(text("the job's phase before that was read")),
    }
)
MACHINE = record(
    {
        "time": TIME,
        "name": text("the machine"),
        "simulated": maybe(text("its shape, if it is simulated")),
        "user": text("whose rights the console has"),
        "arbiter_is_up": flag("an arbiter answers"),
        "pool_is_up": flag("a pool answers"),
        "driver_version": maybe(text("of the driver")),
        "notes": array(text("a sentence", 1 << 16), "what needs attention"),
    }
)
_CREDENTIAL = text("name of a credential: token, or that of a session or a link")
PROVE = record(
    {
        "name": _CREDENTIAL,
        "challenge": text("16 random bytes, hexadecimal", pattern="^[0-9a-f]{32}$"),
    }
)
PROOF = record(
    {
        "run": text("identifies this run of the console"),
        "proof": text(
            "HMAC-SHA256 by the credential's key of console:HOST, run and challenge, a line each"
        ),
    }
)
SESSION = record(
    {
        "name": _CREDENTIAL,
        "key": text("its key, which is never sent: it signs `page:HOST` and the run, a line each"),
        "expires": TIME,
    }
)
_SETTINGS = record(
    {
        "memory_bytes": number(f"its limit, {BYTES}"),
        "compute_percent": maybe(number("its share; null: an equal part")),
        "policy": POLICY,
        "priority": PRIORITY,
    }
)
_MEMORY = text("as --memory: 8GiB, 50%", 40, examples=["8GiB"])
_COMPUTE = text("as --compute: 30, or equal", 40, examples=["30", "equal"])
RESIZE = record(
    {
        "memory": _MEMORY,
        "compute": _COMPUTE,
        "policy": POLICY,
        "priority": PRIORITY,
        "dry_run": flag("only say what would change"),
    },
    "memory",
    "compute",
    "policy",
    "priority",
    "dry_run",
)
RESIZED = record(
    {
        "slices": array(
            record(
                {
                    "gpu": text("UUID of its GPU"),
                    "gpu_index": number("of its GPU"),
                    "before": _SETTINGS,
                    "after": _SETTINGS,
                    "free_bytes": number("memory of the GPU that stays free"),
                    "free_percent": number("compute time that nobody has asked for then"),
                }
            )
        ),
        "command_line": text("the command that does the same", 1 << 20),
    }
)
_SUBMISSION: dict[str, Schema] = {
    "command": text("what each worker runs, split as a shell does", 1 << 16),
    "name": text("its name"),
    "workers": text("as --workers: 2, 1..4", 40, examples=["1", "1..4"]),
    "gpus": number("GPUs of each worker", minimum=1, maximum=1024),
    "memory": _MEMORY,
    "compute": _COMPUTE,
    "policy": POLICY,
    "priority": PRIORITY,
    "queue": text("its queue"),
    "time": text("as --time: 2h", 40, examples=["2h"]),
    "retries": number("as --retries", minimum=0, maximum=1_000_000),
    "swap": flag("as --swap"),
    "directory": text("where it runs; the console's home folder by default", 4096),
}
EXPLAIN = record(_SUBMISSION, *_SUBMISSION)
SUBMIT = record(_SUBMISSION, *(one for one in _SUBMISSION if one != "command"))
SUBMITTED = record(
    {
        "number": number("its number"),
        "name": text("its name"),
        "command_line": text("the command that does the same", 1 << 20),
    }
)
_CHANGED_LIMITS = {
    "type": "array",
    "description": "other limits than now",
    "maxItems": 64,
    "items": record(
        {
            "name": text("the user or the queue"),
            "gpus": maybe(number("null: none", "number", minimum=0, maximum=1_000_000)),
        }
    ),
}
_NUMBERS = {"type": "array", "maxItems": 64, "items": number("number", minimum=0, maximum=1 << 31)}
_ASKED = ("memory", "compute", "gpus", "policy", "priority", "swap", "workers", "queue")
WHAT_IF = record(
    {
        "add": record({key: _SUBMISSION[key] for key in _ASKED}, *_ASKED),
        "without_gpus": {**_NUMBERS, "description": "GPUs that would be gone, by index"},
        "without_jobs": {**_NUMBERS, "description": "jobs that would be gone, by number"},
        "user_limits": _CHANGED_LIMITS,
        "queue_limits": _CHANGED_LIMITS,
        "queue_quotas": _CHANGED_LIMITS,
    },
    *("add", "without_gpus", "without_jobs", "user_limits", "queue_limits", "queue_quotas"),
)
_DOES = ["starts", "grows", "shrinks", "waits", "runs", "rests", "ends"]
OUTCOME = record(
    {
        "does": text("what it does now", enum=_DOES),
        "size": number("workers"),
        "reason": maybe(text("why it waits", 1 << 16)),
        "place": number("its place among all that wait"),
        "of": number("how many wait"),
        "expected_start": maybe(TIME),
        "gpus": array(number("index"), "the GPUs of its workers"),
    },
    *("size", "reason", "place", "of", "expected_start", "gpus"),
)
WHAT_WOULD = record(
    {
        "asked": maybe(OUTCOME),
        "jobs": array(
            record(
                {
                    "number": number("its number"),
                    "name": maybe(text("its name; null: another user's")),
                    "user": text("its owner"),
                    "queue": maybe(text("its queue; null: another user's")),
                    "before": maybe(OUTCOME),
                    "after": maybe(OUTCOME),
                }
            )
        ),
        "commands": array(
            record(
                {
                    "user": text("its owner"),
                    "name": maybe(text("its name; null: another user's")),
                    "before": maybe(OUTCOME),
                    "after": maybe(OUTCOME),
                }
            ),
            "commands of `aliquot run --wait` that wait",
        ),
        "ended_grants": array(text("a name"), "this user's commands that would lose their GPU"),
        "gpus": array(
            record(
                {
                    "uuid": text("UUID"),
                    "index": number("index"),
                    "granted_bytes": maybe(number("without what starts; null: it is gone")),
                }
            )
        ),
    }
)
EXPLAINED = record(
    {
        "fits": flag("it would start now"),
        "error": maybe(text("why not", 1 << 20)),
        "hint": maybe(text("a way out", 1 << 16)),
        "waiting": maybe(
            record(
                {
                    "reason": maybe(text("what it would wait for", 1 << 16)),
                    "place": number("its place among all that wait"),
                    "of": number("how many would wait"),
                    "expected_start": maybe(TIME),
                }
            )
        ),
        "slices": array(
            record(
                {
                    "gpu": text("UUID"),
                    "index": number("GPU"),
                    "memory_bytes": number("limit"),
                    "compute_percent": maybe(number("share")),
                }
            ),
            "where one worker would go",
        ),
        "gpus": array(
            record(
                {
                    "index": number("GPU"),
                    "uuid": text("UUID"),
                    "name": text("model"),
                    "memory_bytes": number("memory"),
                    "free_bytes": number("free memory"),
                    "free_percent": number("free compute time"),
                    "fits": flag("it fits there"),
                    "why": text("what speaks for or against it", 1 << 16),
                }
            )
        ),
        "command_line": text("the command that does the same", 1 << 20),
    }
)
CHANGED = record({"message": text("what that does", 1 << 16), "phase": text("its phase now")})

_SPAN = {"type": "string", "enum": ["day", "month"]}
_BIG = {"type": "integer", "minimum": 0, "maximum": 1 << 53}

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
        "answer": record({"kind": text("kind", enum=["token", "session"])}),
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
        "query": PAGE_QUERY,
        "answer": page_of(GPU),
    },
    "grants": {
        "method": "get",
        "path": "/grants",
        "summary": "The grants with their slices, oldest first.",
        "query": PAGE_QUERY,
        "answer": page_of(GRANT),
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
        "answer": record({"prices": _PRICES}),
        "problems": (400, 413, 503),
    },
    "jobs": {
        "method": "get",
        "path": "/jobs",
        "summary": "The jobs, newest first; before them on the first page commands that wait.",
        "query": {
            **PAGE_QUERY,
            "which": {"type": "string", "enum": ["unfinished", "all"], "default": "unfinished"},
        },
        "answer": page_of(JOB),
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


_PATHS = {"index": INDEX, "verb": {**NAME, "enum": list(VERBS)}}
_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer"},
    "session": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Aliquot-Key",
        "description": "NAME SIGNATURE, as a page makes it from `/proof`",
    },
}


@cache
def document(base_path: str = "") -> dict[str, Any]:
    """The whole document."""
    about = "GPUs, grants and jobs of one machine, with the rights of the console's user."
    return make_document(
        OPERATIONS, about, base_path, paths=_PATHS, schemes=_SCHEMES, unsigned=("proof", "openapi")
    )
