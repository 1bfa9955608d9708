"""docs/network-reference.md has every layer, vertex, updater, schedule, distribution and name, with their defaults."""

from __future__ import annotations

import re
from typing import Any, get_args

import msgspec
import pytest

from dl4jlegacy import nn
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.rbm import UNITS
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS
from dl4jlegacy.nn.optimization.gradient_normalization import GRADIENT_NORMALIZATIONS
from dl4jlegacy.nn.optimization.losses import LOSSES
from dl4jlegacy.nn.optimization.schedules import Schedule
from dl4jlegacy.nn.optimization.updaters import Updater
from dl4jlegacy.nn.optimization.weights import WEIGHT_INITS, Distribution
from dl4jlegacy.nn.vertices.shape import Vertex
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "network-reference.md").read_text(encoding="utf-8")
ROWS = [line.strip() for line in PAGE.splitlines() if line.strip().startswith("| `")]
SHARED = FeedForwardLayer.__struct_fields__


def defaults(kind: Any, without: tuple[str, ...] = ()) -> dict[str, str | None]:
    """Return the default of every field as Python, None for those that have none."""
    found: dict[str, str | None] = {}
    for field in msgspec.structs.fields(kind):
        if field.name in without:
            continue
        value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        found[field.name] = None if value is msgspec.NODEFAULT else repr(value).replace("'", '"')
    return found


def row_of(name: str) -> str:
    """Return the row of a table in whose first cell a name stands."""
    rows = [row for row in ROWS if f"`{name}`" in row.split("|")[1]]
    assert len(rows) == 1, f"{name} has {len(rows)} rows"
    return rows[0]


@pytest.mark.parametrize("kind", [*get_args(Layer), *get_args(Vertex), *get_args(Updater)])
def test_a_kinds_row_has_its_fields_and_their_defaults(kind: Any) -> None:
    row = row_of(kind.__name__)
    fields = defaults(kind, SHARED if issubclass(kind, FeedForwardLayer) else ())
    missing = [
        token
        for name, value in fields.items()
        if f"`{(token := name if value is None else f'{name}={value}')}`" not in row
    ]
    assert not missing, f"{kind.__name__}: {missing} not in {row}"
    told = re.findall(r"`(\w+)(?:=[^`]*)?`", "|".join(row.split("|")[2:]))
    assert set(told) <= set(fields), f"{kind.__name__} has no {set(told) - set(fields)}"


@pytest.mark.parametrize("kind", [*get_args(Schedule), *get_args(Distribution)])
def test_a_schedule_or_distribution_is_written_as_it_is_called(kind: Any) -> None:
    fields = [name if value is None else f"{name}={value}" for name, value in defaults(kind).items()]
    assert f"`{kind.__name__}({', '.join(fields)})`" in PAGE
    assert getattr(nn, kind.__name__) is kind


@pytest.mark.parametrize("kind", [nn.NeuralNetConfiguration, nn.MultiLayerConfiguration])
def test_what_holds_for_all_layers_has_its_row(kind: Any) -> None:
    for name, value in defaults(kind, ("layers", "conf")).items():
        rows = [row for row in ROWS if f"`{name}`" in row.split("|")[1]]
        assert [row.split("|")[2].strip() for row in rows] == [f"`{value}`"], name


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Losses", LOSSES),
        ("Activations", ACTIVATIONS),
        ("Weights", WEIGHT_INITS),
        ("Gradient normalization", GRADIENT_NORMALIZATIONS),
    ],
)
def test_every_name_is_listed(title: str, names: Any) -> None:
    [listed] = re.findall(rf"- \*\*{title}\*\*([^-]*)\.\n", PAGE)
    words = re.findall(r"\w+", listed.split(":", 1)[1])
    assert sorted(words) == sorted(names)


def test_every_field_that_layers_share_is_named() -> None:
    paragraph = PAGE.split("Every layer has", 1)[1].split("\n\n", 1)[0]
    assert set(re.findall(r"`(\w+)(?:=False)?`", paragraph)) - {"NeuralNetConfiguration"} == set(SHARED)
    assert all(f'"{unit}"' in row_of("RBM") for unit in UNITS)
