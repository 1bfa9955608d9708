"""A chart of several lines over one axis, as the text of an SVG file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("#b04a4a", "#3f8459", "#4a6fb0", "#8a5ba8", "#b0803a", "#555555")
LEFT, RIGHT, TOP, BOTTOM = 56, 190, 44, 46  # around the plot area; the names of the lines are on the right
WIDTH, HEIGHT, LINE = 420, 260, 18  # of the plot area; distance of the names


@dataclass(frozen=True)
class Line:
    """A line through points with heights from 0 to 1; a ``cross`` marks a last point that could not be continued."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: str
    dashed: bool = False
    cross: bool = False


def line_chart(title: str, across: str, up: str, lines: Sequence[Line]) -> str:
    """Return the drawing; ``across`` and ``up`` are the names of the axes."""
    most = max((x for line in lines for x, _ in line.points), default=1.0) or 1.0
    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="14" font-weight="bold" fill="#222">{escape(title)}</text>',
    ]
    for tenths in range(0, 11, 2):
        y = _y(tenths / 10)
        parts.append(f'<path d="M{LEFT} {y:.1f} H{LEFT + WIDTH}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{tenths / 10:.1f}</text>')
    for quarter in range(5):
        x, value = LEFT + WIDTH * quarter / 4, f"{most * quarter / 4:,.0f}"
        parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle" fill="#555">{value}</text>')
    parts.append(
        f'<text x="{LEFT + WIDTH / 2}" y="{height - 8}" text-anchor="middle" fill="#222">{escape(across)}</text>'
    )
    parts.append(f'<text x="{LEFT}" y="{TOP - 8}" fill="#222">{escape(up)}</text>')
    for number, line in enumerate(lines):
        parts += _drawn(line, most) + _named(line, TOP + LINE * number)
    return "\n".join([*parts, "</svg>", ""])


def _y(value: float) -> float:
    return TOP + HEIGHT * (1 - value)


def _stroke(line: Line) -> str:
    return f'fill="none" stroke="{line.colour}" stroke-width="1.8"' + (' stroke-dasharray="5 4"' if line.dashed else "")


def _drawn(line: Line, most: float) -> list[str]:
    places = [(LEFT + WIDTH * x / most, _y(y)) for x, y in line.points]
    if not places:
        return []
    path = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    parts = [f'<path d="M{path}" {_stroke(line)}><title>{escape(line.name)}</title></path>']
    if line.cross:
        x, y = places[-1]
        parts.append(f'<path d="M{x - 4:.1f} {y - 4:.1f} l8 8 m0 -8 l-8 8" stroke="{line.colour}" stroke-width="2"/>')
    return parts


def _named(line: Line, y: int) -> list[str]:
    x = LEFT + WIDTH + 12
    return [
        f'<path d="M{x} {y} h22" {_stroke(line)}/>',
        f'<text x="{x + 28}" y="{y + 4}" fill="#222">{escape(line.name)}</text>',
    ]
