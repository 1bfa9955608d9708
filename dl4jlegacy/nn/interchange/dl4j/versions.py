"""Which version of Deeplearning4j can hold and run a network, and where it would train the network differently.

Determined by running networks of every kind in the real libraries, 0.9.1 and 1.0.0-M2.1 (``tests/interop``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration
from dl4jlegacy.nn.conf.stages import Stage
from dl4jlegacy.nn.interchange.dl4j import names
from dl4jlegacy.nn.interchange.dl4j.layers import kind_of
from dl4jlegacy.nn.interchange.dl4j.schedules import known_schedule
from dl4jlegacy.nn.layers.bidirectional import Bidirectional
from dl4jlegacy.nn.layers.convolution import Convolution1DLayer, ConvolutionLayer
from dl4jlegacy.nn.layers.elementwise import ActivationLayer
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.loss_layers import CenterLossOutputLayer
from dl4jlegacy.nn.layers.normalization import BatchNormalization, LocalResponseNormalization
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.layers.subsampling import Subsampling1DLayer, SubsamplingLayer
from dl4jlegacy.nn.optimization.schedules import PolySchedule, RunSchedule
from dl4jlegacy.nn.optimization.updaters import AdaBelief, NoOp, Sgd
from dl4jlegacy.nn.preprocessors import (
    BinomialSamplingPreProcessor,
    ComposableInputPreProcessor,
    UnitVarianceProcessor,
    ZeroMeanAndUnitVariancePreProcessor,
)
from dl4jlegacy.nn.vertices import combine, shape

__all__ = [
    "UNREADABLE_IN_OLD",
    "VERSIONS",
    "Version",
    "answers_otherwise",
    "differences",
    "is_old",
    "suiting",
    "why_not",
]

Version = Literal["0.9.1", "1.0.0"]
VERSIONS: Final[tuple[Version, ...]] = ("0.9.1", "1.0.0")
_SMALL_ALPHA: Final = 1e-3
"""Largest alpha with the same gradient of LocalResponseNormalization except for rounding; the usual one is 1e-4."""

UNREADABLE_IN_OLD: Final = (combine.ShiftVertex, shape.ReshapeVertex, shape.PoolHelperVertex)
"""Vertices of 0.9.1 whose JSON 0.9.1 cannot read again."""


def why_not(conf: Any, version: Version) -> list[str]:
    """Return the reasons why ``version`` cannot hold a network, or predicts differently; empty if there are none."""
    reasons = answers_otherwise(conf)
    reasons += [f"layer {where} {why}" for where, layer in _layers(conf) for why in _why_not(layer, version)]
    if version == "0.9.1" and isinstance(conf, ComputationGraphConfiguration):
        for node in conf.vertices:
            kind = type(node.vertex).__name__
            if isinstance(node.vertex, UNREADABLE_IN_OLD):
                reasons.append(f"vertex {node.name!r}: it cannot read a {kind}")
            if isinstance(node.vertex, combine.ElementWiseVertex) and node.vertex.op in ("average", "max"):
                reasons.append(f"vertex {node.name!r}: it has no {kind} with op {node.vertex.op!r}")
    return reasons


def answers_otherwise(conf: Any) -> list[str]:
    """Return where all versions of Deeplearning4j predict differently, for any content of the file."""
    return [*_by_other_deviations(conf), *_along_other_axes(conf)]


def _by_other_deviations(conf: Any) -> list[str]:
    return [
        f"{where} has a {type(part).__name__}, which divides by other deviations in Deeplearning4j than those of the "
        "batch; take a BatchNormalization"
        for where, part in _pre_processors(conf)
        if isinstance(part, UnitVarianceProcessor | ZeroMeanAndUnitVariancePreProcessor)
    ]


def _pre_processors(conf: Any) -> Iterator[tuple[str, Any]]:
    """Yield all preprocessors with their places, including nested ones."""
    found = [(f"layer {where}", stage.pre_processor) for where, stage in _stages(conf)]
    if isinstance(conf, ComputationGraphConfiguration):
        vertices = [(f"vertex {node.name!r}", node.vertex) for node in conf.vertices]
        found += [(where, v.pre_processor) for where, v in vertices if isinstance(v, shape.PreprocessorVertex)]
    for where, given in found:
        parts = given.flattened() if isinstance(given, ComposableInputPreProcessor) else (given,)
        yield from ((where, part) for part in parts)


def _along_other_axes(conf: Any) -> list[str]:
    return [
        f"layer {where} has softmax between images or sequences, which Deeplearning4j takes along another axis"
        for where, stage in _stages(conf)
        if isinstance(stage.layer, ActivationLayer | ConvolutionLayer | Convolution1DLayer)
        and stage.layer.activation == "softmax"
        and stage.output_type.kind in ("convolutional", "recurrent")
    ]


def differences(conf: Any, version: Version) -> list[str]:
    """Return where ``version`` would train differently, or draws random numbers where this package does not."""
    found: dict[str, str] = {}
    for where, layer in _layers(conf):
        for why in _trains(layer, version):
            found.setdefault(why, where)  # a difference of several layers is reported once
    reasons = [f"layer {where}: {why}" for why, where in found.items()]
    for where, part in _pre_processors(conf):
        if isinstance(part, BinomialSamplingPreProcessor):
            reasons.append(f"{where}: its BinomialSamplingPreProcessor draws other numbers there, in prediction too")
    if not conf.conf.minimize:
        reasons.append("minimize=False: gradient descent goes down there all the same")
    if version == "1.0.0" and conf.backprop_type == "truncated_bptt":
        reasons.append("truncated_bptt: 1.0.0 carries other state from piece to piece")
    return reasons


def suiting(conf: Any) -> Version:
    """Return the version whose format a network is written in: 0.9.1 if both versions read that alike, else 1.0.0."""
    if isinstance(conf, ComputationGraphConfiguration) or conf.backprop_type == "truncated_bptt":
        return "1.0.0"
    layers = [layer for _, layer in _layers(conf)]
    plain = all(
        "recurrent" not in layer.consumes[:1]
        and not layer.frozen
        and not isinstance(layer, BatchNormalization)
        and not any((layer.l1, layer.l2, layer.l1_bias, layer.l2_bias))
        and not known_schedule(layer.updater)
        and not getattr(layer.updater, "momentum_after", None)
        for layer in layers
    )
    return "0.9.1" if plain and not why_not(conf, "0.9.1") else "1.0.0"


def is_old(layer: Layer) -> bool:
    """Return whether the format of 0.9.1 can express the layer; ``why_not`` checks whether 0.9.1 runs it alike."""
    return not list(_unknown_to_old(layer))


def _stages(conf: Any) -> Iterator[tuple[str, Stage]]:
    if isinstance(conf, ComputationGraphConfiguration):
        for node in conf.nodes():
            if node.stage is not None:
                yield repr(node.name), node.stage
        return
    for index, stage in enumerate(conf.stages()):
        yield f"{index} ({stage.layer.title()})", stage


def _layers(conf: Any) -> Iterator[tuple[str, Layer]]:
    return ((where, stage.layer) for where, stage in _stages(conf))


def _unknown_to_old(layer: Layer) -> Iterator[str]:
    kind, updater, dist = kind_of(layer), layer.updater or Sgd(), layer.dist
    if kind.old is None:
        yield f"is a {kind.new.rpartition('.')[2]}, which 0.9.1 does not have"
    elif kind.is_new(layer):
        yield "has a dilation, which 0.9.1 does not have"
    if (layer.activation or "identity") not in names.OLD_ACTIVATIONS:
        yield f"has the activation {layer.activation!r}, which 0.9.1 does not have"
    if type(updater).__name__ not in names.OLD_UPDATERS:
        yield f"has the updater {type(updater).__name__}, which 0.9.1 does not have"
    if isinstance(getattr(updater, "schedule", None), PolySchedule):
        yield "has a PolySchedule, which 0.9.1 takes for its own number of iterations"
    if (layer.weight_init or "xavier") not in names.OLD_WEIGHT_INITS:
        yield f"has weight_init {layer.weight_init!r}, which 0.9.1 does not have"
    if dist is not None and type(dist).__name__ not in names.OLD_DISTRIBUTIONS:
        yield f"has a {type(dist).__name__}, which 0.9.1 does not have"
    if getattr(layer, "loss", "mcxent") not in names.OLD_LOSSES:
        yield f"has the loss {getattr(layer, 'loss', '')!r}, which 0.9.1 does not have"


def _why_not(layer: Layer, version: Version) -> Iterator[str]:
    is_window = isinstance(layer, SubsamplingLayer | Subsampling1DLayer)
    if is_window and layer.pooling_type == "sum":  # type: ignore[union-attr]
        yield "pools sums, which Deeplearning4j cannot do in windows"
    if version == "0.9.1":
        yield from _unknown_to_old(layer)
        if isinstance(layer, CenterLossOutputLayer):
            yield "is a CenterLossOutputLayer, which 0.9.1 cannot read again"
        if is_window and _is_padded(layer):
            yield "pools with padding, which 0.9.1 takes for zeros"
        return
    if isinstance(layer, RBM):
        yield "is an RBM, which 1.0.0 does not have"
    if isinstance(layer.updater, AdaBelief):
        yield "has the updater AdaBelief, which 1.0.0 cannot make"


def _drawn_in_prediction(layer: Layer) -> str:
    """Return what Deeplearning4j draws at random in prediction, where this package uses the mean; "": nothing."""
    if isinstance(layer, RBM):
        return "the values of gaussian hidden units" if layer.hidden_unit == "gaussian" else ""
    return "the slopes of rrelu" if layer.activation == "rrelu" else ""


def _is_padded(layer: Any) -> bool:
    if layer.pooling_type not in ("max", "avg"):
        return False
    sizes = [size if isinstance(size, tuple) else (size,) for size in (layer.padding, layer.kernel_size)]
    return any(sizes[0]) or (layer.convolution_mode == "same" and max(sizes[1]) > 1)


def _trains(layer: Layer, version: Version) -> Iterator[str]:
    updater = layer.updater or Sgd()
    if drawn := _drawn_in_prediction(layer):
        yield f"Deeplearning4j draws {drawn} in prediction too"
    if getattr(layer, "loss", "") == "reconstruction_crossentropy" and hasattr(layer, "loss_weights"):
        yield "reconstruction_crossentropy is the Kullback-Leibler divergence there"
    if isinstance(layer, CenterLossOutputLayer):
        yield "its centers move further"
    if isinstance(layer, LocalResponseNormalization) and layer.alpha > _SMALL_ALPHA:
        yield "its gradient over neighbouring channels is another there"
    if isinstance(schedule := getattr(updater, "schedule", None), RunSchedule):
        yield f"its {type(schedule).__name__} is left out: the learning rate stays the same there"
    if version == "0.9.1":
        penalties = any((layer.l1, layer.l2, layer.l1_bias, layer.l2_bias))
        if not isinstance(updater, Sgd | NoOp) or penalties or layer.gradient_normalization not in (None, "none"):
            yield "0.9.1 divides by the number of examples behind the updater, not before it"
        return
    if isinstance(schedule, PolySchedule):
        yield "its PolySchedule grows"
    if isinstance(layer, Bidirectional):
        yield "Bidirectional turns masked sequences around with their padding"
