"""How much CPU time a command takes to start: python bench/start.py ALIQUOT [ALIQUOT…]

Each ALIQUOT is the program of a build. They run in turn, without an arbiter and without a pool. For
each command and build it prints user CPU time in ms, best and median.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile

COMMANDS = (
    ("ps",),
    ("jobs",),
    ("gpus", "--simulate", "h100:1"),
    ("--version",),
    ("__names", "grants"),
    ("__names", "jobs"),
)
STARTS = 12


def user_ms(program: str, command: tuple[str, ...], state: str) -> float:
    """The user CPU time of one start."""
    quiet, environment = subprocess.DEVNULL, {**os.environ, "ALIQUOT_STATE": state}
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([program, *command], env=environment, stdout=quiet, stderr=quiet, check=False)
    return 1000 * (resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)


def main(programs: list[str]) -> None:
    """Measure all commands with all builds."""
    with tempfile.TemporaryDirectory() as state:
        for command in COMMANDS:
            found: dict[str, list[float]] = {program: [] for program in programs}
            for _ in range(STARTS):
                for program in programs:
                    found[program].append(user_ms(program, command, state))
            shown = (f"{min(one):.0f}, {statistics.median(one):.0f}" for one in found.values())
            print(f"{' '.join(command):24}", "  ".join(f"{one:>10}" for one in shown))


if __name__ == "__main__":
    main(sys.argv[1:] or [".venv/bin/aliquot"])
