"""`aliquot jobs`, `describe`, `logs`, `suspend`, `resume` and `cancel`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from aliquot.cli.tables import NOTHING, console, new_table, print_json, print_text, rate
from aliquot.devices import parse_shape
from aliquot.model.errors import AliquotError, InvalidValueError
from aliquot.model.job import State
from aliquot.model.units import format_bytes
from aliquot.pool.client import NoPoolError, connect
from aliquot.pool.logs import KEPT_BYTES
from aliquot.pool.progress import rest_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.pool.client import Client

_FOLLOW_SECONDS = 0.2


def show_jobs(simulate: str | None, *, with_old: bool, json: bool) -> None:
    """All jobs in a table."""
    jobs = _client(simulate).jobs(with_old=with_old)
    if json:
        print_json({"jobs": jobs})
        return
    if not jobs:
        print_text("No jobs.\n" if with_old else "No jobs that are not over: aliquot jobs --all\n")
        return
    table = new_table("Job", "State", "Workers", "Queue", "Step", "Samples/s", "Age", "Why")
    for job in jobs:
        table.add_row(*_row(job))
    console().print(table)


def describe(name: str, simulate: str | None, *, json: bool) -> None:
    """One job: what was asked for, where it stands and why, what happened."""
    job = _client(simulate).job(name)
    if json:
        print_json(job)
        return
    lines = {
        "Job": f"{job['name']} ({job['number']})",
        "State": f"{job['record']['state']}, {_why(job)}",
        "Wanted": job["record"]["wish"],
        "Command": " ".join(job["command"]),
        "Workers": f"{_workers(job)}; sizes {_sizes(job)}{', live' if job['live'] else ''}",
        "Each": _each(job["request"]),
        "Queue": f"{job['queue']}, urgency {job['priority']}",
        "Retries": f"{job['record']['retries']} of {job['retries']} used",
        "Resizes": f"{job['record']['resizes']}{_redone(job['progress'])}",
        "Speeds": ", ".join(f"{n} workers: {s:g}/s" for n, s in job["speeds"].items()) or NOTHING,
    }
    width = max(map(len, lines)) + 2
    text = "".join(f"{key + ':':<{width}}{value}\n" for key, value in lines.items())
    events = (
        f"  {time.strftime('%F %T', time.localtime(one['at']))}  {one['state']:<10}"
        f" {one['size'] or '':>4}  {one['reason']}\n"
        for one in job["events"]
    )
    print_text(f"{text}History:\n{''.join(events)}")


def show_log(name: str, simulate: str | None, rank: int, *, follow: bool) -> None:
    """What a worker wrote, and how much is not kept; to follow ends with the job."""
    client, start = _client(simulate), 0
    number = str(client.job(name)["number"])  # the name may be another job's later
    while True:
        found = client.log(number, rank, start)
        if (cut := found.start - start) > 0:
            kept = format_bytes(KEPT_BYTES)
            said = f"{format_bytes(cut)} are gone: of each worker the last {kept} are kept"
            sys.stderr.write(f"aliquot: {said}\n")
        start = found.start + len(found.words)
        sys.stdout.buffer.write(found.words)
        sys.stdout.buffer.flush()
        if not found.words and (not follow or found.state.final):
            return
        if not found.words:
            time.sleep(_FOLLOW_SECONDS)


def ask(names: Sequence[str], wish: str, simulate: str | None, *, every: bool = False) -> None:
    """Suspend, resume or cancel jobs; where one is refused, the others' turn comes all the same."""
    if bool(names) == every:
        raise InvalidValueError("Name jobs, or say --all")
    client, refused = _client(simulate), None
    for name in names or [str(job["number"]) for job in client.jobs(with_old=False)]:
        try:
            client.ask(name, wish)
        except NoPoolError:
            raise
        except AliquotError as error:
            if refused:
                sys.stderr.write(f"aliquot: {refused}\n")
            refused = error
    if refused:
        raise refused


def _client(simulate: str | None) -> Client:
    return connect(parse_shape(simulate) if simulate else None)


def _row(job: dict[str, Any]) -> list[str]:
    progress = job["progress"]
    step = progress.get("step")
    return [
        job["name"],
        job["record"]["state"],
        _workers(job),
        job["queue"],
        NOTHING if step is None else str(step),
        rate(progress.get("samples_per_second")),
        _age(time.time() - job["submitted"]),
        _why(job),
    ]


def _workers(job: dict[str, Any]) -> str:
    """How many there are, of how many there may be."""
    leaving = job["record"]["leaving"]
    coming = f" → {leaving['size']}" if leaving and leaving["then"] == State.STARTING else ""
    return f"{len(job['record']['slots'])}{coming} ({_sizes(job)})"


def _sizes(job: dict[str, Any]) -> str:
    sizes = job["sizes"]
    if sizes == list(range(sizes[0], sizes[-1] + 1)):
        return f"{sizes[0]}..{sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
    return ",".join(map(str, sizes))


def _redone(progress: dict[str, Any]) -> str:
    """What restarts have cost, where they have."""
    lost = progress.get("lost_seconds") or 0.0
    if not lost:
        return ""
    rest = _age(rest_seconds(progress))
    return f"; one has cost {_age(lost)} of work, so it does not grow for {rest} after each"


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
    return str(job["waits"] or job["record"]["reason"])


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
