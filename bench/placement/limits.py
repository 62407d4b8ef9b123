"""The limits that the benches of this folder are held to, from `limits.json`.

Each limit names the least and the most that pass (`limit`), what was `measured`, the `spread` of
those runs, and the `margin`: how much worse than measured a run may be.
"""

from __future__ import annotations

import json
from pathlib import Path

Limits = dict[str, tuple[float, float]]


def read_limits(*path: str) -> Limits:
    """The limits of one bench, by figure: the least and the most that pass."""
    found = json.loads(Path(__file__).with_name("limits.json").read_text(encoding="utf-8"))
    for name in path:
        found = found.get(name, {})
    return {name: (one["limit"][0], one["limit"][1]) for name, one in found.items()}


def broken(limits: Limits, figures: dict[str, float]) -> list[str]:
    """What is outside its limit, one sentence each."""
    return [
        f"{name} is {figures[name]:.2f}, not {low:g} to {high:g}"
        for name, (low, high) in limits.items()
        if not low <= figures[name] <= high
    ]
