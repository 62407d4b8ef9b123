"""Whether programs get the share of the GPU that was asked for.

By the arbiter's word (the time each slice held the GPU) over the whole window and over every second
of it; and by the programs' own: each one's speed over its speed alone, among those that keep the
GPU busy when they are alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cases import Case, Context
from programs import Share, Spec
from witness import LEAD_SECONDS, TAIL_SECONDS, Seen, together

from aliquot.model import Policy

WINDOW_SECONDS, QUICK_SECONDS = 10.0, 4.0
POINTS, POINTS_IN_A_SECOND, POINTS_BY_SPEED = 0.5, 2.0, 1.5
MOST_CPU_PERCENT = 10.0

MM = [Spec("mm", number) for number in range(1, 9)]
TRAIN = [Spec("train", 1), Spec("train", 2)]
DECODE = [Spec("decode", 1), Spec("decode", 2)]
TINY, FOUR, FORTY = Spec("tiny"), Spec("four"), Spec("forty")
ONE_QUEUE = [Spec("four", queues=1), Spec("mm", queues=1)]
TWO_PROCESSES = Spec("mm", processes=2)

PAIRS: dict[str, tuple[Spec, Spec]] = {
    "mm+mm": (MM[0], MM[1]),
    "train+train": (TRAIN[0], TRAIN[1]),
    "decode+decode": (DECODE[0], DECODE[1]),
    "tiny+mm": (TINY, MM[0]),
    "four+mm": (FOUR, MM[0]),
    "train+mm": (TRAIN[0], MM[0]),
    "train+decode": (TRAIN[0], DECODE[0]),
}
SPLITS = ((30, 70), (10, 90), (50, 50))


@dataclass(frozen=True)
class Row:
    """Programs at work together, with the settings of each and the percent it must get."""

    label: str
    programs: Sequence[Spec]
    shares: Sequence[Share]
    expected: Sequence[float]
    idle: Mapping[Spec, Share] = field(default_factory=dict)  # granted, and not at work

    @property
    def is_hard(self) -> bool:
        return any(share.policy is Policy.HARD for share in self.shares)


def asked(label: str, programs: Sequence[Spec], percents: Sequence[int]) -> Row:
    words = "/".join(map(str, percents))
    return Row(f"{label} {words}", programs, [Share(one) for one in percents], percents)


def rows() -> list[Row]:
    """All of them, the more telling first: where time is short the last are left out."""
    hard = Share(30, Policy.HARD)
    mixed = [TRAIN[0], DECODE[0], MM[0]]
    eight = [*TRAIN, *DECODE, *MM[:3], FOUR]
    return [
        *(asked(label, pair, SPLITS[0]) for label, pair in PAIRS.items()),
        asked("mm+mm+mm", MM[:3], (50, 30, 20)),
        asked("train+decode+mm", mixed, (50, 30, 20)),
        Row("8 mm 12.5 each", MM, [Share()] * 8, [12.5] * 8),
        Row("8 mixed 12.5 each", eight, [Share()] * 8, [12.5] * 8),
        asked("one hardware queue, four+mm", ONE_QUEUE, (30, 70)),
        asked("40 streams+mm", (FORTY, MM[0]), (30, 70)),
        asked("two processes+mm", (TWO_PROCESSES, MM[0]), (30, 70)),
        Row("hard 30 alone, mm", MM[:1], [hard], [30]),
        Row("hard 30 alone, train", TRAIN[:1], [hard], [30]),
        Row("hard 30 beside elastic, mm", MM[:2], [hard, Share()], [30, 70]),
        Row("hard 30 beside elastic 20, mm", MM[:2], [hard, Share(20)], [30, 70]),
        Row(
            "30/20 at work, 50 idle, mm",
            MM[1:3],
            [Share(30), Share(20)],
            [60, 40],
            {MM[0]: Share(50)},
        ),
        *(asked(label, pair, split) for split in SPLITS[1:] for label, pair in PAIRS.items()),
    ]


def cases(*, quick: bool) -> list[Case]:
    seconds = QUICK_SECONDS if quick else WINDOW_SECONDS
    length = seconds + LEAD_SECONDS + TAIL_SECONDS + 1

    def case(row: Row) -> Case:
        return Case(
            f"accuracy: {row.label}",
            "accuracy",
            length,
            (*row.programs, *row.idle),
            lambda context: measure(context, row, seconds),
        )

    return [case(row) for row in rows()]


def measure(context: Context, row: Row, seconds: float) -> None:
    """Both witnesses' words on one row."""
    alone = {spec: context.speeds.of(spec).rate for spec in row.programs}
    shares = dict(zip(row.programs, row.shares, strict=True))
    with context.speeds.monitor() as monitor:
        seen = together(context.stage, shares, seconds, idle=row.idle)
    got = by_arbiter(seen, row, seen.start, seen.end)
    worst = max(
        abs(one - wanted)
        for start, end in seen.windows(1.0)
        for one, wanted in zip(by_arbiter(seen, row, start, end), row.expected, strict=True)
    )
    speeds = {spec: seen.rate(spec) / alone[spec] for spec in row.programs}
    told = by_speed(context, row, speeds)
    context.found = {
        "label": row.label,
        "programs": [spec.name for spec in row.programs],
        "asked": list(row.expected),
        "got": [round(one, 3) for one in got],
        "worst_second": round(worst, 3),
        "got_by_speed": told,
        "speeds": [round(speeds[spec], 4) for spec in row.programs],
        "summed": round(sum(speeds.values()), 4),
        "sm_mhz": monitor.sm_mhz(),
        "sm_mhz_alone": [context.speeds.of(spec).sm_mhz for spec in row.programs],
        "credit_cpu_percent": round(100 * seen.credit_cpu_ratio(), 2),
        "handovers_per_second": round(seen.handovers_per_second(), 1),
        "fallbacks": [seen.fallbacks(spec) for spec in row.programs],
        "gates": [seen.samples[-1].gates.get(spec.name) for spec in row.programs],
        "raw": seen.raw(),
    }
    check(context, row, got, worst, told)


