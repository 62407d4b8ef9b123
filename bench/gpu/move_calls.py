"""Can memory be moved while a program stands at a closed gate, or does the driver wait or hang?

    python bench/gpu/move_calls.py [--json PATH] [--only PARTS] [--jobs 12] [--seconds 330]

Needs an NVIDIA GPU and nothing else: Aliquot is not in front of the driver. The gate is a word in
host memory that the program's streams wait for (cuStreamWaitValue64, as in docs/compute.md).

In the tables a row is a driver call that threads of the program make behind the closed gate, and a
column is what a move does meanwhile (work_move.py). The parts differ in where the mover is (a
thread of the program, a thread with a context of its own, another process) and in what the program
has: 40 streams, one hardware queue, copies of its own in both directions behind the gate. The part
`exchange` moves the memory of two programs past each other (move_exchange.py), 16 GiB each with 256
MiB between them.

Exit code 0: every call returned while the gate was closed, and every byte was right. 1: some call
waited or hung, or bytes were wrong. 2: not everything could be tried. The file of --json is written
after each part.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import move_exchange
from vmm import GIB, MIB
from work_move import COLUMNS, CONTROL, ROWS, Spec

HERE = Path(__file__).parent
EXCHANGE = "exchange"
RETURNS, GATE, HANGS, NOT_RUN = "returns", "waits for the gate", "hangs", "not run"
SLOW_MS = 100.0
START_SECONDS = 15.0
PART_SECONDS = 70.0
FIRST_HEADS = ("out", "in", "event", "unmap", "free", "new", "map", "acc", "reg", "exp", "imp")
HEADS = (*FIRST_HEADS, "info", "move")
LEGEND = f"""
* a thread of the program stands in the call at the closed gate.
.  returns within {SLOW_MS:.0f} ms (a number: so many ms)   gate  waits until the gate is opened
HANG  does not return even then   bad  wrong bytes   err  error   none  no such call   -  not run
out, in  cuMemcpyDtoHAsync / HtoDAsync + cuStreamSynchronize   event  cuEventRecord + Synchronize
unmap  cuMemUnmap   free  cuMemRelease   new  cuMemCreate   map  cuMemMap   acc  cuMemSetAccess
reg  cuMemHostRegister   exp, imp  cuMemExportToShareableHandle, cuMemImportFromShareableHandle
info  cuMemGetInfo
move  all of a move: out, unmap, release, create, map, access, in, and the bytes compared
      (not tried if one of them alone waits for the gate, but in the tables of another process)
"""
NAME_WIDTH = 30
IN_A_MOVE = ("out", "in", "unmap", "release", "create", "map", "access")

Answer = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A table: where the mover is, and what the program has."""

    title: str
    place: str = "thread"
    streams: int = 3
    copies: bool = False
    priority: bool = False
    one_queue: bool = False


PARTS = {
    "thread": Part("a thread of the program moves"),
    "process": Part("another process moves, by exported handles", place="process"),
    "context": Part("a thread with a context of its own moves", place="context"),
    "one-queue": Part("a thread moves; CUDA_DEVICE_MAX_CONNECTIONS=1", one_queue=True),
    "forty": Part("a thread moves; 40 streams are gated", streams=40),
    "copies": Part("a thread moves; the program's own copies are queued", copies=True),
    "priority": Part(
        "a thread moves on a stream of the greatest priority; 40 streams, one queue, own copies",
        streams=40,
        copies=True,
        priority=True,
        one_queue=True,
    ),
    "context-hard": Part(
        "a context of its own moves; 40 streams, one queue, own copies",
        place="context",
        streams=40,
        copies=True,
        one_queue=True,
    ),
    "process-hard": Part(
        "another process moves; 40 streams, one queue, own copies",
        place="process",
        streams=40,
        copies=True,
        one_queue=True,
    ),
}
ORDER = ("thread", EXCHANGE, *(name for name in PARTS if name != "thread"))
QUICK_ROWS = (CONTROL, "cuStreamSynchronize", "cuMemFree", "cuLaunchKernel, queue full")


