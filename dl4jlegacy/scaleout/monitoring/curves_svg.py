"""The curves of runs as one self-contained SVG: a panel for each measure, with the runs drawn over each other.

A style sheet follows the reader's preference for dark or light. Runs differ in colour and in dashes, so that readers
who cannot see the colours can tell them apart too. A long history is drawn as the mean of neighbouring versions, with a
band from their minimum to their maximum.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from dl4jlegacy.errors import counted
from dl4jlegacy.scaleout.monitoring.curves import LINEAR, MEASURES, Column, Curve, Over, RunCurves, columns_of

__all__ = ["MOST_RUNS", "curves_svg", "described"]

_WIDTH, _LEFT, _RIGHT = 760, 76, 20
_PANEL, _HEAD, _FOOT = 170, 44, 30  # height of a panel's inside; of the space above it; below the last one
_COLUMNS = 332  # maximum per curve: each is two units wide
_ROW, _TOP = 18, 52  # height of a row of the legend; of the title
_LONGEST = 90  # characters of a line of text
LIGHT = ("#0b62a4", "#a8480f", "#1a7440", "#8a3a9c", "#b01c3c", "#006a73", "#6b5a00", "#444c56")
DARK = ("#6cb6ff", "#f0a060", "#5fd08f", "#d08be0", "#ff8a9c", "#4fd0d8", "#d6c04a", "#b7c0cb")
DASHES = ("none", "6 3", "2 2", "8 3 2 3")
MOST_RUNS = len(LIGHT) * len(DASHES)
"""Maximum number of runs that can be told apart."""
GROUNDS = {"light": "#ffffff", "dark": "#12171d"}
TEXTS = {"light": ("#1b2430", "#56636f"), "dark": ("#e3e9f0", "#9aa8b8")}
_LINES = {"light": "#d5dce4", "dark": "#323d49"}
_UNPRINTABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_OVER = {"examples": "examples trained on", "rounds": "rounds", "seconds": "seconds of training"}


class _Axis(NamedTuple):
    """A mapping from values to positions: ``low`` to ``start``, ``high`` to ``end``; logarithmic if ``log``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return about five round values between both ends."""
        return _powers(self.low, self.high) if self.log else _steps(self.low, self.high)


def curves_svg(runs: Sequence[RunCurves], *, over: Over = "examples", log: bool = False, title: str = "") -> str:
    """Return the drawing of at most ``MOST_RUNS`` runs as text, for UTF-8.

    Args:
        runs: with curves over ``over``.
        log: use a logarithmic scale in panels whose values are all positive.
        title: accessible name, any text; "": the runs' names.
    """
    title = title or f"Training curves of {', '.join(run.name for run in runs)}"
    panels = [measure for measure in MEASURES if any(measure in run.curves for run in runs)]
    top = _TOP + _ROW * len(runs)
    height = top + (_HEAD + _PANEL) * len(panels) + _FOOT + 14
    places = [x for run in runs for curve in run.curves.values() for x in (curve.xs[0], curve.xs[-1])]
    across = _Axis(*_range([*places, 0.0]), _LEFT, _WIDTH - _RIGHT)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12" role="img" aria-labelledby="title desc">',
        f'<title id="title">{_text(title)}</title>',
        f'<desc id="desc">{_text(" ".join(described(run) for run in runs))}</desc>',
        f"<style>{_style()}</style>",
        f'<rect class="ground" width="{_WIDTH}" height="{height}"/>',
        f'<text class="text" x="20" y="30" font-size="15" font-weight="bold">{_text(_shortened(title))}</text>',
        *_legend(runs),
    ]
    for number, measure in enumerate(panels):
        parts += _panel(runs, measure, across, top + _HEAD + (_HEAD + _PANEL) * number, log=log)
    bottom = height - 12
    parts.append(f'<text class="faint" x="{_WIDTH / 2:.0f}" y="{bottom}" text-anchor="middle">{_OVER[over]}</text>')
    return "\n".join([*parts, "</svg>", ""])


def described(run: RunCurves) -> str:
    """Return a run's curves as a sentence, for readers who cannot see them."""
    said = [f"{run.name}: {counted(run.versions, 'version')}, {counted(run.examples, 'example')}"]
    for measure, curve in run.curves.items():
        first, last, least, most = curve.ys[0], curve.ys[-1], min(curve.ys), max(curve.ys)
        if least == most:
            said.append(f"{measure} {first:.4g}")
        else:
            said.append(f"{measure} {first:.4g} to {last:.4g}, between {least:.4g} and {most:.4g}")
    return f"{'; '.join(said)}."


def _style() -> str:
    def rules(ground: str, texts: tuple[str, str], line: str, colours: Sequence[str]) -> str:
        each = "".join(
            f".c{number} {{ stroke: {colour}; }} .b{number} {{ fill: {colour}; }} "
            for number, colour in enumerate(colours)
        )
        return (
            f".ground {{ fill: {ground}; }} .text {{ fill: {texts[0]}; }} .faint {{ fill: {texts[1]}; }} "
            f".grid {{ stroke: {line}; }} .phase {{ stroke: {texts[1]}; }} {each}"
        )

    light = rules(GROUNDS["light"], TEXTS["light"], _LINES["light"], LIGHT)
    dark = rules(GROUNDS["dark"], TEXTS["dark"], _LINES["dark"], DARK)
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n"


