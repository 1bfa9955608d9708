"""Draws a network as SVG: a box for every layer and vertex, arrows from input to output, top to bottom.

Layered drawing by Sugiyama, Tagawa and Toda 1981: every box is below all of its inputs, arrows that pass boxes get
their own lane, and lanes are ordered by the mean position of their neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from dl4jlegacy.errors import counted
from dl4jlegacy.nn.summary import NetworkSummary, SummaryRow

__all__ = ["BOX", "Arrow", "Box", "Drawing", "arrange", "lines_of", "network_svg"]

BOX = _WIDTH, _HEIGHT = 190, 58
_LANE = 24  # width of an arrow's lane
_GAP, _STEP, _MARGIN = 26, 96, 20  # between neighbouring boxes; between levels; around the drawing
_SWEEPS = 6
_EM, _BOLD = 0.6, 1.1  # mean letter width relative to the font size; factor for bold
_COLOURS = {  # fill and border colour by kind of box
    "input": ("#eef2f7", "#5b6b7f"),
    "vertex": ("#f3eefb", "#7a5ba8"),
    "output": ("#fdeeee", "#b04a4a"),
    "layer": ("#eaf5ee", "#3f8459"),
    "frozen": ("#eef7fb", "#4a8fb0"),
}


@dataclass(slots=True)
class _Place:
    """A box, or the point where an arrow passes a level; ``x`` is its centre."""

    row: SummaryRow | None
    level: int
    sources: list[_Place]
    x: float = 0.0

    @property
    def width(self) -> int:
        return _WIDTH if self.row is not None else _LANE


@dataclass(frozen=True, slots=True)
class Box:
    """The box of a layer, a vertex or an input; ``x`` and ``y`` are its upper left corner.

    ``kind`` is "input", "vertex", "output", "frozen" or "layer".
    """

    row: SummaryRow
    kind: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Arrow:
    """A line from a box to one of its readers: an SVG path; ``ends`` is False if it only passes a level."""

    path: str
    ends: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    """The layout of a network's drawing; all boxes have the size ``BOX`` (width, height)."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def arrange(summary: NetworkSummary, *, least_width: float = 0.0, top: float = _MARGIN // 2) -> Drawing:
    """Return the layout of a network's boxes and arrows.

    Args:
        summary: of the network.
        least_width: minimum width of the drawing, without the margins.
        top: y coordinate of the first box.
    """
    levels = _levels(summary.rows)
    width = _arrange(levels, least_width) + 2 * _MARGIN
    places = [place for level in levels for place in level]
    return Drawing(
        width=width,
        height=top + _STEP * (len(levels) - 1) + _HEIGHT + _MARGIN // 2,
        boxes=tuple(
            Box(place.row, _kind(place.row, summary.outputs), place.x - _WIDTH / 2, _y(place, top))
            for place in places
            if place.row is not None
        ),
        arrows=tuple(_arrow(source, place, top) for place in places for source in place.sources),
    )


def network_svg(summary: NetworkSummary, title: str) -> str:
    """Return the drawing of a network as the text of an SVG file; ``title`` is its accessible name."""
    subtitle = f"{counted(summary.parameters, 'parameter')}, {counted(summary.multiply_adds, 'multiply-add')}"
    least = max(len(title) * 14 * _EM * _BOLD, len(subtitle) * 12 * _EM)
    drawing = arrange(summary, least_width=least, top=_MARGIN + 44)
    width, height = drawing.width, drawing.height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_MARGIN}" y="{_MARGIN + 12}" font-size="14" font-weight="bold" fill="#222">{escape(title)}</text>',
        f'<text x="{_MARGIN}" y="{_MARGIN + 28}" fill="#555">{subtitle}</text>',
    ]
    parts += [_arrow_svg(arrow) for arrow in drawing.arrows]
    parts += [_box_svg(box) for box in drawing.boxes]
    return "\n".join([*parts, "</svg>", ""])


def _y(place: _Place, top: float) -> float:
    return top + _STEP * place.level


