"""Names for shell completion: fast, and never an error.

A shell calls `aliquot __names KIND` while somebody waits after a Tab. So this is not a command of
the application, whose import takes longer than the rest.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = "__names"

_SECONDS = 1.0


def print_names(kind: str) -> None:
    """Print the names of `grants` or `jobs`, one on each line; nothing if there are none."""
    try:
        names = sorted(set(_grants() if kind == "grants" else _jobs()))
        sys.stdout.write("".join(f"{name}\n" for name in names))
        sys.stdout.flush()
    except Exception:  # noqa: BLE001, S110 - a text in the middle of a command line helps nobody
        pass


def _grants() -> Iterator[str]:
    from aliquot.slices import control  # noqa: PLC0415 - imported when needed
    from aliquot.slices.state_directory import all_directories  # noqa: PLC0415

    for state in all_directories():
        try:
            found = control.status(state.directory, _SECONDS).grants
        except control.NoArbiterError:
            continue
        yield from (grant.name for grant in found if not grant.is_hidden)


def _jobs() -> Iterator[str]:
    from aliquot.pool.client import NoPoolError, PoolClient  # noqa: PLC0415 - imported when needed
    from aliquot.pool.directory import with_socket  # noqa: PLC0415

    for directory in with_socket():
        try:
            listing = PoolClient(directory, _SECONDS).listing(with_finished=True)
        except NoPoolError:
            continue
        own = (one for one in (*listing.runs, *listing.jobs) if one["name"])  # others' have none
        for one in own:
            yield str(one["name"])
            if one.get("array"):
                yield str(one["array"]["name"])
