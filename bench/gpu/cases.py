"""Running a benchmark's cases: one after the other, in a budget of time, with every result kept.

A case names the programs it needs, how long it should take, and what it does; cases of one group
are neighbours, and their programs are started together before the group's first case. A case that
fails or takes far too long costs no other: programs that it left at work are started anew. Results
are written after each case, so that whatever ends the benchmark early leaves those before.

A check is a figure against a bar of the issue. It is met, missed, or told without a bar.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import platform
import shlex
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from programs import Spec, Stage
from witness import Speeds

TIMEOUT_FACTOR = 2.0
TIMEOUT_SECONDS = 60.0
START_SECONDS = 20.0  # of a group's programs, as expected


@dataclass
class Context:
    """What a case works with, and where it puts what it found."""

    stage: Stage
    speeds: Speeds
    quick: bool
    found: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)

    def at_most(self, what: str, value: float | None, bar: float, unit: str = "") -> None:
        met = value is not None and value <= bar
        self.checks.append(_check(what, value, unit) | {"sense": "<=", "bar": bar, "met": met})

    def at_least(self, what: str, value: float | None, bar: float, unit: str = "") -> None:
        met = value is not None and value >= bar
        self.checks.append(_check(what, value, unit) | {"sense": ">=", "bar": bar, "met": met})

    def holds(self, what: str, *, value: bool) -> None:
        self.at_least(what, float(value), 1.0)

    def tell(self, what: str, value: float | None, unit: str = "") -> None:
        """A figure that no bar is set for."""
        self.checks.append(_check(what, value, unit) | {"sense": "", "bar": None, "met": True})


def _check(what: str, value: float | None, unit: str) -> dict[str, Any]:
    return {"what": what, "value": None if value is None else round(value, 4), "unit": unit}


@dataclass(frozen=True)
class Case:
    name: str
    group: str
    seconds: float
    specs: tuple[Spec, ...]
    act: Callable[[Context], None]


class CaseTimeoutError(Exception):
    """A case took far longer than it should."""


class Results:
    """All that is known, on disk after every case."""

    def __init__(self, script: str, options: argparse.Namespace) -> None:
        self.path: Path = options.out / f"{script}.json"
        self.data: dict[str, Any] = {
            "script": script,
            "command": command(script),
            "date": dt.date.today().isoformat(),
            "machine": machine(options.simulate),
            "cases": {},
            "failed": {},
            "skipped": [],
        }

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self.data, separators=(",", ":")))
        fresh.replace(self.path)

    def summary(self) -> str:
        lines = ["| case | what | measured | bar | met |", "|---|---|--:|--:|---|"]
        for name, case in self.data["cases"].items():
            lines += [f"| {name} | {row(check)} |" for check in case["checks"]]
        lines += [f"| {name} | failed: {why[-160:]} | | | NO |" for name, why in self.failed()]
        if skipped := self.data["skipped"]:
            lines.append(f"\nSkipped, the time was over: {', '.join(skipped)}")
        return "\n".join(lines)

    def failed(self) -> Iterable[tuple[str, str]]:
        return ((name, " ".join(why.split())) for name, why in self.data["failed"].items())

    @property
    def all_met(self) -> bool:
        checks = [check for case in self.data["cases"].values() for check in case["checks"]]
        return not self.data["failed"] and all(check["met"] for check in checks)


def command(script: str) -> str:
    """How this was started, less the place where the results go."""
    words = list(sys.argv[1:])
    for number in [place for place, word in enumerate(words) if word == "--out"]:
        del words[number : number + 2]
    kept = [word for word in words if not word.startswith("--out=")]
    return shlex.join(["python", f"bench/gpu/{script}.py", *kept])


def row(check: dict[str, Any]) -> str:
    value = "-" if check["value"] is None else f"{check['value']:g}"
    measured = f"{value} {check['unit']}".strip()
    if not check["sense"]:
        return f"{check['what']} | {measured} | |"
    sense = {"<=": "≤", ">=": "≥"}[check["sense"]]
    bar = f"{sense} {check['bar']:g} {check['unit']}".strip()
    return f"{check['what']} | {measured} | {bar} | {'yes' if check['met'] else '**NO**'}"


def machine(simulate: str | None) -> dict[str, str]:
    about = {"python": platform.python_version(), "system": platform.platform()}
    if simulate:
        return {**about, "gpu": f"simulated {simulate}", "driver": "simulated"}
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False).stdout
        name, driver, memory = said.splitlines()[0].split(", ")
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return {**about, "gpu": "unknown", "driver": "unknown"}
    return {**about, "gpu": f"{name} ({memory})", "driver": driver}


def options_of(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where the JSON goes")
    parser.add_argument("--only", default="", help="cases and groups by the start of their names")
    parser.add_argument("--skip", default="", help="the same, to leave out")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds in all")
    parser.add_argument("--quick", action="store_true", help="short windows and fewer of them")
    parser.add_argument("--simulate", metavar="MODEL:COUNT", help="try the logic on simulated GPUs")
    parser.add_argument("--list", action="store_true", help="say what there is and end")
    return parser.parse_args()


def is_named(case: Case, names: str) -> bool:
    starts = [name for name in names.split(",") if name]
    return any(case.name.startswith(name) or case.group == name for name in starts)


def run_benchmark(
    script: str, description: str | None, make_cases: Callable[[bool], Sequence[Case]]
) -> int:
    """A benchmark's main: the exit code."""
    options = options_of(description)
    cases = [
        case
        for case in make_cases(options.quick)
        if (not options.only or is_named(case, options.only)) and not is_named(case, options.skip)
    ]
    if options.list:
        for case in cases:
            print(f"{case.group:10} {case.seconds:5.0f} s  {case.name}")
        print(f"{'all':10} {sum(case.seconds for case in cases):5.0f} s")
        return 0
    results = Results(script, options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGALRM, _out_of_time)
    stage = Stage(options.simulate)
    try:
        _run_all(stage, cases, results, options)
    finally:
        stage.close()
        results.write()
        print(results.summary(), flush=True)
    return 0 if results.all_met else 1


