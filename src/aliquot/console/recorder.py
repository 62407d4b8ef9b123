"""What the history store keeps of each reading of a machine, and what pages ask of it."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Any

from aliquot.console.history_store import (
    COARSE_STEP,
    DAY,
    MONTH,
    STEP,
    HistoryStore,
    KeptShare,
    SeriesReading,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SPANS = {"day": (DAY, STEP, False), "month": (MONTH, COARSE_STEP, True)}

_WORKER = re.compile(r"\.(\d+)\.\d+\.\d+$")  # of the name of a worker's grant: its job's number


def samples_of(view: Mapping[str, Any]) -> Iterator[SeriesReading]:
    """The GPUs, and the slices whose names this user may see."""
    for gpu in view["gpus"]:
        busy = None if gpu["telemetry"] is None else gpu["telemetry"]["busy_ratio"]
        granted = gpu["granted_bytes"]
        yield SeriesReading("gpu", gpu["uuid"], gpu["uuid"], gpu["used_bytes"], granted, busy)
    for grant in view["grants"]:
        for part in [] if grant["hidden"] else grant["slices"]:
            yield SeriesReading(
                "slice",
                grant["id"],
                part["gpu"],
                part["used_bytes"],
                part["memory_bytes"],
                part["got_ratio"],
            )


def uses_of(view: Mapping[str, Any], jobs: Mapping[str, Any]) -> Iterator[KeptShare]:
    """What each slice keeps of its GPU: its part of the memory or of the time, which is more."""
    gpus = {gpu["uuid"]: gpu for gpu in view["gpus"]}
    queues = {f"{job['name']}.{job['number']}": job["queue"] for job in jobs.get("items", ())}
    for grant in view["grants"]:
        if grant["state"] == "parked":
            continue
        queue = _queue_of(grant["name"], queues)
        for part in grant["slices"]:
            gpu = gpus.get(part["gpu"])
            if gpu is None or not gpu["memory_bytes"]:
                continue
            share = part["memory_bytes"] / gpu["memory_bytes"]
            most = min(1.0, max(share, (part["compute_percent"] or 0) / 100))
            yield KeptShare(grant["user"], queue, gpu["model"], most, part["got_ratio"])


def _queue_of(name: str | None, queues: Mapping[str, str | None]) -> str | None:
    """The queue of the job whose worker has this grant; None: it is no worker of a known job."""
    found = None if name is None else _WORKER.search(name)
    if name is None or found is None:
        return None
    whole = name[: found.start()] + f".{found[1]}"
    return next((queue for job, queue in queues.items() if whole.endswith(job)), None)


def gpu_history(store: HistoryStore, uuid: str, span: str, now: float) -> dict[str, Any]:
    """What a GPU used, had granted, and how busy it was."""
    seconds, step, coarse = SPANS[span]
    points = store.points("gpu", uuid, uuid, now - seconds, coarse=coarse)
    return {"step": step, "since": now - seconds, "slices": [_columns(uuid, points, now)]}


def slice_history(store: HistoryStore, grant: str, span: str, now: float) -> dict[str, Any]:
    """What the slices of a grant used and got, also after its end."""
    seconds, step, coarse = SPANS[span]
    return {
        "step": step,
        "since": now - seconds,
        "slices": [
            _columns(gpu, store.points("slice", grant, gpu, now - seconds, coarse=coarse), now)
            for gpu in store.gpus_of(grant)
        ],
    }


def _columns(gpu: str, points: list[dict[str, Any]], now: float) -> dict[str, Any]:
    known = [one for one in points if one["at"] <= now]  # the clock may have been wrong once
    return {
        "gpu": gpu,
        "times": [one["at"] for one in known],
        "used_bytes": [one["used_bytes"] for one in known],
        "part_bytes": [one["part_bytes"] for one in known],
        "got_ratio": [one["got_ratio"] for one in known],
    }


def history_csv(store: HistoryStore, kind: str, span: str, now: float) -> Iterator[str]:
    """All points of GPUs or of slices, as lines of CSV; what is not known is empty."""
    names = ("time", "name", "gpu", "used_bytes", "granted_bytes", "compute_ratio")
    yield _line(names)
    seconds, _, coarse = SPANS[span]
    for one in store.rows(kind, now - seconds, coarse=coarse):
        if one["at"] <= now:
            name = one["name"].rpartition("@")[0] if kind == "slice" else one["name"]
            figures = (one["used_bytes"], one["part_bytes"], one["got_ratio"])
            yield _line((one["at"], name, one["gpu"], *figures))


def waste_view(store: HistoryStore) -> dict[str, Any]:
    """GPU hours that were granted, and those of them that were idle, by month, user and queue."""
    prices, rows = store.prices(), []
    for row in store.hours():
        price = prices.get(row["model"])
        hours = {f"{name}_hours": round(row[name], 4) for name in ("granted", "idle", "unknown")}
        cost = None if price is None else round(row["idle"] * price, 2)
        names = {name: row[name] for name in ("month", "user", "queue", "model")}
        rows.append({**names, **hours, "idle_cost": cost})
    return {"items": rows, "prices": prices, "problem": store.problem}


def waste_csv(store: HistoryStore) -> Iterator[str]:
    """The same as CSV."""
    names = ("month", "user", "queue", "model")
    figures = ("granted_hours", "idle_hours", "unknown_hours", "idle_cost")
    yield _line((*names, *figures))
    for row in waste_view(store)["items"]:
        yield _line([row[one] for one in (*names, *figures)])


def _line(values: Any) -> str:
    """A line of CSV. A text that a spreadsheet would compute is told to be a text."""
    out = io.StringIO()
    csv.writer(out).writerow([_as_text(one) for one in values])
    return out.getvalue()


def _as_text(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value
