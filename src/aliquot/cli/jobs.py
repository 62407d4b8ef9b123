"""`aliquot jobs`, `describe`, `suspend`, `resume`, `cancel`, `update` and `prune`."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aliquot.cli.keys import END_KEYS, keyboard
from aliquot.cli.suspend_command import change_command, split_commands
from aliquot.cli.tables import (
    NOTHING,
    Column,
    Output,
    age,
    clean,
    laid_out,
    print_json,
    print_text,
    rate,
    show_rows,
    styled,
    terminal_size,
)
from aliquot.devices import parse_shape
from aliquot.model.errors import AliquotError, InvalidValueError
from aliquot.model.job import Desired, JobPhase
from aliquot.model.strength import format_strength
from aliquot.model.units import format_bytes, format_count, format_duration
from aliquot.pool.client import JobListing, NoPoolError, connect
from aliquot.pool.encoding import decode_request
from aliquot.pool.job_rows import shown_phase, sizes_text
from aliquot.pool.progress import pause_after_resize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aliquot.model.job import JobChange
    from aliquot.pool.client import PoolClient

RECENT_SECONDS = 86400.0
RECENT_JOBS = 10
WATCH_SECONDS = 2.0

COLUMNS = (
    Column("number", "#", right=True),
    Column("kind", "Kind", drop=8, only_named=True),
    Column("name", "Job", least=8),
    Column("user", "User", drop=4, least=6),
    Column("phase", "Phase"),
    Column("workers", "Workers", drop=2),
    Column("queue", "Queue", drop=6),
    Column("step", "Step", drop=5, right=True),
    Column("rate", "Samples/s", drop=7, right=True),
    Column("age", "Age", drop=1, right=True),
    Column("time", "Time", drop=3, right=True),
    Column("reason", "Reason", least=32),
    Column("exit", "Exit", only_named=True),
    Column("ended", "Ended", only_named=True),
    Column("command", "Command", only_named=True),
    Column("directory", "Folder", only_named=True),
    Column("submit", "Submit", only_named=True),
    Column("start", "Start", only_named=True),
    Column("end", "End", only_named=True),
)
FINISHED = (
    Column("number", "#", right=True),
    Column("name", "Job", least=8),
    Column("user", "User", drop=3, least=6),
    Column("phase", "Phase"),
    Column("exit", "Exit", right=True),
    Column("ended", "Ended", drop=1),
    Column("time", "Time", drop=2, right=True),
    Column("reason", "Reason", least=32),
)
# Finished and unfinished jobs in one table; --format has the same fields as without --all.
BOTH = (
    *COLUMNS[:2],
    *(one for one in FINISHED[1:-1] if one.key != "ended"),
    Column("ended", "Ended", drop=4),
    Column("workers", "Workers", drop=5),
    Column("queue", "Queue", drop=6),
    FINISHED[-1],
    *(
        replace(one, only_named=True)
        for one in COLUMNS
        if one.key not in {*(other.key for other in FINISHED), "kind", "workers", "queue"}
    ),
)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which jobs and waiting commands are listed: all, or some by name, user and phase."""

    names: tuple[str, ...] = ()
    user: str | None = None
    phases: frozenset[JobPhase] = frozenset()
    with_finished: bool = False

    @property
    def in_one_table(self) -> bool:
        """Whether finished jobs are among the others, not in a table of their own."""
        return self.with_finished or bool(self.names) or bool(self.phases)

    @property
    def nothing(self) -> str:
        """What to say if there is none of these jobs."""
        is_some = self.names or self.user is not None or self.phases
        return "No such jobs. All jobs: aliquot jobs --all" if is_some else "No jobs."

    def listing(self, client: PoolClient) -> JobListing:
        """These jobs, by number, and these commands."""
        if self.names:
            found = [client.all_named(name) for name in self.names]
            listing = JobListing(
                list({job["number"]: job for one in found for job in one.jobs}.values()),
                list({run["pid"]: run for one in found for run in one.runs}.values()),
            )
        elif self.with_finished:
            listing = client.listing(with_finished=True)
        else:
            listing = client.listing(recent=RECENT_SECONDS)
        return JobListing(
            [job for job in listing.jobs if self._has(job["user"], shown_phase(job))],
            [run for run in listing.runs if self._has(run["user"], run["state"]["phase"])],
        )

    def _has(self, user: str, phase: str) -> bool:
        return self.user in {None, user} and (not self.phases or JobPhase(phase) in self.phases)