def _levels(rows: Sequence[SummaryRow]) -> list[list[_Place]]:
    """Return boxes and passing arrows by level; a box is one level below its lowest input."""
    boxes: dict[str, _Place] = {}
    levels: list[list[_Place]] = []
    for row in rows:
        level = 1 + max((boxes[name].level for name in row.inputs), default=-1)
        box = _Place(row, level, [])
        while len(levels) <= level:
            levels.append([])
        for name in row.inputs:
            source = boxes[name]
            for between in range(source.level + 1, level):
                source = _Place(None, between, [source])
                levels[between].append(source)
            box.sources.append(source)
        levels[level].append(box)
        boxes[row.name] = box
    return levels


def _arrange(levels: list[list[_Place]], least: float) -> float:
    """Order every level by the mean position of the connected places, and centre the levels.

    Return the total width, which is at least ``least``.
    """
    readers: dict[int, list[_Place]] = {}
    for level in levels:
        for place in level:
            for source in place.sources:
                readers.setdefault(id(source), []).append(place)
        _spread(level)
    for sweep in range(_SWEEPS):
        downward = sweep % 2 == 0
        for level in levels if downward else reversed(levels):
            wanted = {}
            for place in level:
                near = place.sources if downward else readers.get(id(place), [])
                wanted[id(place)] = sum(other.x for other in near) / len(near) if near else place.x
            level.sort(key=lambda place: wanted[id(place)])
            _spread(level)
    widest = max(least, *(level[-1].x + level[-1].width / 2 for level in levels))
    for level in levels:
        shift = (widest - level[-1].x - level[-1].width / 2) / 2 + _MARGIN
        for place in level:
            place.x += shift
    return widest


def _spread(level: list[_Place]) -> None:
    left = 0.0
    for place in level:
        place.x = left + place.width / 2
        left += place.width + _GAP


def _arrow(source: _Place, place: _Place, top: float) -> Arrow:
    start = _y(source, top) + _HEIGHT
    end = _y(place, top) - 2
    middle = (start + end) / 2
    path = (
        f"M{source.x:.1f} {start:.1f} C{source.x:.1f} {middle:.1f} {place.x:.1f} {middle:.1f} {place.x:.1f} {end:.1f}"
    )
    if place.row is None:  # straight on past the boxes of that level
        path += f" L{place.x:.1f} {_y(place, top) + _HEIGHT:.1f}"
    return Arrow(path, place.row is not None)


def _arrow_svg(arrow: Arrow) -> str:
    tip = ' marker-end="url(#tip)"' if arrow.ends else ""
    return f'<path d="{arrow.path}" fill="none" stroke="#555" stroke-width="1.3"{tip}/>'


def _kind(row: SummaryRow, outputs: Sequence[str]) -> str:
    if row.kind == "network input":
        return "input"
    if row.kind.endswith("_vertex"):
        return "vertex"
    if row.frozen:
        return "frozen"
    return "output" if row.name in outputs else "layer"


def lines_of(row: SummaryRow) -> tuple[str, str, str]:
    """Return the three lines of text in a box: name, kind with shape, and parameters ("": none)."""
    detail = f"{row.parameters:,} parameters" if row.parameters else ""
    first, second, third = (
        text if len(text) <= 30 else f"{text[:29]}…" for text in (row.name, f"{row.kind}: {row.shape()}", detail)
    )
    return first, second, third


def _box_svg(box: Box) -> str:
    fill, border = _COLOURS[box.kind]
    row, x, y, middle = box.row, box.x, box.y, box.x + _WIDTH / 2
    styles = (("bold", 17), ("normal", 33), ("normal", 49))
    texts = "".join(
        f'<text x="{middle:.1f}" y="{y + down:.1f}" text-anchor="middle" font-weight="{weight}" fill="#222">'
        f"{escape(text)}</text>"
        for text, (weight, down) in zip(lines_of(row), styles, strict=True)
        if text
    )
    hover = f"<title>{escape(row.name)}: {escape(row.kind)}, {row.multiply_adds:,} multiply-adds</title>"
    rect = f'<rect x="{x:.1f}" y="{y:.1f}" width="{_WIDTH}" height="{_HEIGHT}" rx="7" fill="{fill}" stroke="{border}"/>'
    return f"<g>{hover}{rect}{texts}</g>"
