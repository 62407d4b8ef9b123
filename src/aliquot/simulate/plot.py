"""Lines over a horizontal axis as an SVG file: all that the simulator's plots need."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 34, 44
FONT = 'font-family="sans-serif" font-size="12"'
COLOURS = ("#0b6e99", "#c8553d", "#588157", "#8a5a9e", "#b08900", "#444444")

MARKS = 7  # at most, beside 0
MINUTE = 1 / 60
SECOND = 1 / 3600
CLOCK_STEPS = (
    *(SECOND * one for one in (1, 2, 5, 10, 15, 30)),
    *(MINUTE * one for one in (1, 2, 5, 10, 15, 30)),
    *(1.0, 2.0, 3.0, 4.0, 6.0, 12.0),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A named line; `steps` keep their value until the next point."""

    name: str
    points: Sequence[tuple[float, float]]
    steps: bool = False


def draw(  # noqa: PLR0913 - a plot has this many parts
    title: str,
    across: str,
    up: str,
    lines: Sequence[Line],
    *,
    low: bool = False,
    clock: bool = False,
) -> str:
    """The plot, with percent on the vertical axis; the lines' names at its top, or low down.

    With a clock, what goes across are hours, marked at whole hours, minutes or seconds.
    """
    most = max((x for line in lines for x, _ in line.points), default=0.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 18, title),
        *_grid(most, across, up, clock=clock),
    ]
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="'
            f'{_points(line, most)}"/>'
        )
        x, y = (WIDTH - 260, HEIGHT - BOTTOM - 15 * len(lines)) if low else (LEFT + 10, TOP + 14)
        parts.append(_text(x, y + 15 * number, line.name, colour=colour))
    return "\n".join([*parts, "</svg>", ""])


def _grid(most: float, across: str, up: str, *, clock: bool) -> list[str]:
    parts = []
    for step in range(5):
        y = _y(step / 4)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{25 * step}", anchor="end"))
    step_across = _step(most, clock=clock)
    for number in range(int(most / step_across * (1 + 1e-9)) + 1):
        x = _x(number * step_across, most)
        mark = _mark(number * step_across, step_across, clock=clock)
        parts.append(_text(x, HEIGHT - BOTTOM + 16, mark, anchor="middle"))
    unit = " (h:mm:ss)" if clock and step_across < MINUTE else " (h:mm)"
    across += unit if clock and step_across < 1 else ""
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, across, anchor="middle"))
    parts.append(_text(WIDTH - RIGHT, 18, up, anchor="end"))
    return parts


def _step(most: float, *, clock: bool) -> float:
    """The least round step with which an axis of this length has few enough marks."""
    steps = (one for one in CLOCK_STEPS if clock)
    tens = (10.0**power * part for power in range(-9, 16) for part in (1, 2, 5))
    days = (24 * one for one in tens if one >= 1)
    return next(one for one in (*steps, *(days if clock else tens)) if most / one <= MARKS)


def _mark(value: float, step: float, *, clock: bool) -> str:
    if not clock or step >= 1:
        return f"{value:.10g}"
    seconds = round(value * 3600)
    minutes = f"{seconds // 3600}:{seconds % 3600 // 60:02}"
    return minutes if step >= MINUTE else f"{minutes}:{seconds % 60:02}"


def _points(line: Line, most: float) -> str:
    made = []
    before: float | None = None
    for x, y in line.points:
        if line.steps and before is not None:
            made.append(f"{_x(x, most):.1f},{_y(before):.1f}")
        made.append(f"{_x(x, most):.1f},{_y(y):.1f}")
        before = y
    return " ".join(made)


def _x(value: float, most: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * value / most


def _y(value: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(1.0, value)


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#222") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">'
        f"{escape(text)}</text>"
    )
