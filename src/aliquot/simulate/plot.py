"""Lines over a horizontal axis as an SVG file: all that the simulator's pictures need."""

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


@dataclass(frozen=True, slots=True)
class Line:
    """A named line; `steps` keep their value until the next point."""

    name: str
    points: Sequence[tuple[float, float]]
    steps: bool = False


def draw(title: str, across: str, up: str, lines: Sequence[Line]) -> str:
    """The picture, with percent on the vertical axis."""
    most = max((x for line in lines for x, _ in line.points), default=0.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 18, title),
        *_grid(most, across, up),
    ]
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="'
            f'{_points(line, most)}"/>'
        )
        parts.append(_text(LEFT + 10, TOP + 14 + 15 * number, line.name, colour=colour))
    return "\n".join([*parts, "</svg>", ""])


def _grid(most: float, across: str, up: str) -> list[str]:
    parts = []
    for step in range(5):
        y = _y(step / 4)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{25 * step}", anchor="end"))
        x = _x(step / 4 * most, most)
        parts.append(_text(x, HEIGHT - BOTTOM + 16, f"{step / 4 * most:.4g}", anchor="middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, across, anchor="middle"))
    parts.append(_text(WIDTH - RIGHT, 18, up, anchor="end"))
    return parts


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
