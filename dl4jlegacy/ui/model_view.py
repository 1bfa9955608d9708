"""The dashboard's views of a network: its drawing, its parameters with their updates, its first layer as images."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.images.image_grid import image_grid
from dl4jlegacy.nn.input_type import InputTypeConvolutional, InputTypeConvolutionalFlat
from dl4jlegacy.nn.networks import NetworkConfiguration
from dl4jlegacy.nn.parameter_statistics import NamedSpan, Statistics, named_spans, statistics_of
from dl4jlegacy.nn.summary import summarize
from dl4jlegacy.ui.network_svg import BOX, arrange, lines_of
from dl4jlegacy.ui.run_models import Model

__all__ = [
    "ArrowView",
    "BoxView",
    "ImageView",
    "ModelView",
    "NetworkView",
    "ParameterView",
    "RatioPoint",
    "StatisticsView",
    "filters_of",
    "image_view",
    "network_view",
    "parameter_views",
    "shape_of_images",
]

_BARS = 30
_MOST_FILTERS, _COLUMNS = 100, 20
_NAMED_IMAGES = {"digits": (1, 8, 8), "mnist": (1, 28, 28)}


class BoxView(msgspec.Struct, frozen=True, kw_only=True):
    """A layer, vertex or input in the drawing: where its upper left corner is, what it is, and what stands in it.

    ``kind`` is "input", "vertex", "output", "frozen" or "layer"; ``text`` says the whole of it in words.
    """

    name: str
    kind: str
    x: float
    y: float
    lines: tuple[str, ...]
    text: str


class ArrowView(msgspec.Struct, frozen=True, kw_only=True):
    """An arrow of the drawing: a path of SVG. ``ends`` says whether it arrives at a box, or goes on."""

    path: str
    ends: bool


class NetworkView(msgspec.Struct, frozen=True, kw_only=True):
    """A network, from its configuration alone.

    Attributes:
        kind, dtype: such as MultiLayerNetwork, float32.
        parameters, trained, multiply_adds: of all; those that training changes; for one example forward.
        layers: as ``dl4j summary --format json`` has them.
        width, height, box: of the drawing, and of every box in it.
        boxes, arrows: of the drawing.
    """

    kind: str
    dtype: str
    parameters: int
    trained: int
    multiply_adds: int
    layers: list[dict[str, Any]]
    width: float
    height: float
    box: tuple[int, int]
    boxes: tuple[BoxView, ...]
    arrows: tuple[ArrowView, ...]


class StatisticsView(msgspec.Struct, frozen=True, kw_only=True):
    """What values are like: the mean of their magnitudes, and a histogram from ``low`` to ``high``.

    Of more than 100,000 values the histogram has every k-th.
    """

    mean_magnitude: float
    low: float
    high: float
    counts: tuple[int, ...]


class ParameterView(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of the network.

    Attributes:
        name, layer, parameter: DL4J's name of it, ``0_W``, and its two parts.
        shape, size: its shape, and how many values that are.
        is_bias: whether it is one.
        values: what these are like; None: one of them is NaN or infinite.
        update: what has changed since the model before; None: none is known, or as above.
        ratio: of the mean magnitude of that change, shared out to the versions that made it, to that of the values;
            None: unknown, or all values are 0.
    """

    name: str
    layer: str
    parameter: str
    shape: tuple[int, ...]
    size: int
    is_bias: bool
    values: StatisticsView | None
    update: StatisticsView | None
    ratio: float | None


class RatioPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The ratios of update to parameter of a version, which is so many ``versions`` after the model before."""

    version: int
    versions: int
    ratios: dict[str, float]


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the model, and what changed since ``before`` (None: no other model is known)."""

    version: int
    before: int | None
    parameters: tuple[ParameterView, ...]
    ratios: tuple[RatioPoint, ...]


class ImageView(msgspec.Struct, frozen=True, kw_only=True):
    """An image: bytes in base64, row by row, of each pixel its ``channels``; ``text`` says what it shows."""

    text: str
    channels: int
    height: int
    width: int
    pixels: str


# -- the network -------------------------------------------------------------------------------------------------------


def network_view(conf: NetworkConfiguration, batch_size: int) -> NetworkView:
    """Return the view of a network; raises like ``conf.resolved``."""
    found = summarize(conf)
    drawing = arrange(found)
    boxes = []
    for box in drawing.boxes:
        row, lines = box.row, lines_of(box.row)
        text = f"{row.name}: {row.kind}, output {row.shape()}, {row.parameters:,} parameters"
        boxes.append(BoxView(name=row.name, kind=box.kind, x=box.x, y=box.y, lines=lines, text=text))
    return NetworkView(
        kind=found.kind,
        dtype=found.dtype,
        parameters=found.parameters,
        trained=found.trained,
        multiply_adds=found.multiply_adds,
        layers=found.to_dict(batch_size)["layers"],
        width=drawing.width,
        height=drawing.height,
        box=BOX,
        boxes=tuple(boxes),
        arrows=tuple(ArrowView(path=arrow.path, ends=arrow.ends) for arrow in drawing.arrows),
    )