def _out_of_time(*_: object) -> None:
    raise CaseTimeoutError("it took far too long")


def _run_all(
    stage: Stage, cases: Sequence[Case], results: Results, options: argparse.Namespace
) -> None:
    began, group = time.monotonic(), ""
    speeds = Speeds(stage)
    for number, case in enumerate(cases):
        fresh = case.group != group
        expected = case.seconds + (START_SECONDS if fresh else 0)
        if time.monotonic() - began + expected > options.budget:
            results.data["skipped"].append(case.name)
            continue
        if fresh:
            group = case.group
            later = [one for one in cases[number:] if one.group == group]
            _start_group(stage, later, results)
        _run_one(Context(stage, speeds, options.quick), case, results)
        results.data["alone"] = speeds.rates()
        results.data["seconds"] = round(time.monotonic() - began, 1)
        results.write()


def _start_group(stage: Stage, cases: Sequence[Case], results: Results) -> None:
    """All programs of the group at once, those of no use any more ended."""
    wanted = dict.fromkeys(spec for case in cases for spec in case.specs)
    stage.keep(wanted)
    began = time.monotonic()
    try:
        stage.need(wanted)
    except Exception as error:  # noqa: BLE001 - the cases that need it will say so
        print(f"start: {error}", flush=True)
    took = time.monotonic() - began
    results.data.setdefault("starts", {})[cases[0].group] = round(took, 1)
    print(f"{cases[0].group}: {len(wanted)} programs started in {took:.1f} s", flush=True)


def _run_one(context: Context, case: Case, results: Results) -> None:
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, case.seconds * TIMEOUT_FACTOR + TIMEOUT_SECONDS)
    try:
        context.stage.need(case.specs)
        case.act(context)
    except Exception as error:  # noqa: BLE001 - one that fails must not cost the others
        results.data["failed"][case.name] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
        context.stage.end_pending()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    took = round(time.monotonic() - began, 1)
    if context.found or context.checks:
        told = {"group": case.group, "seconds": took, "checks": context.checks, **context.found}
        results.data["cases"][case.name] = told
    met = sum(check["met"] for check in context.checks)
    print(f"{case.name}: {took:.1f} s, {met} of {len(context.checks)} met", flush=True)
