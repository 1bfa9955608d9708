"""A run's statistics as one self-contained HTML page: table, timeline, histograms.

All texts of the run are escaped, here or by the page's script, which sets text content and never markup.

Legacy: ``StatsUtils.exportStatsAsHtml``, whose page was "Deeplearning4j - Spark Training Analysis".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from dl4jlegacy.errors import counted
from dl4jlegacy.scaleout.monitoring.stats import PhaseStats, TrainingStats, duration
from dl4jlegacy.scaleout.monitoring.stats_trace import lanes
from dl4jlegacy.system.strict_json import to_json

__all__ = ["MOST_SHOWN", "histogram", "stats_page"]

MOST_SHOWN = 100_000
"""Maximum number of events on the timeline, the newest ones; table and histograms include all."""
_BINS = 20
_WIDTH, _HEIGHT = 300, 110

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --text: #1b2430; --faint: #5d6b7c; --line: #d5dce4; --l: 46%; }
:root[data-theme="dark"] { color-scheme: dark; --ground: #12171d; --text: #e3e9f0; --faint: #9aa8b8; --line: #323d49;
  --l: 62%; }
:root[data-theme="light"] { color-scheme: light; }
@media (prefers-color-scheme: dark) { :root:not([data-theme="light"]) { --ground: #12171d; --text: #e3e9f0;
  --faint: #9aa8b8; --line: #323d49; --l: 62%; } }
body { margin: 0 auto; padding: 1rem 1.5rem; max-width: 90rem; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin-top: 2rem; }
p, figcaption, .faint { color: var(--faint); } button { font: inherit; }
.wide { overflow-x: auto; } table { border-collapse: collapse; } caption { text-align: left; color: var(--faint); }
th, td { padding: 0.2rem 0.8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap;
  font-variant-numeric: tabular-nums; } th:first-child, td:first-child { text-align: left; }
.chip { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.4em; border-radius: 2px; }
fieldset { border: 1px solid var(--line); display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; }
#timeline { display: block; width: 100%; margin-top: 0.6rem; border: 1px solid var(--line); touch-action: none; }
:focus-visible { outline: 2px solid Highlight; outline-offset: 1px; }
svg text { fill: var(--text); font: 11px system-ui, sans-serif; } svg text.faint { fill: var(--faint); }
svg line { stroke: var(--line); } #chosen { min-height: 1.5em; overflow-wrap: anywhere; color: var(--text); }
.histograms { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; width: 300px; overflow-wrap: anywhere; }
"""

