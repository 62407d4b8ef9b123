"""One tour of a shared machine: slices, the queue, jobs, Python. Prints docs/tour.md.

    make tour          on this machine's GPU, or on a simulated one

It prints every command with its real output, as Markdown. It has an arbiter, a pool and a folder of
its own, on one GPU. The exit code is 0 only if all checks at the end of the page pass.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo import SIMULATED, has_gpu, own_state
from stage import ALIQUOT

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
COUNTS = ROOT / "examples" / "counts_on_gpu.py"
BUSY = ROOT / "demo" / "tenant.py"
NEAR = 10.0  # percent of a GPU's time
PATIENCE = 120.0

SIZE = """\
import ctypes

cuda, device, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_size_t()
cuda.cuInit(0)
cuda.cuDeviceGet(ctypes.byref(device), 0)
cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
print("a GPU of", round(total.value / 2**30, 1), "GiB")
"""
SWEEP = """\
import os

with open("rates.txt") as rates:
    rate = rates.read().split()[int(os.environ["ALIQUOT_ARRAY_INDEX"]) - 1]
print("learning rate", float(rate))
"""
NOTEBOOK = """\
import subprocess
import aliquot

with aliquot.slice(memory="10%", name="notebook") as part:
    print(part.name, "has", [gpu.model for gpu in part.gpus])
    subprocess.run(["python", "size.py"], check=True)
job = aliquot.submit(["python", "size.py"], memory="10%", name="from-python")
print(job.name, job.wait(), job.logs(), end="")
"""

PREFACE = """\
# A tour of one GPU

A day on a shared GPU in one script: two programs beside each other, a resize, a command that waits
for its turn, a sweep with a failing job, a job that is suspended, Python.
[demo/tour.py](../demo/tour.py) ran every command below, and this is its output, on {where}. To see
it on your machine: `make tour`.

`busy.py` keeps its GPU busy ([tenant.py](../demo/tenant.py)), `size.py` prints how large its GPU
is, and `counts.py` counts in GPU memory once a second
([counts_on_gpu.py](../examples/counts_on_gpu.py)). `~/aliquot` is the checkout, `~/tour` the folder
of these programs, and `~/state` that of the arbiter and the pool."""


@dataclass
class Background:
    """A command of the tour that runs beside the others."""

    process: subprocess.Popen[str]
    log: Path

    def end(self) -> int:
        """Close its standard input and wait for it; return its exit code."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        return self.process.wait(PATIENCE)