def show_jobs(
    selection: Selection, simulate: str | None, output: Output, *, watch: float | None = None
) -> None:
    """Print the jobs as tables; `watch`: again every so many seconds, until a key or Ctrl-C."""
    if watch is not None and (output.json or output.template is not None):
        raise InvalidValueError(
            "--watch cannot be combined with --json or --format", "Leave one of them out."
        )
    client = client_of(simulate)
    if watch is None:
        _print_jobs(selection.listing(client), output, selection)
        return
    try:
        _watch(client, selection, watch, output)
    except KeyboardInterrupt:
        return


def _print_jobs(listing: JobListing, output: Output, selection: Selection) -> None:
    in_one_table = selection.in_one_table
    running, finished = _split(listing.jobs)
    if output.json:
        found = {"jobs": listing.jobs} if in_one_table else {"jobs": running, "finished": finished}
        print_json({**found, "runs": listing.runs})
    elif output.template is not None or in_one_table:
        rows = _rows(listing.jobs if in_one_table else running, listing.runs)
        if rows or output.template is not None:
            show_rows(_columns(BOTH, listing), rows, output)
        else:
            print_text(f"{selection.nothing}\n")
    else:
        width = None if output.no_trunc else size.columns if (size := terminal_size()) else None
        print_text("".join(f"{line}\n" for line in _lines(listing, width)))


def _columns(columns: tuple[Column, ...], listing: JobListing) -> tuple[Column, ...]:
    """The columns; the one for the kind is shown only if not all rows are jobs."""
    if not listing.runs:
        return columns
    return tuple(replace(one, only_named=False) if one.key == "kind" else one for one in columns)