_SCRIPT = """
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement, svg = document.getElementById("timeline");
const chosen = document.getElementById("chosen"), LABEL = 190, ROW = 22, HEAD = 24;
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
const own = data.lanes.map(() => []);
for (const event of data.events) own[event[0]].push(event);
const end = data.events.reduce((most, e) => Math.max(most, e[2] + e[3]), 1), hidden = new Set();
let from = 0, to = end, lane = 0, at = -1, dragged = null;
function node(name, given, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in given) made.setAttribute(key, given[key]);
  if (text !== undefined) made.textContent = text;
  return made;
}
function shown(us) {
  return us >= 1e6 ? (us / 1e6).toPrecision(4) + " s" : us >= 1e3 ? (us / 1e3).toPrecision(3) + " ms" : us + " us";
}
function first(events, time) {
  let low = 0, high = events.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (events[middle][2] < time) low = middle + 1; else high = middle;
  }
  return Math.max(0, low - 1);
}
function draw() {
  const width = Math.max(400, svg.clientWidth), inner = width - LABEL, scale = inner / (to - from);
  const parts = [], height = HEAD + ROW * own.length + 6;
  svg.setAttribute("viewBox", "0 0 " + width + " " + height);
  svg.setAttribute("height", height);
  const rough = (to - from) / 6, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => power * factor >= rough);
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
    const x = LABEL + (t - from) * scale;
    parts.push(node("line", {x1: x, x2: x, y1: HEAD - 6, y2: height}));
    parts.push(node("text", {x: x + 3, y: 14, class: "faint"}, shown(Math.round(t))));
  }
  own.forEach((events, row) => {
    const y = HEAD + row * ROW, label = node("text", {x: 6, y: y + 15}, data.labels[row]);
    label.append(node("title", {}, data.lanes[row].join(", ")));
    if (row === lane) label.setAttribute("font-weight", "bold");
    parts.push(label);
    let last = -1;
    for (let i = first(events, from); i < events.length && events[i][2] <= to; i++) {
      const event = events[i];
      const x = Math.max(0, (event[2] - from) * scale), right = Math.min(inner, (event[2] + event[3] - from) * scale);
      if (hidden.has(event[1]) || right < 0 || right - last < 0.4) continue;
      const begins = Math.max(x, last), rect = node("rect", {x: LABEL + begins, y: y + 2, height: ROW - 5,
        width: Math.max(0.5, right - begins), fill: data.colours[event[1]]});
      rect.event = [row, i];
      parts.push(rect);
      last = right;
    }
    const event = row === lane ? events[at] : undefined;
    if (event && event[2] <= to && event[2] + event[3] >= from) {
      const x = Math.max(0, (event[2] - from) * scale), right = Math.min(inner, (event[2] + event[3] - from) * scale);
      parts.push(node("rect", {x: LABEL + x, y: y + 1, height: ROW - 3, width: Math.max(2, right - x), fill: "none",
        stroke: "currentColor", "stroke-width": 2}));
    }
  });
  parts.push(node("line", {x1: LABEL, x2: LABEL, y1: 0, y2: height}));
  svg.replaceChildren(...parts);
}
let asked = false;
function redraw() { if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; draw(); }); } }
function look(start, length) {
  length = Math.min(end, Math.max(5, length));
  from = Math.min(Math.max(0, start), end - length); to = from + length; redraw();
}
function zoom(factor, middle) { look(middle - (middle - from) * factor, (to - from) * factor); }
function choose(row, index) {
  const events = own[row];
  if (!events) return;
  lane = row; at = Math.min(Math.max(index, events.length ? 0 : -1), events.length - 1);
  const event = events[at];
  if (event) {
    chosen.textContent = data.phases[event[1]] + ": " + shown(event[3]) + " at " + shown(event[2]) + ", " +
      (event[4] === null ? "no round" : "round " + event[4]) + (event[5] === null ? "" : ", slot " + event[5]) +
      " (" + data.lanes[row].join(", ") + ")";
    if (event[2] + event[3] < from || event[2] > to) look(event[2] - (to - from) / 2, to - from);
  }
  redraw();
}
function time(mouse) {
  const box = svg.getBoundingClientRect();
  return from + Math.max(0, mouse.clientX - box.left - LABEL) / Math.max(1, box.width - LABEL) * (to - from);
}
svg.addEventListener("keydown", key => {
  const length = to - from, jump = (own[lane] || [])[at], near = () => first(own[lane] || [], (from + to) / 2);
  const steps = {
    ArrowLeft: () => look(from - length / 5, length), ArrowRight: () => look(from + length / 5, length),
    "+": () => zoom(0.5, jump ? jump[2] : (from + to) / 2), "=": () => steps["+"](),
    "-": () => zoom(2, (from + to) / 2), "0": () => look(0, end),
    Home: () => look(0, length), End: () => look(end, length),
    ArrowUp: () => { lane = Math.max(0, lane - 1); choose(lane, near()); },
    ArrowDown: () => { lane = Math.min(own.length - 1, lane + 1); choose(lane, near()); },
    ",": () => choose(lane, at < 0 ? near() : at - 1), ".": () => choose(lane, at < 0 ? near() : at + 1),
  };
  if (steps[key.key] && !key.ctrlKey && !key.metaKey && !key.altKey) { key.preventDefault(); steps[key.key](); }
});
svg.addEventListener("wheel", wheel => {
  if (!wheel.ctrlKey) return;
  wheel.preventDefault(); zoom(wheel.deltaY > 0 ? 1.25 : 0.8, time(wheel));
}, {passive: false});
svg.addEventListener("pointerdown", down => { dragged = [down.clientX, from]; svg.setPointerCapture(down.pointerId); });
svg.addEventListener("pointerup", up => {
  const moved = dragged && Math.abs(up.clientX - dragged[0]) > 3;
  const target = moved ? null : document.elementFromPoint(up.clientX, up.clientY);
  dragged = null;
  if (target && target.event) choose(...target.event);
});
svg.addEventListener("pointermove", move => {
  if (!dragged) return;
  const scale = (to - from) / Math.max(1, svg.clientWidth - LABEL);
  look(dragged[1] - (move.clientX - dragged[0]) * scale, to - from);
});
for (const box of document.querySelectorAll("fieldset input")) box.addEventListener("change", () => {
  if (box.checked) hidden.delete(Number(box.value)); else hidden.add(Number(box.value));
  redraw();
});
addEventListener("resize", redraw);
draw();
"""