@dataclass
class Tour:
    """The commands' environment, and what was checked."""

    folder: Path
    environment: dict[str, str]
    started: list[Background] = field(default_factory=list)
    checks: list[tuple[str, bool]] = field(default_factory=list)
    freezes: bool = False

    def chapter(self, title: str, words: str) -> None:
        """Print a heading and what follows."""
        print(f"\n## {title}\n\n{words}")

    def show(self, *commands: str, expect: int = 0) -> str:
        """Run commands and print them with their output; return the output."""
        said = ""
        print("\n```")
        for command in commands:
            print(f"$ {command}", flush=True)
            done = subprocess.run(
                shlex.split(command),
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                check=False,
            )
            self.print(done.stdout)
            if done.returncode:
                print(f"(exit code {done.returncode})")
            if done.returncode != expect:
                self.check(f"exit code {expect} of: {command}", holds=False)
            said += done.stdout
        print("```", flush=True)
        return said

    def start(self, command: str, stdin: str = "") -> Background:
        """Start a command beside the others; it is printed, and its output by `tell_of`."""
        log = self.folder / f"{len(self.started)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL if stdin else output,
                stderr=output,
                text=True,
            )
        if stdin and process.stdin is not None:
            process.stdin.write(stdin)
            process.stdin.flush()
        self.started.append(Background(process, log))
        return self.started[-1]

    def show_started(self, *commands: tuple[str, Background]) -> None:
        """Print commands that were started, and what they have said so far."""
        print("\n```")
        for command, background in commands:
            print(f"$ {command} &")
            self.print(background.log.read_text("utf-8"))
        print("```", flush=True)

    def ask(self, *arguments: str) -> Any:
        """The JSON of an `aliquot` command, which is not printed; None if it failed."""
        done = subprocess.run(
            [*ALIQUOT, *arguments, "--json"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    def until(self, what: str, holds: Callable[[], object]) -> None:
        """Wait for something, and check that it came."""
        deadline = time.monotonic() + PATIENCE
        while not (held := bool(holds())) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.check(what, held)

    def check(self, what: str, holds: object) -> None:
        """Record the result of a check."""
        self.checks.append((what, bool(holds)))

    def print(self, output: str) -> None:
        """Print output, with short names for the tour's folders."""
        state = self.environment["ALIQUOT_STATE"]
        short = output
        for path, name in ((self.folder, "~/tour"), (state, "~/state"), (ROOT, "~/aliquot")):
            short = short.replace(str(path), name)
        print("\n".join(line.rstrip() for line in short.splitlines()))

    def grants(self) -> dict[str, Any]:
        """The grants by name."""
        status = self.ask("ps") or {"grants": []}
        return {grant["name"]: grant for grant in status["grants"]}

    def phase(self, name: str) -> str:
        """The phase of a job."""
        jobs = (self.ask("jobs", "--all") or {"jobs": []})["jobs"]
        phases = [job["state"]["phase"] for job in jobs if job["name"] == name]
        return phases[-1] if phases else ""

    def clean_up(self) -> None:
        """End what still runs."""
        for command in (["cancel", "--all"], ["down"]):
            subprocess.run(
                [*ALIQUOT, *command], env=self.environment, capture_output=True, check=False
            )
        for background in self.started:
            if background.process.poll() is None:
                background.process.kill()
            background.end()


def slices(tour: Tour) -> None:
    """Two programs beside each other; what `ps` and `top` show; a resize."""
    tour.chapter("The machine", "What is there, and whether Aliquot works here.")
    said = tour.show("aliquot doctor")
    tour.freezes = "suspended by freezing" in said
    tour.check("doctor found nothing broken", "Aliquot works here" in said)
    tour.show("aliquot gpus")

    tour.chapter("Two programs beside each other", "Both run in the background, as with `&`.")
    train = "aliquot run --memory 40% --compute 60 --name train -- python busy.py 0"
    serve = "aliquot run --memory 30% --compute 40 --name serve -- python busy.py 0"
    both = [(command, tour.start(command, "work\n")) for command in (train, serve)]
    tour.until("both programs get their shares", lambda: _shares(tour, train=60, serve=40))
    tour.show_started(*both)
    said = tour.show("aliquot ps")
    tour.check("ps names both, their user and command", said.count("busy.py") == len(both))
    tour.check("top has a line for both", tour.show("aliquot top --once").count("grant=") == 2)
    said = tour.show("aliquot ps --format '{name} of {user}: {used} of {limit}, pid {pid}'")
    tour.check("a template has a line for each", len(said.splitlines()) == len(both))

    tour.chapter(
        "A resize while they run", "The shares change from the next window on, memory at once."
    )
    tour.show(
        "aliquot resize train --compute 30 --memory 45%",
        "aliquot resize serve --compute 70",
    )
    tour.until("the programs have their new shares", lambda: _shares(tour, train=30, serve=70))
    tour.show("aliquot ps")


def _shares(tour: Tour, **expected: int) -> bool:
    """Whether grants have these shares and their programs get them.

    A simulated GPU runs on processors that may be busy: there any part of the time is enough.
    """
    grants = tour.grants()
    slices = {name: grants[name]["slices"][0] for name in expected if name in grants}
    return len(slices) == len(expected) and all(
        part["compute_percent"] == expected[name]
        and (got := part["compute"]["got_ratio"] or 0.0) > 0
        and ("ALIQUOT_SIMULATE" in tour.environment or abs(got * 100 - expected[name]) < NEAR)
        for name, part in slices.items()
    )


def queue(tour: Tour) -> None:
    """A command that does not fit is refused, or waits; `kill` makes room for it."""
    tour.chapter("No GPU is free", "Who has the memory? Without `--wait` the command is refused.")
    said = tour.show("aliquot run --memory 60% -- python size.py", expect=1)
    tour.check("the refusal names both holders", "train" in said and "serve" in said)
    tour.show("aliquot explain --memory 60%", expect=1)
    tour.chapter(
        "Wait for it", "A pool gives the machine a queue. The command waits until `train` is ended."
    )
    tour.show("aliquot up --detach")
    waits = "aliquot run --memory 60% --wait=5m --name next -- python size.py"
    next_run = tour.start(waits)
    tour.until("the command waits", lambda: "waiting" in next_run.log.read_text("utf-8"))
    tour.show("aliquot kill train")
    tour.check("the command that waited ran", next_run.end() == 0)
    tour.show_started((waits, next_run))
    tour.check("in its slice", "a GPU of" in next_run.log.read_text("utf-8"))


def jobs(tour: Tour) -> None:
    """A sweep with a failing job; a job that waits, is changed, suspended and cancelled."""
    tour.chapter("A sweep", "Four jobs, two at once. The third learning rate has a mistake.")
    rates = tour.folder / "rates.txt"
    rates.write_text("0.1 0.03 O.01 0.003\n")
    tour.show("aliquot submit --name sweep --array 1-4%2 --memory 10% -- python sweep.py")
    tour.check(
        "wait names the job that failed", "sweep-3" in tour.show("aliquot wait sweep", expect=1)
    )
    tour.show("aliquot jobs")
    said = tour.show("aliquot logs --tail 1 sweep-3", "aliquot describe sweep-3")
    tour.check("its log says why", "could not convert" in said)
    tour.chapter("The failed job again", "With the mistake corrected.")
    rates.write_text("0.1 0.03 0.01 0.003\n")
    said = tour.show(
        "aliquot submit --name sweep --array 3 --memory 10% --follow -- python sweep.py"
    )
    tour.check("it has succeeded now", "learning rate 0.01" in said)

    tour.chapter(
        "Jobs that wait for others",
        "`later` starts when `long` has ended, and is changed while it waits.",
    )
    tour.show(
        "aliquot submit --name long --memory 30% --time 1h -- python counts.py",
        "aliquot submit --name later --after long:any --memory 30% -- python size.py",
        "aliquot update later --memory 10% --time 10m",
    )
    tour.until("the job counts", lambda: _counted(tour, 3))
    tour.show("aliquot jobs")
    tour.chapter(
        "Suspended and resumed",
        "Others use its GPU for a while. If the driver can freeze it, it goes on where it was.",
    )
    tour.show("aliquot suspend long")
    tour.until("the job is suspended", lambda: tour.phase("long") == "Suspended")
    tour.show("aliquot ps", "aliquot resume long")
    tour.until("the job is resumed", lambda: tour.phase("long") == "Running")
    tour.until("it continues where it was", lambda: _counted(tour, 4))
    tour.show("aliquot logs --tail 2 --timestamps long", "aliquot cancel long")
    tour.show("aliquot wait long", expect=143)
    tour.show("aliquot wait later", "aliquot logs later", "aliquot describe later")
    tour.check("the cancelled job is shown as such", tour.phase("long") == "Cancelled")
    tour.check("the job after it ran", tour.phase("later") == "Succeeded")


def _counted(tour: Tour, least: int) -> bool:
    """Whether the job has counted so far; every number is once in its output if it was frozen."""
    done = subprocess.run(
        [*ALIQUOT, "logs", "long"],
        env=tour.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    numbers = [int(line) for line in done.stdout.split() if line.isdecimal()]
    return len(numbers) >= least and (
        not tour.freezes or numbers == list(range(1, numbers[-1] + 1))
    )


def python(tour: Tour) -> None:
    """The same in a program, and the end."""
    tour.chapter("In Python", "The same from a program or a notebook.")
    said = tour.show("cat notebook.py", "python notebook.py")
    tour.check("a slice and a job from Python", said.count("a GPU of") >= 2)
    tour.chapter("The end of the day", "Nothing is left on the GPU.")
    tour.show("aliquot kill serve", "aliquot ps", "aliquot jobs", "aliquot down", "aliquot gpus")
    tour.check("no grant is left", not tour.grants())


def play(folder: Path, environment: dict[str, str], where: str) -> bool:
    """Play the tour, and print what was checked; return whether all checks passed."""
    for name, text in (("size.py", SIZE), ("sweep.py", SWEEP), ("notebook.py", NOTEBOOK)):
        (folder / name).write_text(text)
    (folder / "busy.py").symlink_to(BUSY)
    (folder / "counts.py").symlink_to(COUNTS)
    tour = Tour(folder, environment)
    print(PREFACE.format(where=where))
    try:
        for part in (slices, queue, jobs, python):
            part(tour)
    finally:
        tour.clean_up()
    tour.chapter("Checked", "By the script, while it ran:\n")
    for what, holds in tour.checks:
        print(f"- {'✓' if holds else '✗ NOT TRUE:'} {what}")
    return all(holds for _, holds in tour.checks)


def main() -> int:
    """Play on the real GPU if there is one."""
    simulated = os.environ.get("ALIQUOT_SIMULATE")
    if simulated is None and not has_gpu():
        simulated = SIMULATED
    with own_state() as environment:
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        if simulated:
            environment["ALIQUOT_SIMULATE"] = simulated
        done = subprocess.run(
            [*ALIQUOT, "gpus", "--json"], env=environment, capture_output=True, check=True
        )
        gpus = json.loads(done.stdout)["gpus"]
        gpus = json.loads(done.stdout)["gpus"]
        gpu = max(gpus, key=lambda gpu: gpu["memory_bytes"] - gpu["used_bytes"])
        if len(gpus) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = gpu["uuid"]
        folder = Path(environment["ALIQUOT_STATE"]) / "tour"
        folder.mkdir()
        where = f"{'a simulated' if simulated else 'an'} {gpu['name']}"
        return 0 if play(folder, environment, where) else 1


if __name__ == "__main__":
    sys.exit(main())