def run_child(part: Part, row: str, columns: list[str], limit: float) -> tuple[list[Answer], str]:
    """The lines that it printed, and the end of what it said on stderr."""
    spec = Spec(row, columns, part.place, part.streams, part.copies, part.priority, limit)
    environment = {**os.environ}
    if part.one_queue:
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    child = subprocess.Popen(
        [sys.executable, str(HERE / "work_move.py"), json.dumps(asdict(spec))],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=START_SECONDS + (len(columns) + 4) * limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        try:
            out, err = child.communicate(timeout=5.0)
        except subprocess.TimeoutExpired:  # not even a kill ends it
            out, err = "", "could not be killed"
        err += " (the time limit of the whole run passed)"
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")], err[-300:]


def run_row(part: Part, row: str, limit: float, until: float) -> Answer:
    """All columns of a row. Calls that a child could not tell about get another child."""
    columns: dict[str, Answer] = {}
    said: Answer = {"columns": columns}
    while len(columns) < len(COLUMNS) and time.monotonic() < until:
        lines, err = run_child(part, row, [one for one in COLUMNS if one not in columns], limit)
        found = {one.pop("column"): one for one in lines if "column" in one}
        columns |= found
        note(said, [one for one in lines if "result" not in one])
        waits = any(columns.get(one, {}).get("result") == GATE for one in IN_A_MOVE)
        if waits and part.place != "process":
            columns.setdefault("move", {"result": GATE, "inferred": True})
        if not found:
            said["failed"] = said.get("failed") or err or "the child said nothing"
            break
    for column in COLUMNS:
        columns.setdefault(column, {"result": NOT_RUN})
    return said


def note(said: Answer, rests: list[Answer]) -> None:
    """Add what a child said of its program. Of several children the first that stood counts."""
    for one in rests:
        said.setdefault("stands", one.get("stands", False))
        said.setdefault("returned", one.get("returned", 0))
        said["ends"] = said.get("ends", True) and one.get("ends", True)
        said.setdefault("errors", []).extend(one.get("errors", []))
        if one.get("queued_copies_right") is not None:
            right = said.get("queued_copies_right", True) and one["queued_copies_right"]
            said["queued_copies_right"] = right
        if "failed" in one:
            said["failed"] = one["failed"]


def run_part(part: Part, rows: list[str], options: argparse.Namespace, until: float) -> Answer:
    until = min(until, time.monotonic() + PART_SECONDS)
    with ThreadPoolExecutor(options.jobs) as pool:
        tried = pool.map(lambda row: run_row(part, row, options.limit, until), rows)
        return {"settings": asdict(part), "rows": dict(zip(rows, tried, strict=True))}


# --- what is shown --------------------------------------------------------------------------------


def cell(answer: Answer) -> str:
    result = answer["result"]
    if result == RETURNS:
        slow = answer["ms"] > SLOW_MS
        return f"{answer['ms']:.0f}" if slow else "."
    known = {GATE: "gate", HANGS: "HANG", NOT_RUN: "-", "error: the bytes are wrong": "bad"}
    return known.get(result, "none" if result.startswith("not there") else "err")


def table(part: Answer) -> str:
    widths = [max(len(head), 4) + 1 for head in HEADS]
    heads = "".join(head.rjust(width) for head, width in zip(HEADS, widths, strict=True))
    lines = [part["settings"]["title"], " " * NAME_WIDTH + heads]
    notes = []
    for row, said in part["rows"].items():
        cells = [cell(said["columns"][column]) for column in COLUMNS]
        text = "".join(one.rjust(width) for one, width in zip(cells, widths, strict=True))
        name = f"{'*' if said.get('stands') else ' '} {row}"
        lines.append(name.ljust(NAME_WIDTH) + text)
        notes += [f"  {row}: {one}"[:100] for one in remarks(said)]
    return "\n".join([*lines, *dict.fromkeys(notes)])


def remarks(said: Answer) -> list[str]:
    """What a cell has no room for."""
    found = [f"failed: {said['failed']}"] if "failed" in said else []
    found += [f"the program: {error}" for error in said.get("errors", [])]
    if said.get("ends") is False:
        found.append("the program did not end when the gate was opened")
    if said.get("queued_copies_right") is False:
        found.append("copies queued before the move did not find the memory after it")
    for column, one in said["columns"].items():
        if one["result"].startswith(("error", "not there")):
            found.append(f"{column}: {one['result']}")
    return found


def summary(part: Answer) -> str:
    results = [(one["result"], one) for said in part["rows"].values() for one in cells_of(said)]
    slowest = max((one.get("ms") or 0 for result, one in results if result == RETURNS), default=0)
    counts = {name: sum(result == name for result, _ in results) for name in (RETURNS, GATE, HANGS)}
    other = len(results) - sum(counts.values())
    text = ", ".join(f"{count} {name}" for name, count in counts.items())
    copies = [said.get("queued_copies_right") for said in part["rows"].values()]
    text += f", {other} other; the slowest that returned took {slowest:.0f} ms"
    if part["settings"]["copies"]:
        text += f"; copies of moved memory right in {copies.count(True)} rows"
    return text


def cells_of(said: Answer) -> list[Answer]:
    return [*said["columns"].values()]


def exit_code(result: Answer) -> int:
    """See the text above."""
    rows = [said for part in result["parts"].values() for said in part["rows"].values()]
    results = [one["result"] for said in rows for one in cells_of(said)]
    exchange = result.get(EXCHANGE)
    wrong = {GATE, HANGS, "error: the bytes are wrong"}
    ended = [said.get("ends", True) and said.get("queued_copies_right", True) for said in rows]
    if any(one in wrong for one in results) or not all(ended):
        return 1
    if exchange and "failed" not in exchange and not move_exchange.holds(exchange):
        return 1
    complete = all(one == RETURNS for one in results)
    complete = complete and not any("failed" in said or said.get("errors") for said in rows)
    exchanged = exchange is None or "failed" not in exchange
    return 0 if complete and exchanged and not result["left_out"] else 2


def describe() -> Answer:
    """The GPU and its driver, from a process of its own."""
    program = "import json, vmm; print(json.dumps(vmm.Driver().describe()))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True, timeout=60)
    found: Answer = json.loads(done.stdout)
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the result there")
    parser.add_argument("--only", default=",".join(ORDER), help=f"of {', '.join(ORDER)}")
    parser.add_argument("--jobs", type=int, default=12, help="rows that are tried side by side")
    parser.add_argument("--seconds", type=float, default=330.0, help="begin nothing after these")
    parser.add_argument("--limit", type=float, default=1.5, help="seconds that a call may take")
    parser.add_argument("--gib", type=float, default=16.0, help="memory of each exchanged program")
    parser.add_argument("--piece-mib", type=int, default=32)
    parser.add_argument("--room-mib", type=int, default=256)
    parser.add_argument("--exchanges", type=int, default=4, help="by each mover; even")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: few rows, little memory")
    options = parser.parse_args()
    if options.quick:
        options.gib, options.piece_mib, options.room_mib, options.exchanges = 0.125, 8, 32, 2
    names = options.only.split(",")
    if unknown := set(names) - set(ORDER):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    options.parts = [name for name in ORDER if name in names]
    return options


def main() -> int:
    options = parse()
    begin = time.monotonic()
    until = begin + options.seconds
    date = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    try:
        result: Answer = {**describe(), "date": date, "parts": {}, "left_out": []}
    except subprocess.SubprocessError as error:
        print(f"no GPU: {error} {getattr(error, 'stderr', '')}", file=sys.stderr)
        return 2
    print(f"{result['gpu']}, driver {result['driver']}, CUDA {result['cuda']}, {date}", flush=True)
    rows = [row for row in ROWS if not options.quick or row in QUICK_ROWS]
    sizes = move_exchange.Sizes(
        int(options.gib * GIB), options.piece_mib * MIB, options.room_mib * MIB, options.exchanges
    )
    for name in options.parts:
        started = time.monotonic()
        print(f"\n[{started - begin:.0f} s] {name}", flush=True)
        if started > until:
            result["left_out"].append(name)
            print("there was no time for it", flush=True)
        elif name == EXCHANGE:
            result[EXCHANGE] = move_exchange.run(sizes, until)
        else:
            part = result["parts"][name] = run_part(PARTS[name], rows, options, until)
            print(f"{table(part)}\n{summary(part)}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    code = exit_code(result)
    print(f"{LEGEND}\n{time.monotonic() - begin:.0f} s; exit code {code}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