# -- parameters and updates --------------------------------------------------------------------------------------------


def parameter_views(conf: NetworkConfiguration, model: Model, before: Model | None) -> tuple[ParameterView, ...]:
    """Return the parameters of a model with their changes since an older model."""
    return tuple(_parameter_view(each, model, before) for each in named_spans(conf))


def _parameter_view(named: NamedSpan, model: Model, before: Model | None) -> ParameterView:
    span = named.span
    place = slice(span.start, span.stop)
    values, update, ratio = statistics_of(model.params[place], _BARS), None, None
    if before is not None:
        update = statistics_of(model.params[place] - before.params[place], _BARS)
        if values is not None and update is not None and values.mean_magnitude:
            ratio = update.mean_magnitude / (model.version - before.version) / values.mean_magnitude
    return ParameterView(
        name=named.name,
        layer=named.layer,
        parameter=span.name,
        shape=span.shape,
        size=span.stop - span.start,
        is_bias=span.is_bias,
        values=_statistics_view(values),
        update=_statistics_view(update),
        ratio=ratio,
    )


def _statistics_view(found: Statistics | None) -> StatisticsView | None:
    if found is None:
        return None
    return StatisticsView(
        mean_magnitude=found.mean_magnitude, low=found.edges[0], high=found.edges[-1], counts=found.counts
    )


# -- images ------------------------------------------------------------------------------------------------------------


def shape_of_images(conf: Mapping[str, Any], network: NetworkConfiguration) -> tuple[int, int, int] | None:
    """Return channels, height and width of the images that a run learns from; None: it learns from none, or unknown.

    Args:
        conf: the run's, as JSON.
        network: the run's network.
    """
    kind = getattr(network, "input_type", None) or next(iter(getattr(network, "input_types", ())), None)
    if isinstance(kind, InputTypeConvolutional | InputTypeConvolutionalFlat):
        return kind.channels, kind.height, kind.width
    images = conf.get("images")
    if isinstance(images, dict) and images.get("height") and images.get("width"):
        return int(images.get("channels") or 1), int(images["height"]), int(images["width"])
    return _NAMED_IMAGES.get(str(conf.get("dataset")))


def filters_of(conf: Mapping[str, Any], network: NetworkConfiguration, model: Model) -> ImageView | None:
    """Return the weights of the first layer as images, one for each of its units or filters.

    A weight of 0 is gray; white is the largest magnitude of that filter, black its negative. None: the layer does not
    process images.

    Args:
        conf: the run's, as JSON.
        network: the run's network.
        model: the parameters.
    """
    first = next((each for each in named_spans(network) if not each.span.is_bias and len(each.span.shape) > 1), None)
    if first is None:
        return None
    weights = np.asarray(first.span.view(model.params), np.float64)
    shape = shape_of_images(conf, network)
    if weights.ndim == 4 and min(weights.shape[2:]) > 1:
        filters = weights if weights.shape[1] in (1, 3) else weights[:, :1]
        what = "filters" if filters is weights else "filters, of each the weights of its first channel"
    elif weights.ndim == 2 and shape is not None and weights.shape[0] == np.prod(shape) and shape[0] in (1, 3):
        filters, what = weights.T.reshape(-1, *shape), "units"
    else:
        return None
    if not np.isfinite(filters).all() or not len(filters):
        return None
    count, total = min(len(filters), _MOST_FILTERS), len(filters)
    shown = filters[:count]
    largest = np.abs(shown).max(axis=(1, 2, 3), keepdims=True)
    scaled = np.divide(shown, largest, out=np.zeros_like(shown), where=largest > 0)
    pixels = np.round((scaled + 1) * 127.5).astype(np.uint8)
    grid = image_grid([pixels[start : start + _COLUMNS] for start in range(0, count, _COLUMNS)])
    of = "all" if count == total else f"the first {count} of"
    return image_view(grid, f"weights of layer {first.layer} ({first.span.name}): {of} {total} {what}")


def image_view(pixels: Array, text: str) -> ImageView:
    """Return the view of an image with pixels ``(channels, height, width)`` in bytes; ``text`` describes it."""
    channels, height, width = pixels.shape
    by_pixel = np.ascontiguousarray(pixels.transpose(1, 2, 0))
    return ImageView(
        text=text,
        channels=channels,
        height=height,
        width=width,
        pixels=base64.b64encode(by_pixel.tobytes()).decode("ascii"),
    )
