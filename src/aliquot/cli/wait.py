"""`aliquot wait`: wait until jobs are finished, and return the exit code of one that failed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from aliquot.cli.tables import print_text
from aliquot.model.units import format_duration
from aliquot.pool.client import NoPoolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aliquot.pool.client import PoolClient

TIMED_OUT = 75  # EX_TEMPFAIL: no exit code that a job gets by itself

_POLL_SECONDS = 0.2
_POLLED_PER_SECOND = 200  # jobs of an array


def wait_for(connect: Callable[[], PoolClient], names: Sequence[str], timeout: float | None) -> int:
    """Wait for all of these jobs. A pool that goes down meanwhile is waited for."""
    client = connect()
    found = {name: [str(job["number"]) for job in client.members(name)] for name in names}
    numbers = [number for name in names for number in found[name]]
    deadline = None if timeout is None else time.monotonic() + timeout
    codes: dict[str, int] = {}
    told = False
    while True:
        try:
            for job in _jobs(client, found, codes):
                if job["exit_code"] is not None:
                    codes[str(job["number"])] = job["exit_code"]
                    print_text(f"{summary(job)}\n")
                    sys.stdout.flush()
            told = False
        except NoPoolError as error:
            if not told:
                sys.stderr.write(f"aliquot: {error.message}; waiting until it is back\n")
            told = True
        if len(codes) == len(set(numbers)):
            return next((codes[number] for number in numbers if codes[number]), 0)
        if deadline is not None and time.monotonic() >= deadline:
            left = len(set(numbers)) - len(codes)
            sys.stderr.write(
                f"aliquot: {left} of {len(set(numbers))} not finished after"
                f" {format_duration(timeout or 0.0)}\n"
            )
            return TIMED_OUT
        time.sleep(max(_POLL_SECONDS, len(numbers) / _POLLED_PER_SECOND))


def _jobs(
    client: PoolClient, found: dict[str, list[str]], codes: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """The jobs without an exit code, with one request for each array."""
    for name, numbers in found.items():
        left = [number for number in numbers if number not in codes]
        several = {str(job["number"]): job for job in client.members(name)} if left[1:] else {}
        for number in left:
            if number not in codes:
                # A later array may have the name.
                yield several[number] if number in several else client.job(number)


def summary(job: dict[str, Any]) -> str:
    """How a job ended, on one line."""
    state = job["state"]
    started = state["started"]
    took = f" after {format_duration(state['since'] - started)}" if started else ""
    why = "" if state["phase"] == "Succeeded" else f": {state['reason']}"
    return f"{job['name']} ({job['number']}): {state['phase']}{took}{why}"