def by_arbiter(seen: Seen, row: Row, start: float, end: float) -> list[float]:
    """Percent each had: of the clock where one is capped, else of what all had together."""
    ratios = [seen.used_ratio(spec, start, end) for spec in row.programs]
    whole = 1.0 if row.is_hard else sum(ratios)
    return [100 * ratio / whole if whole else 0.0 for ratio in ratios]


def by_speed(context: Context, row: Row, speeds: dict[Spec, float]) -> list[float | None]:
    """Percent each had by its own speed, among those that keep the GPU busy alone."""
    counted = [spec for spec in row.programs if context.speeds.keeps_busy(spec)]
    whole = sum(speeds[spec] for spec in counted)
    expected = dict(zip(row.programs, row.expected, strict=True))
    part = sum(expected[spec] for spec in counted)
    if row.is_hard:
        whole, part = 1.0, 100.0
    elif len(counted) == 1:  # it says nothing to be all of one
        counted = []
    return [
        round(part * speeds[spec] / whole, 3) if spec in counted and whole else None
        for spec in row.programs
    ]


def check(
    context: Context, row: Row, got: list[float], worst: float, told: list[float | None]
) -> None:
    off = max(abs(one - wanted) for one, wanted in zip(got, row.expected, strict=True))
    context.at_most("the arbiter's share is off by", off, POINTS, "points")
    context.at_most("in the worst second", worst, POINTS_IN_A_SECOND, "points")
    counted = [
        abs(one - wanted)
        for one, wanted, share in zip(told, row.expected, row.shares, strict=True)
        if one is not None and (share.policy is Policy.HARD or not row.is_hard)
    ]
    if counted:
        context.at_most("by the programs' speed off by", max(counted), POINTS_BY_SPEED, "points")
    context.at_most("fallbacks", sum(context.found["fallbacks"]), 0)
    context.at_most("arbiter's CPU", context.found["credit_cpu_percent"], MOST_CPU_PERCENT, "%")
    context.holds("gates work", value=all(one == "work" for one in context.found["gates"]))
