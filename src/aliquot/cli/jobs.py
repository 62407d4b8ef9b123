"""`aliquot jobs`, `describe`, `logs`, `suspend`, `resume` and `cancel`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from aliquot.cli.tables import NOTHING, console, new_table, print_json, print_text, rate
from aliquot.devices import parse_shape
from aliquot.model.errors import AliquotError, InvalidValueError
from aliquot.model.job import JobPhase
from aliquot.model.units import format_bytes
from aliquot.pool.client import NoPoolError, connect
from aliquot.pool.logs import KEPT_BYTES
from aliquot.pool.progress import pause_after_resize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.pool.client import PoolClient

_FOLLOW_SECONDS = 0.2


def show_jobs(simulate: str | None, *, with_finished: bool, json: bool) -> None:
    """Print the jobs as a table."""
    jobs = _client(simulate).jobs(with_finished=with_finished)
    if json:
        print_json({"jobs": jobs})
        return
    if not jobs:
        print_text(
            "No jobs.\n" if with_finished else "No unfinished jobs. All jobs: aliquot jobs --all\n"
        )
        return
    table = new_table("Job", "Phase", "Workers", "Queue", "Step", "Samples/s", "Age", "Reason")
    for job in jobs:
        table.add_row(*_row(job))
    console().print(table)


def describe(name: str, simulate: str | None, *, json: bool) -> None:
    """Print one job: its request, its phase and reason, its history."""
    job = _client(simulate).job(name)
    if json:
        print_json(job)
        return
    lines = {
        "Job": f"{job['name']} ({job['number']})",
        "Phase": f"{job['state']['phase']}, {_why(job)}",
        "Desired": job["state"]["desired"],
        "Command": " ".join(job["command"]),
        "Workers": f"{_workers(job)}; sizes {_sizes(job)}{', live' if job['live'] else ''}",
        "Each worker": _each(job["request"]),
        "Together": job["request"]["together"] or "only its own workers",
        "Queue": f"{job['queue']}, urgency {job['priority']}",
        "Retries": f"{job['state']['retries']} of {job['retries']} used",
        "Resizes": f"{job['state']['resizes']}{_redone(job['progress'])}",
        "Speeds": ", ".join(f"{n} workers: {s:g}/s" for n, s in job["speeds"].items()) or NOTHING,
    }
    width = max(map(len, lines)) + 2
    text = "".join(f"{key + ':':<{width}}{value}\n" for key, value in lines.items())
    events = (
        f"  {time.strftime('%F %T', time.localtime(one['at']))}  {one['phase']:<10}"
        f" {one['size'] or '':>4}  {one['reason']}\n"
        for one in job["events"]
    )
    print_text(f"{text}History:\n{''.join(events)}")


def show_log(name: str, simulate: str | None, rank: int, *, follow: bool) -> None:
    """Print a worker's output and how much of it was dropped. Following ends with the job."""
    client, start = _client(simulate), 0
    number = str(client.job(name)["number"])  # a later job may reuse the name
    while True:
        found = client.log(number, rank, start)
        if (cut := found.start - start) > 0:
            kept = format_bytes(KEPT_BYTES)
            note = f"{format_bytes(cut)} were dropped: the last {kept} of each worker are kept"
            sys.stderr.write(f"aliquot: {note}\n")
        start = found.start + len(found.content)
        sys.stdout.buffer.write(found.content)
        sys.stdout.buffer.flush()
        if not found.content and (not follow or found.phase.final):
            return
        if not found.content:
            time.sleep(_FOLLOW_SECONDS)


def request(names: Sequence[str], verb: str, simulate: str | None, *, every: bool = False) -> None:
    """Suspend, resume or cancel jobs. If one is refused, the others are still requested."""
    if bool(names) == every:
        raise InvalidValueError("name at least one job, or give --all")
    client, refused = _client(simulate), None
    for name in names or [str(job["number"]) for job in client.jobs(with_finished=False)]:
        try:
            client.request(name, verb)
        except NoPoolError:
            raise
        except AliquotError as error:
            if refused:
                sys.stderr.write(f"aliquot: {refused}\n")
            refused = error
    if refused:
        raise refused


def _client(simulate: str | None) -> PoolClient:
    return connect(parse_shape(simulate) if simulate else None)


def _row(job: dict[str, Any]) -> list[str]:
    progress = job["progress"]
    step = progress.get("step")
    return [
        job["name"],
        job["state"]["phase"],
        _workers(job),
        job["queue"],
        NOTHING if step is None else str(step),
        rate(progress.get("samples_per_second")),
        _age(time.time() - job["submitted"]),
        _why(job),
    ]


def _workers(job: dict[str, Any]) -> str:
    """The number of workers, and the sizes that the job can have."""
    stopping = job["state"]["stopping"]
    coming = f" → {stopping['size']}" if stopping and stopping["then"] == JobPhase.STARTING else ""
    return f"{len(job['state']['slots'])}{coming} ({_sizes(job)})"


def _sizes(job: dict[str, Any]) -> str:
    sizes = job["sizes"]
    if sizes == list(range(sizes[0], sizes[-1] + 1)):
        return f"{sizes[0]}..{sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
    return ",".join(map(str, sizes))


def _redone(progress: dict[str, Any]) -> str:
    """What restarts have cost; empty if nothing."""
    lost = progress.get("lost_seconds") or 0.0
    if not lost:
        return ""
    rest = _age(pause_after_resize(progress))
    return f"; one cost {_age(lost)} of work, so the job does not grow for {rest} after each"


def _each(request: dict[str, Any]) -> str:
    gpus = f"{request['gpus']} GPU{'s' if request['gpus'] > 1 else ''}"
    memory = request["memory"]
    if memory is None:
        return f"{gpus}, whole"
    amount = (
        f"{memory['percent']}%" if memory["percent"] else f"{memory['bytes'] / (1 << 30):g} GiB"
    )
    share = f"{request['compute_percent']}% of its time" if request["compute_percent"] else "equal"
    return f"{gpus}, {amount} of each, compute {share}"


def _why(job: dict[str, Any]) -> str:
    return str(job["waiting"] or job["state"]["reason"])


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
