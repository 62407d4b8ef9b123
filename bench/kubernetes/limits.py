"""The limits in limits.json: each with what was measured, the spread of the runs and the margin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def exceeded(bench: str, found: dict[str, Any]) -> list[str]:
    """A message for each limit of a benchmark that a result exceeds."""
    limits = json.loads(Path(__file__).with_name("limits.json").read_text("utf-8"))[bench]
    return [
        f"{name} is {found[name]:.2f}, and the limit is {one['highest']}"
        f" (measured before: {one['measured']})"
        for name, one in limits.items()
        if name in found and found[name] > one["highest"]
    ]