def stats_page(stats: TrainingStats, *, title: str) -> str:
    """Return the page as text, for UTF-8; ``title`` is any text."""
    colours = {phase.phase: _colour(phase.phase, number) for number, phase in enumerate(stats.phases)}
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            '<meta name="viewport" content="width=device-width">\n',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n",
            f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n",
            f'<h1>{escape(title)}</h1>\n<button type="button" id="theme">Dark or light</button>\n',
            f"<p>{escape(_summary(stats))}</p>\n",
            *(_table(stats, colours) if stats.events else ()),
            *(_timeline(stats, colours) if stats.events else ()),
            *(_histograms(stats, colours) if stats.events else ()),
            "</body>\n</html>\n",
        ]
    )


def _summary(stats: TrainingStats) -> str:
    if not stats.events:
        return "No phase was recorded."
    processes = counted(len({event.process for event in stats.events}), "process", "processes")
    machines = counted(len({event.machine for event in stats.events}), "machine")
    said = [f"{counted(len(stats.events), 'event')} of {processes} on {machines}."]
    if lost := sum(stats.lost.values()):
        said.append(f"{counted(lost, 'event')} lost on the way.")
    if stats.damaged:
        said.append(f"{counted(stats.damaged, 'line')} of the file could not be read.")
    return " ".join(said)


def _colour(phase: str, number: int) -> str:
    """Return a phase's colour: well separated hues, and grey for waiting."""
    return "hsl(215 8% var(--l))" if phase.endswith("Wait") else f"hsl({number * 137.5 % 360:.0f} 62% var(--l))"


def _chip(colour: str) -> str:
    return f'<span class="chip" style="background:{colour}"></span>'


def _table(stats: TrainingStats, colours: dict[str, str]) -> Iterator[str]:
    yield '<h2>Phases</h2>\n<div class="wide" tabindex="0"><table>\n'
    yield "<caption>Share: of the time measured on the same side, the workers' or the master's.</caption>\n"
    names = ("phase", "count", "total", "mean", "median", "p95", "share")
    yield "<thead><tr>" + "".join(f'<th scope="col">{name}</th>' for name in names) + "</tr></thead>\n<tbody>\n"
    for phase in stats.phases:
        times = (duration(seconds) for seconds in (phase.total, phase.mean, phase.median, phase.p95))
        cells = "".join(f"<td>{cell}</td>" for cell in (f"{phase.count:,}", *times, f"{100 * phase.share:.1f} %"))
        yield f'<tr><th scope="row">{_chip(colours[phase.phase])}{escape(phase.phase)}</th>{cells}</tr>\n'
    yield "</tbody></table></div>\n"