def _text(text: str) -> str:
    """Return any text as the text of an XML element."""
    return escape(_UNPRINTABLE.sub("\ufffd", text))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _look(number: int) -> tuple[int, str]:
    """Return the colour class and the dash pattern of a run."""
    return number % len(LIGHT), DASHES[number // len(LIGHT) % len(DASHES)]


def _legend(runs: Sequence[RunCurves]) -> Iterator[str]:
    for number, run in enumerate(runs):
        colour, dashes = _look(number)
        y = _TOP + _ROW * number
        yield (
            f'<g><title>{_text(described(run))}</title><line class="c{colour}" x1="20" x2="52" y1="{y}" y2="{y}" '
            f'stroke-width="2.5" stroke-dasharray="{dashes}"/>'
            f'<text class="text" x="62" y="{y + 4}">{_text(_shortened(run.name))}</text></g>'
        )


def _panel(runs: Sequence[RunCurves], measure: str, across: _Axis, top: float, *, log: bool) -> Iterator[str]:
    """Yield the parts of the panel of one measure, whose inside begins at ``top``."""
    curves = {number: run.curves[measure] for number, run in enumerate(runs) if measure in run.curves}
    values = [y for curve in curves.values() for y in curve.ys]
    log = log and measure not in LINEAR and min(values) > 0
    low, high = _log_range(values) if log else _range(values)
    up = _Axis(low, high, top + _PANEL, top, log)
    scale = ", logarithmic" if log else ""
    yield f'<text class="text" x="{_LEFT}" y="{top - 12}" font-weight="bold">{measure}{scale}</text>'
    middle = top + _PANEL / 2
    yield (
        f'<text class="faint" transform="translate(14 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{measure.rpartition(' ')[2]}</text>"
    )
    for value in up.ticks():
        y = up.at(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="faint" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>'
    for value in across.ticks():
        x = across.at(value)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + _PANEL}"/>'
        yield f'<text class="faint" x="{x:.1f}" y="{top + _PANEL + 15}" text-anchor="middle">{_number(value)}</text>'
    yield from _phases([runs[number] for number in curves], across, top)
    for number, curve in curves.items():
        yield from _line(curve, number, f"{runs[number].name}: {measure}", across, up)


def _phases(runs: Sequence[RunCurves], across: _Axis, top: float) -> Iterator[str]:
    """Yield the marks where phases begin; none if the runs' phases differ, since a mark would not name its run."""
    if len({run.phases for run in runs}) != 1:
        return
    for place, name in runs[0].phases:
        x = across.at(place)
        yield (
            f'<line class="phase" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + _PANEL}" stroke-dasharray="4 4"/>'
            f'<text class="faint" x="{x + 4:.1f}" y="{top + 11}" font-size="10">{_text(name)}</text>'
        )


def _line(curve: Curve, number: int, name: str, across: _Axis, up: _Axis) -> Iterator[str]:
    """Yield a curve: its line, a band if several points share a column, and marks if there are few points."""
    colour, dashes = _look(number)
    columns = columns_of(zip(curve.xs, curve.ys, strict=True), across.low, across.high, _COLUMNS)
    places = [(across.at(column.x), up.at(column.y)) for column in columns]
    yield f"<g><title>{_text(name)}, last {curve.ys[-1]:.4g}</title>"
    if len(columns) < len(curve.xs):
        yield f'<path class="b{colour}" opacity="0.16" d="{_band(columns, across, up)}"/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield (
        f'<polyline class="c{colour}" points="{path}" fill="none" stroke-width="1.8" stroke-linejoin="round" '
        f'stroke-dasharray="{dashes}"/>'
    )
    if len(places) <= _COLUMNS // 8:
        yield from (f'<circle class="b{colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
    yield "</g>"


def _band(columns: Sequence[Column], across: _Axis, up: _Axis) -> str:
    upper = [f"{across.at(each.x):.1f} {up.at(each.most):.1f}" for each in columns]
    lower = [f"{across.at(each.x):.1f} {up.at(each.least):.1f}" for each in reversed(columns)]
    return f"M{' L'.join([*upper, *lower])} Z"


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return two different values that enclose all values."""
    low, high = min(values), max(values)
    if high > low:
        return low, high
    room = abs(low) / 10 or 1.0
    return low - room, high + room


def _log_range(values: Sequence[float]) -> tuple[float, float]:
    """Return two different positive values that enclose all values, for a logarithmic axis."""
    low, high = min(values), max(values)
    return (low, high) if high > low * 1.001 else (low / 2, high * 2)


def _steps(low: float, high: float) -> list[float]:
    """Return about five multiples of 1, 2 or 5 times a power of ten between two values."""
    rough = (high - low) / 7
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Return powers of ten between two values; if too few, also twice and five times these, or equal steps."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        found = [factor * 10.0**decade for decade in decades for factor in factors]
        found = [value for value in found if low <= value <= high]
        if len(found) >= 3:
            return found[:: -(-len(found) // 8)]
    return _steps(low, high)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"
