"""`aliquot simulate overcommit`: the same programs with and without over-commit of memory."""

from __future__ import annotations

import math
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING

from aliquot.cli.simulate import progress_bar
from aliquot.cli.tables import FigureTable, print_json, print_sentence
from aliquot.model import format_bytes
from aliquot.model.errors import InvalidValueError
from aliquot.model.grant import OVERCOMMIT_MOST
from aliquot.simulate.turns import Mix, compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.simulate.turns import Result, TurnMachine

TITLES = (
    "Programs",
    "Over-commit",
    "Time (min)",
    "Change",
    "Wait (min)",
    "Slower",
    "Host memory",
)  # as wide as a terminal of 80 columns


def parse_factors(text: str) -> list[float]:
    """The factors with commas between them, with 1 before them."""
    try:
        found = [float(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(math.isfinite(one) and 1 <= one <= OVERCOMMIT_MOST for one in found):
        raise InvalidValueError(
            f"{text!r} are no factors of over-commit",
            f"Write numbers from 1 to {OVERCOMMIT_MOST}, for example 1.25,1.5.",
        )
    return sorted({1.0, *found})


def run_overcommit(
    machine: TurnMachine, factors: Sequence[float], seeds: Sequence[int], *, json: bool
) -> None:
    """Run the same programs with each factor and seed, and print what came of it."""
    found: dict[Mix, list[dict[float, Result]]] = {mix: [] for mix in Mix}
    with progress_bar("comparing", shown=not json) as tell:
        for number, mix in enumerate(Mix):
            for done, seed in enumerate(seeds):
                tell((number * len(seeds) + done) / (len(Mix) * len(seeds)))
                found[mix].append(compare(machine, mix, factors, seed))
    if json:
        print_json(
            [
                {"programs": str(mix), "overcommit": factor, "seed": seed, **asdict(one[factor])}
                for mix, runs in found.items()
                for seed, one in zip(seeds, runs, strict=True)
                for factor in factors
            ]
        )
        return
    table = FigureTable(*TITLES)
    for mix, runs in found.items():
        for factor in factors:
            table.add_row(*_row(mix, factor, runs))
    table.print()
    print_sentence(
        "Time: from arrival to end; Wait: of it, until the start; both are means. Slower: how many "
        "times as long a program runs as alone on a GPU. Host memory: the most at a time. "
        "Notebooks pause most of the time. Trainings never do: two on one GPU share its time."
    )


def _row(mix: Mix, factor: float, runs: Sequence[dict[float, Result]]) -> tuple[str, ...]:
    mean = fmean(one[factor].completion for one in runs)
    without = fmean(one[1.0].completion for one in runs)
    return (
        str(mix),
        f"{factor:g}",
        f"{mean / 60:.0f}",
        "" if factor == 1 else f"{100 * (mean / without - 1):+.0f} %",
        f"{fmean(one[factor].wait for one in runs) / 60:.0f}",
        f"{fmean(one[factor].slowdown for one in runs):.2f}",
        format_bytes(max(one[factor].most_host_bytes for one in runs)),
    )