def _rows(jobs: list[dict[str, Any]], runs: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [*map(_row, jobs), *map(_run_row, runs)]


def _split(jobs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The unfinished jobs, and the finished ones, of which the newest come first."""
    final = [job for job in jobs if JobPhase(job["state"]["phase"]).final]
    final.sort(key=lambda job: (-job["state"]["since"], -job["number"]))
    return [job for job in jobs if not JobPhase(job["state"]["phase"]).final], final


def _lines(listing: JobListing, width: int | None) -> Iterator[str]:
    """The tables of what runs or waits, and of recently finished jobs."""
    running, finished = _split(listing.jobs)
    if running or listing.runs:
        header, *rows = laid_out(_columns(COLUMNS, listing), _rows(running, listing.runs), width)
        yield from (styled(header, "1"), *rows)
    else:
        yield "No unfinished jobs. All jobs: aliquot jobs --all"
    if finished:
        yield ""
        yield "Finished in the last day:"
        shown = [_row(job) for job in finished[:RECENT_JOBS]]
        header, *rows = laid_out(FINISHED, shown, width)
        yield from (styled(header, "1"), *rows)
    if (left := len(finished) - RECENT_JOBS) > 0:
        yield f"… and {left} more: aliquot jobs --all"


def _watch(client: PoolClient, selection: Selection, seconds: float, output: Output) -> None:
    with keyboard() as keys_within:
        while True:
            try:
                listing, size = selection.listing(client), terminal_size()
                width = None if size is None or output.no_trunc else size.columns
                if selection.in_one_table:
                    rows = _rows(listing.jobs, listing.runs)
                    lines = laid_out(_columns(BOTH, listing), rows, width)
                    lines = lines if rows else [selection.nothing]
                else:
                    lines = list(_lines(listing, width))
            except NoPoolError as error:
                size, lines = terminal_size(), [error.message]
            _show_screen(lines, size.lines if size else None)
            if END_KEYS & set(keys_within(seconds)):
                return


def _show_screen(lines: list[str], height: int | None) -> None:
    """Show the lines instead of the last ones; one below the other where there is no terminal."""
    lines = [f"{time.strftime('%T')}  aliquot jobs", "", *lines]
    if height is None:
        print_text("".join(f"{line}\n" for line in lines))
    else:
        if len(lines) >= height:
            hidden = len(lines) - height + 2
            lines = [*lines[: height - 2], f"… {format_count(hidden, 'line')} more"]
        print_text("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
    sys.stdout.flush()


def describe(name: str, simulate: str | None, *, json: bool) -> None:
    """Print a job: request, phase and reason, workers, history. Of an array, one line each."""
    client = client_of(simulate)
    members = client.members(name)
    if members[1:] and not json:
        print_text(_summary(name, members))
        show_rows(FINISHED, [_row(job) for job in members], Output())
        return
    jobs = [client.job(str(one["number"])) for one in members]
    if json:
        of_array = (jobs[0]["array"] or {}).get("name") == name.rpartition(":")[2]
        print_json({"jobs": jobs} if of_array else jobs[0])
        return
    print_text(_description(jobs[0]))


def _summary(name: str, jobs: list[dict[str, Any]]) -> str:
    """How many jobs of an array are in each phase, and which of them to look at."""
    counts = Counter(map(shown_phase, jobs)).most_common()
    phases = ", ".join(f"{count} {phase}" for phase, count in counts)
    at_once = jobs[0]["array"]["at_once"]
    limit = f", {at_once} at once" if at_once else ""
    failed = (job for job in jobs if shown_phase(job) == JobPhase.FAILED)
    one = next(failed, jobs[0])["name"]
    return (
        f"Array {name}: {len(jobs)} jobs{limit}: {phases}\n"
        f"One of them: aliquot describe {one}, aliquot logs {one}\n\n"
    )


def _description(job: dict[str, Any]) -> str:
    state = job["state"]
    lines = {
        "Job": f"{job['name']} ({job['number']}) of {job['user']}",
        "Phase": f"{shown_phase(job)}, {_why(job)}",
        "Turn": _turn(job["turn"]),
        "Requested": _requested(job),
        "Command": shlex.join(job["command"]),
        "Folder": job["directory"],
        "Log": "\n".join(one["file"] for one in job["logs"]),
        "Submitted": _clock(job["submitted"]),
        "Started": _clock(state["started"]),
        "Ended": _clock(state["since"]) if job["exit_code"] is not None else "",
        "Duration": _duration(job),
        "Time limit": _limit(job),
        "Exit code": "" if job["exit_code"] is None else str(job["exit_code"]),
        "After": ", ".join(f"job {one['job']} ({one['needs']})" for one in job["after"]),
        "Array": "" if job["array"] is None else f"{job['array']['name']}, {_array(job['array'])}",
        "Workers": f"{_workers(job)}; sizes {sizes_text(job['sizes'])}"
        f"{', live' if job['live'] else ''}",
        "Each worker": _each(job["request"]),
        "Together": job["request"]["together"] or "only its own workers",
        "Queue": f"{job['queue']}, urgency {job['urgency']}",
        "Retries": f"{state['retries']} of {job['retries']} used",
        "Resizes": f"{state['resizes']}{_redone(job['progress'])}",
        "Speeds": ", ".join(f"{n} workers: {s:g}/s" for n, s in job["speeds"].items()) or NOTHING,
    }
    lines |= {f"Worker {one['rank']}": _worker(one) for one in job["workers"]}
    width = max(map(len, lines)) + 2
    text = "".join(
        f"{key + ':':<{width}}{_indented(value, width)}\n" for key, value in lines.items() if value
    )
    events = (
        f"  {_clock(one['at'])}  {one['phase']:<10} {one['size'] or '':>4} "
        f" {clean(one['reason'])}\n"
        for one in job["events"]
    )
    return f"{text}History:\n{''.join(events)}"


def _indented(value: str, width: int) -> str:
    """A value with its further lines below the first, without what controls a terminal."""
    return ("\n" + " " * width).join(clean(line) for line in value.split("\n"))


def request(names: Sequence[str], verb: str, simulate: str | None, *, every: bool = False) -> None:
    """Suspend, resume or cancel jobs. If one is refused, the others are still requested.

    Commands that wait can only be cancelled; those that run can be suspended and resumed.
    """
    if bool(names) == every:
        what = "--all and names cannot be combined" if every else f"no job to {verb} is named"
        raise InvalidValueError(what, f"Give names or --all. See: aliquot {verb} --help")
    if verb != "cancel" and names:
        names, commands = split_commands(names, simulate)
        _ask_each(iter(commands), lambda one: [change_command(str(one), verb, simulate)])
        if not names:
            return
    client = client_of(simulate)

    def ask(wanted: str | _Command) -> list[str]:
        if isinstance(wanted, _Command):
            return [f"{run['name']}: cancelled" for run in client.cancel_runs(str(wanted))]
        job = client.request(wanted, verb)
        return [f"{job['name']} ({job['number']}): {job['message']}"]

    _ask_each(_named(client, names, verb, every=every), ask)


def update(names: Sequence[str], change: JobChange, simulate: str | None) -> None:
    """Change jobs. If one is refused, the others are still changed."""
    client = client_of(simulate)

    def ask(wanted: str | _Command) -> list[str]:
        job = client.update(str(wanted), change)
        return [f"{job['name']} ({job['number']}): changed"]

    _ask_each(_named(client, names, "update", every=False), ask)


def prune(simulate: str | None, seconds: float) -> None:
    """Forget finished jobs."""
    numbers = client_of(simulate).prune(seconds)
    print_text(f"Forgot {format_count(len(numbers), 'finished job')} and their output.\n")


@dataclass(frozen=True, slots=True)
class _Command:
    """Commands that wait, by the name that the pool finds them by."""

    name: str

    def __str__(self) -> str:
        return self.name


def _named(
    client: PoolClient, names: Sequence[str], verb: str, *, every: bool
) -> Iterator[str | _Command | AliquotError]:
    """The numbers of the jobs, commands to cancel, or the error for a name of none."""
    if every:
        desired = {"suspend": Desired.RUN, "resume": Desired.SUSPEND}.get(verb)
        for job in client.jobs():  # --all is never about the jobs of others
            wanted = desired is None or job["state"]["desired"] == desired
            if wanted and job["uid"] == os.geteuid():
                yield str(job["number"])
    for name in names:
        try:
            if verb == "cancel":
                found = client.all_named(name)
                yield from [str(job["number"]) for job in found.jobs]
                yield from [_Command(name)] if found.runs else []
            else:
                yield from [str(job["number"]) for job in client.members(name)]
        except NoPoolError:
            raise
        except AliquotError as error:
            yield error


def _ask_each(
    found: Iterator[str | _Command | AliquotError], ask: Callable[[str | _Command], list[str]]
) -> None:
    """Ask for each and print what that does; raise the last refusal when all were asked."""
    refused: AliquotError | None = None
    for wanted in found:
        try:
            if isinstance(wanted, AliquotError):
                raise wanted
            print_text("".join(f"{line}\n" for line in ask(wanted)))
        except NoPoolError:
            raise
        except AliquotError as error:
            if refused:
                sys.stderr.write(f"aliquot: {refused}\n")
            refused = error
    if refused:
        raise refused


def client_of(simulate: str | None) -> PoolClient:
    """The pool that the commands talk to."""
    return connect(parse_shape(simulate) if simulate else None)


def _row(job: dict[str, Any]) -> dict[str, str]:
    """The cells of a job; those of another user's are unknown."""
    progress, state = job["progress"] or {}, job["state"]
    step, code = progress.get("step"), job["exit_code"]
    return {
        "number": str(job["number"]),
        "kind": "job",
        "name": str(job["name"] or NOTHING),
        "user": str(job["user"]),
        "phase": str(shown_phase(job)),
        "workers": _workers(job),
        "queue": str(job["queue"] or NOTHING),
        "step": NOTHING if step is None else str(step),
        "rate": rate(progress.get("samples_per_second")),
        "age": age(time.time() - job["submitted"]),
        "time": NOTHING if state["started"] is None else age(_seconds(job)),
        "reason": _why(job),
        "command": shlex.join(job["command"] or ()) or NOTHING,
        "exit": NOTHING if code is None else str(code),
        "directory": str(job["directory"] or NOTHING),
        "ended": f"{age(time.time() - state['since'])} ago" if code is not None else NOTHING,
        "submit": _clock(job["submitted"]),
        "start": _clock(state["started"]) or NOTHING,
        "end": _clock(state["since"]) if code is not None else NOTHING,
    }


def _run_row(run: dict[str, Any]) -> dict[str, str]:
    """The cells of a command of `aliquot run --wait`, which runs as one worker."""
    program = str(run["program"] or NOTHING)
    return {
        **dict.fromkeys((one.key for one in COLUMNS), NOTHING),
        "kind": "command",
        "name": str(run["name"] or NOTHING),
        "user": str(run["user"]),
        "phase": str(run["state"]["phase"]),
        "workers": "0 (1)",
        "queue": str(run["queue"] or NOTHING),
        "age": age(time.time() - run["submitted"]),
        "reason": str(run["waiting"] or NOTHING),
        "command": program,
        "submit": _clock(run["submitted"]),
    }


def _seconds(job: dict[str, Any]) -> float:
    """How long it has run, or ran: from its first start to its end."""
    state = job["state"]
    end = state["since"] if job["exit_code"] is not None else time.time()
    return float(max(0.0, end - state["started"]))


def _duration(job: dict[str, Any]) -> str:
    return "" if job["state"]["started"] is None else format_duration(_seconds(job))


def _requested(job: dict[str, Any]) -> str:
    """What its user asked for last, if it is not simply to run."""
    desired = job["state"]["desired"]
    return "" if desired == Desired.RUN or job["exit_code"] is not None else str(desired)


def _limit(job: dict[str, Any]) -> str:
    """Its time limit; and of an unfinished job the used part, which includes its starts."""
    if job["time_seconds"] is None:
        return ""
    limit, state = format_duration(job["time_seconds"]), job["state"]
    if job["exit_code"] is not None:
        return limit
    since = state["active_since"]
    used = state["used_seconds"] + (0.0 if since is None else max(0.0, time.time() - since))
    return f"{limit}, {format_duration(used)} used"


def _array(array: dict[str, Any]) -> str:
    limit = f", {array['at_once']} at once" if array["at_once"] else ""
    return f"index {array['index']}{limit}"


def _turn(turn: dict[str, Any] | None) -> str:
    """Its place in the queue, and when it starts if that is known."""
    if turn is None:
        return ""
    expected = turn["expected_start"]
    when = f"; starts by {_clock(expected)}, at running jobs' time limits" if expected else ""
    return f"{turn['place']} of {turn['of']} that wait{when}"


def _worker(worker: dict[str, Any]) -> str:
    gpus = ", ".join("?" if index is None else str(index) for index in worker["gpus"])
    pids = " ".join(map(str, worker["pids"]))
    text = f"GPU {gpus or NOTHING}; PID {pids or NOTHING}"
    memory = worker.get("memory")  # an earlier pool does not say
    return text if memory is None else f"{text}; {_worker_memory(memory)}"


def _worker_memory(memory: dict[str, Any]) -> str:
    """The working set of a worker, its limit, and what of it is on the host."""
    used, limit = format_bytes(memory["used_bytes"]), format_bytes(memory["limit_bytes"])
    away, turns = memory["away_bytes"], memory["turns"]
    text = f"uses {used} of {limit}"
    text += f", {format_bytes(away)} of it on the host" if away else ""
    return f"{text}\n{turns}" if turns else text


def _clock(when: float | None) -> str:
    return "" if when is None else time.strftime("%F %T", time.localtime(when))


def _workers(job: dict[str, Any]) -> str:
    """The number of workers, and the sizes that the job can have."""
    stopping = job["state"]["stopping"]
    coming = f" → {stopping['size']}" if stopping and stopping["then"] == JobPhase.STARTING else ""
    return f"{len(job['state']['slots'])}{coming} ({sizes_text(job['sizes'])})"


def _redone(progress: dict[str, Any]) -> str:
    """What restarts have cost; empty if nothing."""
    lost = progress.get("lost_seconds") or 0.0
    if not lost:
        return ""
    rest = format_duration(pause_after_resize(progress))
    cost = format_duration(lost)
    return f"; one cost {cost} of work, so the job does not grow for {rest} after each"


def _each(request: dict[str, Any]) -> str:
    gpus = f"{request['gpus']} GPU{'s' if request['gpus'] > 1 else ''}"
    if least := request.get("min_strength"):
        gpus += f" of strength {format_strength(least)} or more"
    asked = decode_request(request)
    said = (
        asked.which.options(),
        asked.neighbours.options(),
        asked.swap_options,
        asked.spill_options,
        asked.isolation_options,
    )
    asks = " ".join(filter(None, said))
    which = f"; {asks}" if asks else ""
    if asked.amount is None:
        return f"{gpus}, whole{which}"
    share = f"{request['compute_percent']}% of its time" if request["compute_percent"] else "equal"
    return f"{gpus}, {asked.amount} of each, compute {share}{which}"


def _why(job: dict[str, Any]) -> str:
    return str(job["waiting"] or job["state"]["reason"] or NOTHING)
