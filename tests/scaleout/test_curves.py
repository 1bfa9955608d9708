"""The curves of runs and their drawing: what is in them, for whoever reads it, and however long a history is."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dl4jlegacy import HistoryEntry
from dl4jlegacy.scaleout.monitoring.curves import OVER, RunCurves, columns_of, curves_of
from dl4jlegacy.scaleout.monitoring.curves_svg import DARK, GROUNDS, LIGHT, MOST_RUNS, TEXTS, curves_svg, described
from dl4jlegacy.scaleout.state.records import Figures

SVG = "{http://www.w3.org/2000/svg}"


def entry(version: int, score: float | None = 0.5, **given) -> HistoryEntry:
    counts = {"round": version, "batches": version, "examples": 16 * version, "seconds": 0.5, "staleness": 0.0}
    return HistoryEntry(began=1.0, time=1.0, version=version, score=score, workers={}, **counts, **given)


def run(name: str, scores: list[float]) -> RunCurves:
    return curves_of(name, [entry(version, score) for version, score in enumerate(scores, 1)])


def drawn(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def lines(svg: str) -> list[list[tuple[float, float]]]:
    """The places of all curves' points, in the order of the drawing."""
    found = drawn(svg).iter(f"{SVG}polyline")
    return [[tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()] for line in found]


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """The ratio that the Web Content Accessibility Guidelines define."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_pretraining_and_fine_tuning_have_a_panel_each() -> None:
    """Their scores are measures of their own: on one scale the smaller one would be a line along the bottom."""
    scores = [("pretrain 0", 80.0), ("pretrain 0", 60.0), ("pretrain 1", 70.0), ("finetune", 2.0), ("finetune", 0.5)]
    found = curves_of("run", [entry(version, score, phase=phase) for version, (phase, score) in enumerate(scores, 1)])
    assert found.curves["pretraining score"].ys == (80.0, 60.0, 70.0)
    assert found.curves["training score"].ys == (2.0, 0.5)
    svg = curves_svg([found])
    before, after = lines(svg)
    assert max(y for _, y in before) < min(y for _, y in after), "one is drawn below the other"
    assert min(abs(after[0][1] - after[1][1]), abs(before[0][1] - before[1][1])) > 20, "each over its own scale"
    assert svg.count(">pretrain 1<") == svg.count(">finetune<") == 2, "where phases begin is marked in both"


def test_each_measure_has_the_points_that_the_history_has_of_it() -> None:
    figures = Figures(loss=0.4, examples=10, accuracy=0.9)
    history = [
        entry(1, 0.8, learning_rate=0.1),
        entry(2, None, learning_rate=0.1),
        entry(3, 0.6, learning_rate=0.05),
        entry(4, 0.6, validation=figures),
    ]
    found = curves_of("run", history)
    assert set(found.curves) == {"training score", "validation loss", "validation accuracy", "learning rate"}
    assert found.curves["training score"].xs == (16, 48) and found.curves["training score"].ys == (0.8, 0.6)
    assert found.curves["validation loss"].xs == (64,) and found.curves["validation accuracy"].ys == (0.9,)
    assert found.curves["learning rate"].ys == (0.1, 0.1, 0.05)
    assert (found.versions, found.examples, found.seconds) == (4, 64, 2.0)


@pytest.mark.parametrize(("over", "places"), [("examples", (16, 32)), ("rounds", (1, 2)), ("seconds", (0.5, 1.0))])
def test_a_curve_is_drawn_over_what_is_asked_for(over: str, places: tuple[float, ...]) -> None:
    assert set(OVER) == {"examples", "rounds", "seconds"}
    assert curves_of("run", [entry(1), entry(2)], over).curves["training score"].xs == places


def test_columns_keep_the_least_and_the_most_of_their_points() -> None:
    points = [(float(x), float(x % 7)) for x in range(10_000)]
    columns = columns_of(points, 0.0, 9_999.0, 100)
    assert len(columns) == 100
    assert {(each.least, each.most) for each in columns} == {(0.0, 6.0)}
    assert sum(each.y for each in columns) / 100 == pytest.approx(3.0, abs=0.01)
    few = [(0.0, 1.0), (5.0, 2.0), (5.0, 4.0)]
    assert [(each.x, each.y) for each in columns_of(few, 0.0, 5.0, 100)] == [(0.0, 1.0), (5.0, 3.0)]
    assert len(columns_of([(1.0, 2.0)], 1.0, 1.0, 100)) == 1


def test_the_drawing_shows_values_where_they_belong() -> None:
    (line,) = lines(curves_svg([run("run", [4.0, 2.0, 0.0])]))
    assert [x for x, _ in line] == sorted(x for x, _ in line)
    (top, middle, bottom) = (y for _, y in line)
    assert top < bottom and middle == pytest.approx((top + bottom) / 2, abs=0.1)
    (line,) = lines(curves_svg([run("run", [100.0, 10.0, 1.0])], log=True))
    assert line[1][1] == pytest.approx((line[0][1] + line[2][1]) / 2, abs=0.1)
    svg = curves_svg([run("run", [1.0, -1.0])], log=True)  # has no logarithm
    assert "logarithmic" not in svg and len(lines(svg)) == 1


def test_runs_lie_over_each_other_on_one_scale_and_differ_in_more_than_colour() -> None:
    svg = curves_svg([run("short", [2.0, 1.0]), run("long", [2.0, 1.5, 1.2, 1.0])])
    short, long = lines(svg)
    assert short[0] == long[0] and short[1][0] == long[1][0] and short[1][1] == long[3][1]
    many = curves_svg([run(f"run {number}", [1.0, 0.5]) for number in range(MOST_RUNS)])
    looks = {(each.attrib["class"], each.attrib["stroke-dasharray"]) for each in drawn(many).iter(f"{SVG}polyline")}
    assert len(looks) == MOST_RUNS


def test_it_needs_nothing_else_and_speaks_to_who_does_not_see_it() -> None:
    svg = curves_svg([run("a <run> & more", [2.0, 1.0])])
    root = drawn(svg)
    assert root.attrib["role"] == "img" and root.attrib["aria-labelledby"] == "title desc"
    texts = {each.attrib["id"]: each.text for each in root if "id" in each.attrib}
    assert texts["title"] == "Training curves of a <run> & more"
    assert texts["desc"] == "a <run> & more: 2 versions, 32 examples; training score 2 to 1, between 1 and 2."
    assert "@media (prefers-color-scheme: dark)" in svg
    elsewhere = re.findall(r"href|url\(|<script|<image|@import|https?://[^\"]*", svg)
    assert elsewhere == ["http://www.w3.org/2000/svg"]


def test_everything_can_be_read_on_light_and_on_dark_ground() -> None:
    for ground, colours in (("light", LIGHT), ("dark", DARK)):
        assert all(contrast(colour, GROUNDS[ground]) >= 3 for colour in colours)
        assert all(contrast(colour, GROUNDS[ground]) >= 4.5 for colour in TEXTS[ground])


@pytest.mark.parametrize("name", ["", "\x00\x1b[31mred", "\ud800", "]]>", "x" * 5000, "\uffff"])
def test_whatever_a_folder_is_called_the_drawing_is_xml(name: str) -> None:
    assert drawn(curves_svg([run(name, [1.0, 0.5])])) is not None


@pytest.mark.parametrize(
    "scores", [[0.0], [1.0, 1.0], [1e300, -1e300], [5e-324, 1e-300], [1.7e308, 1.0], [1e-12, 1.0], [0.5] * 3]
)
@pytest.mark.parametrize("log", [False, True])
def test_any_values_have_a_drawing(scores: list[float], log: bool) -> None:
    svg = curves_svg([run("run", scores)], log=log)
    assert "nan" not in svg and "inf" not in svg
    for x, y in lines(svg)[0]:
        assert 0 <= x <= 760 and 0 <= y <= float(drawn(svg).attrib["height"])
    assert len(list(drawn(svg).iter(f"{SVG}line"))) < 60


def test_values_that_are_no_numbers_are_left_out() -> None:
    found = curves_of("run", [entry(1, float("nan")), entry(2, 0.5), entry(3, float("inf"))])
    assert found.curves["training score"].ys == (0.5,)
    without = curves_of("run", [entry(1, None)])
    assert without.curves == {} and described(without) == "run: 1 version, 16 examples."
    assert lines(curves_svg([without])) == []


def test_a_long_history_is_a_small_drawing(tmp_path: Path) -> None:
    svg = curves_svg([run("long", [1 / (1 + version % 50) for version in range(50_000)])])
    assert len(svg) < 40_000 and max(map(len, lines(svg))) <= 400
    assert any("opacity" in each.attrib for each in drawn(svg).iter(f"{SVG}path"))