def _timeline(stats: TrainingStats, colours: dict[str, str]) -> Iterator[str]:
    order, phases = {lane: number for number, lane in enumerate(lanes(stats))}, list(colours)
    newest = stats.events[-MOST_SHOWN:]
    first, numbers = newest[0].start, {phase: number for number, phase in enumerate(phases)}
    events = [
        (
            order[event.machine, event.process, event.thread],
            numbers[event.phase],
            round(1e6 * (event.start - first)),
            round(1e6 * event.seconds),
            event.round,
            event.slot,
        )
        for event in newest
    ]
    labels = [f"{_shortened(machine)}, {thread}"[:34] for machine, _, thread in order]
    fields = {"phases": phases, "colours": list(colours.values()), "lanes": list(order), "labels": labels}
    yield '<h2 id="lanes">Timeline</h2>\n'
    if len(newest) < len(stats.events):
        yield f"<p>The newest {len(newest):,} events; table and histograms are of all.</p>\n"
    yield (
        "<p>A lane for each thread. Arrow keys: move, and choose a lane; + and -: zoom; 0: everything; , and .: the "
        "event before and after. Mouse: drag; Ctrl and wheel to zoom; click an event. Starts on different machines are "
        "as comparable as these machines' wall clocks.</p>\n<fieldset><legend>Show</legend>\n"
    )
    for number, (phase, colour) in enumerate(colours.items()):
        yield (f'<label><input type="checkbox" value="{number}" checked> {_chip(colour)}{escape(phase)}</label>\n')
    yield '</fieldset>\n<svg id="timeline" tabindex="0" role="application" aria-labelledby="lanes"></svg>\n'
    yield '<p id="chosen" aria-live="polite"></p>\n'
    yield f'<script type="application/json" id="data">{_inert(to_json({**fields, "events": events}))}</script>\n'
    yield f"<script>{_SCRIPT}</script>\n"


def _shortened(machine: str) -> str:
    return machine if len(machine) <= 20 else f"{machine[:17]}..."


def _inert(json: str) -> str:
    """Return JSON in which a browser cannot find markup."""
    return json.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _histograms(stats: TrainingStats, colours: dict[str, str]) -> Iterator[str]:
    yield "<h2>How long each took</h2>\n<p>Equal steps of the logarithm of the duration, 1 us at least.</p>\n"
    yield '<div class="histograms">\n'
    for phase in stats.phases:
        seconds = [event.seconds for event in stats.get_value(phase.phase)]
        yield from _histogram(phase, seconds, colours[phase.phase])
    yield "</div>\n"


def _histogram(phase: PhaseStats, seconds: Sequence[float], colour: str) -> Iterator[str]:
    edges, counts = histogram(seconds)
    most, width = max(counts), _WIDTH / len(counts)
    name = escape(phase.phase)
    yield f"<figure><figcaption>{name}</figcaption>\n"
    events = counted(phase.count, "event")
    said = f'role="img" aria-label="{name}: {events}"'
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 16}" {said}>\n'
    for number, count in enumerate(counts):
        tall = _HEIGHT * count / most
        took = f"{duration(edges[number])} to {duration(edges[number + 1])}"
        yield (
            f'<rect x="{number * width:.1f}" y="{_HEIGHT - tall:.1f}" width="{width - 1:.1f}" height="{tall:.1f}" '
            f'fill="{colour}"><title>{count:,} of {phase.count:,} took {took}</title></rect>\n'
        )
    yield f'<line x1="0" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/>'
    yield f'<text x="0" y="{_HEIGHT + 13}" class="faint">{duration(edges[0])}</text>'
    yield f'<text x="{_WIDTH}" y="{_HEIGHT + 13}" text-anchor="end" class="faint">{duration(edges[-1])}</text>'
    yield "</svg></figure>\n"


def histogram(seconds: Sequence[float]) -> tuple[list[float], list[int]]:
    """Return the edges of bins that are equally wide on a log scale, and the number of durations in each bin."""
    logs = [math.log(max(one, 1e-6)) for one in seconds]
    low, high = min(logs), max(logs)
    if high - low < 1e-9:
        return [math.exp(low), math.exp(high)], [len(logs)]
    step, counts = (high - low) / _BINS, [0] * _BINS
    for one in logs:
        counts[min(_BINS - 1, int((one - low) / step))] += 1
    return [math.exp(low + step * number) for number in range(_BINS + 1)], counts
