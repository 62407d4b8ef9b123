"""Jobs and waiting commands as the API shows them, from the rows of the pool's own API."""

from __future__ import annotations

import shlex
from fractions import Fraction
from typing import Any

from aliquot.pool.job_rows import shown_phase, sizes_text


def job_view(row: dict[str, Any]) -> dict[str, Any]:
    """A job; fields that this user may not see are null."""
    state, progress = row["state"], row["progress"] or {}
    stopping = state["stopping"]
    return {
        "number": row["number"],
        "name": row["name"],
        "kind": "job",
        "user": row["user"],
        "hidden": row["hidden"],
        "phase": str(shown_phase(row)),
        "reason": row["waiting"] or state["reason"],
        **_turn(row),
        "workers": len(state["slots"]),
        "next_workers": None if stopping is None else stopping["size"],
        "sizes": sizes_text(row["sizes"]),
        "queue": row["queue"],
        "command": None if row["command"] is None else shlex.join(row["command"]),
        "directory": row["directory"],
        "request": _request(row["request"]),
        "submitted": row["submitted"],
        "started": state["started"],
        "since": state["since"],
        "exit_code": row["exit_code"],
        "step": progress.get("step"),
        "samples_per_second": progress.get("samples_per_second"),
        "time_seconds": row["time_seconds"],
    }


def run_view(row: dict[str, Any]) -> dict[str, Any]:
    """A command of `aliquot run --wait` that waits, as a job without a number."""
    return {
        "number": None,
        "name": row["name"],
        "kind": "command",
        "user": row["user"],
        "hidden": row["hidden"],
        "phase": str(row["state"]["phase"]),
        "reason": row["waiting"],
        **_turn(row),
        "workers": 0,
        "next_workers": None,
        "sizes": "1",
        "queue": row["queue"],
        "command": row["program"],
        "directory": None,
        "request": _request(row["request"]),
        "submitted": row["submitted"],
        "started": None,
        "since": row["state"]["since"],
        "exit_code": None,
        "step": None,
        "samples_per_second": None,
        "time_seconds": None,
    }


def job_details(row: dict[str, Any]) -> dict[str, Any]:
    """A job with its history, workers and logs."""
    return {
        **job_view(row),
        "history": [
            {key: one[key] for key in ("at", "phase", "size", "reason")} for one in row["events"]
        ],
        "worker_list": [
            {key: one[key] for key in ("rank", "gpus", "grant", "pids")} for one in row["workers"]
        ],
        "ranks": [one["rank"] for one in row["logs"]],
    }


def _turn(row: dict[str, Any]) -> dict[str, Any]:
    turn = row["turn"] or {}
    return {
        "place": turn.get("place"),
        "of": turn.get("of"),
        "expected_start": turn.get("expected_start"),
    }


def _request(request: dict[str, Any]) -> dict[str, Any]:
    memory = request["memory"] or {}
    percent = memory.get("percent")
    return {
        "gpus": request["gpus"],
        "memory_bytes": memory.get("bytes"),
        "memory_percent": None if percent is None else float(Fraction(percent)),
        "compute_percent": request["compute_percent"] or None,
    }
