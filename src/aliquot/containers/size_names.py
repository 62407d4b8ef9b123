"""Names of sizes that say what they are: `8gib-30pct`, `8gib`, `30pct`."""

from __future__ import annotations

import re

from aliquot.model.errors import InvalidValueError
from aliquot.model.units import Amount, parse_amount, parse_share

_SIZE = re.compile(
    r"(?P<memory>[0-9]+(?:\.[0-9]+)?(?:gib|mib|gb|mb))?(?:(?<=b)-)?(?:(?P<compute>[0-9]{1,3})pct)?",
    re.ASCII | re.IGNORECASE,
)


def parse_size(name: str) -> tuple[Amount | None, int]:
    """The memory and the percentage of compute time that a name says; None or 0: not said."""
    found = _SIZE.fullmatch(name)
    if not name or found is None or name.endswith("-"):
        raise InvalidValueError(
            f"{name!r} does not say a size",
            "Write memory and compute time as 8gib-30pct, 8gib or 30pct; or give --memory,"
            " --compute or both.",
        )
    memory, compute = found["memory"], found["compute"]
    return (
        None if memory is None else parse_amount(memory),
        0 if compute is None else parse_share(compute),
    )
