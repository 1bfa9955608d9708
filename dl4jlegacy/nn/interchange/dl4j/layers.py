"""Layers and preprocessors in Deeplearning4j's JSON: the names of each kind, and its particular fields.

A new kind needs only one entry in ``KINDS`` to be written and read; fields of all layers (activation, updater, weight
init, ...) are handled by ``dl4j.json`` and ``dl4j.reader``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn.interchange.dl4j import names
from dl4jlegacy.nn.interchange.dl4j.keys import check_formats, check_keys, check_values
from dl4jlegacy.nn.interchange.dl4j.names import number, read_activation, tagged
from dl4jlegacy.nn.layers import layer as layers
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.lstm import GATES
from dl4jlegacy.nn.layers.reconstruction_distribution import ReconstructionDistribution
from dl4jlegacy.nn.preprocessors import ComposableInputPreProcessor, InputPreProcessor

__all__ = ["KINDS", "WRAPPERS", "Codec", "Kind", "kind_named", "kind_of", "pre_processor", "pre_processor_tree"]

Tree = dict[str, Any]
_VARIATIONAL: Final = "org.deeplearning4j.nn.conf.layers.variational."
_PRE_PROCESSORS: Final = "org.deeplearning4j.nn.conf.preprocessor."


@dataclass(frozen=True, slots=True)
class Codec:
    """A field: DL4J's name, the conversion of our value, and its inverse ``read(found, where)``, ``found`` not None.

    A field that ``is_needed`` has no default: it decides what the layer computes. ``write_new`` is for 1.0.0, if its
    form differs.
    """

    key: str
    write: Callable[[Any], Any] = lambda value: value
    read: Callable[[Any, str], Any] = lambda found, where: found
    is_needed: bool = False
    write_new: Callable[[Any], Any] | None = None

    def written(self, value: Any, *, old: bool) -> Any:
        """Return our value in the form of 0.9.1 (``old``) or 1.0.0."""
        return self.write(value) if old or self.write_new is None else self.write_new(value)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of layer: its wrapper in 0.9.1 (None: not in 0.9.1), its class since 1.0.0, its own fields.

    ``is_sized``: whether DL4J stores ``nin`` and ``nout``. ``is_new(layer)``: whether 0.9.1 cannot express the layer.
    ``only``: keys without a field here, with the values that change nothing. ``fixed``: additional keys for 1.0.0.
    """

    cls: type[Layer]
    old: str | None
    new: str
    fields: dict[str, Codec]
    is_sized: bool = True
    is_new: Callable[[Any], bool] = lambda layer: False
    only: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    fixed: Tree = field(default_factory=dict)

    def written(self, layer: Layer, *, old: bool) -> Tree:
        """Return the fields that only this kind has."""
        fields = {codec.key: codec.written(getattr(layer, name), old=old) for name, codec in self.fields.items()}
        return fields if old else {**self.fixed, **fields}

    def read(self, body: Tree, where: str) -> Tree:
        """Return our values of the fields that only this kind has; a missing field gets its default.

        Raises:
            ModelError: an unknown key or value that could change the layer's predictions.
        """
        known = {codec.key for codec in self.fields.values()}
        check_keys(body, known | self.only.keys() | set(WRAPPERS.get(self.cls, ())), where)
        check_formats(body, where)
        check_values(body, self.only, where)
        result: Tree = {}
        for name, codec in self.fields.items():
            found = body.get(codec.key)
            if found is not None:
                result[name] = codec.read(found, f"{where}.{codec.key}")
            elif codec.is_needed:
                raise ModelError(f"{where} is a {self.new} without {codec.key}")
        return result


def _number(key: str) -> Codec:
    return Codec(key, read=lambda found, where: number({"x": found}, "x", 0.0, where))


def _whole(key: str) -> Codec:
    return Codec(key, read=lambda found, where: int(number({"x": found}, "x", 0.0, where)))


def _flag(key: str) -> Codec:
    return Codec(key, read=lambda found, where: found is True)


def _upper(key: str) -> Codec:
    return Codec(key, lambda value: value.upper(), lambda found, where: str(found).lower())


def _sizes(key: str, count: int, *, is_needed: bool = False) -> Codec:
    """Return the codec of a list of ``count`` whole numbers."""

    def read(found: Any, where: str) -> tuple[int, ...]:
        numbers = found if isinstance(found, list) else [found]
        if len(numbers) == 1:
            numbers = numbers * count
        whole = all(isinstance(size, int) and not isinstance(size, bool) for size in numbers)
        if len(numbers) != count or not whole:
            raise ModelError(f"{where} is {str(found)[:40]}; it must be {count} whole numbers")
        return tuple(numbers)

    return Codec(key, list, read, is_needed)


def _length(key: str, other: int, *, is_needed: bool = False) -> Codec:
    """Return the codec of the first of two numbers, with ``other`` as the second: DL4J's form for 1-d layers."""
    pair = _sizes(key, 2)

    def read(found: Any, where: str) -> int:
        return int(found[0]) if isinstance(found, list) and len(found) == 1 else int(pair.read(found, where)[0])

    return Codec(key, lambda value: [value, other], read, is_needed)


_MODE = Codec("convolutionMode", lambda value: value.capitalize(), lambda found, where: str(found).lower())
_CONVOLUTION: Final = {
    "kernel_size": _sizes("kernelSize", 2, is_needed=True),
    "stride": _sizes("stride", 2),
    "padding": _sizes("padding", 2),
    "dilation": _sizes("dilation", 2),
    "convolution_mode": _MODE,
}
_CONVOLUTION1D: Final = {
    "kernel_size": _length("kernelSize", 1, is_needed=True),
    "stride": _length("stride", 1),
    "padding": _length("padding", 0),
    "dilation": _length("dilation", 1),
    "convolution_mode": _MODE,
}
_P: Final = Codec("pnorm", read=lambda found, where: int(number({"x": found}, "x", 0.0, where)) or 2)
"""The p of a norm; DL4J writes 0 for other kinds of pooling."""
_NCW: Final[Tree] = {"rnnDataFormat": "NCW"}
"""Without this, 1.0.0 takes the last axis as the values."""
_POOLING: Final = {"pooling_type": _upper("poolingType"), "pnorm": _P}
_UNCOUNTED: Final[Tree] = {"avgPoolIncludePadInDivisor": False}
_WINDOWS_ONLY: Final[dict[str, tuple[Any, ...]]] = {
    "avgPoolIncludePadInDivisor": (False, True),  # see dl4j.reader
    "dilation": ([1, 1], [1]),
}


def _pools(fields: dict[str, Codec]) -> dict[str, Codec]:
    return {name: codec for name, codec in fields.items() if name != "dilation"} | _POOLING


def _is_dilated(layer: Any) -> bool:
    return layer.dilation not in (1, (1, 1))


def _activation(key: str, known: tuple[str, ...] = tuple(names.ACTIVATIONS)) -> Codec:
    """Return the codec of an activation besides the layer's own, in the form that every version reads."""

    def read(found: Any, where: str) -> str:
        short, fields = tagged(found, where)
        name = read_activation(short, fields, where)
        if name not in known:
            raise ModelError(f"{where}: activation {short!r} is not known here; known: {', '.join(sorted(known))}")
        return name

    def write_new(name: str) -> Tree:
        short, constants = names.ACTIVATIONS[name]
        return {"@class": names.ACTIVATION_CLASS + short, **constants}

    return Codec(key, lambda name: {names.ACTIVATIONS[name][0]: {}}, read, write_new=write_new)


def _list(key: str) -> Codec:
    """Return the codec of a list of whole numbers of any length."""
    return Codec(key, list, lambda found, where: _sizes(key, max(1, len(found))).read(found, where))


def _reconstruction() -> Codec:
    """Return the codec of the distribution in a variational autoencoder's output."""
    inner = _activation("activationFn")
    kinds = {
        cls.__name__.removesuffix("ReconstructionDistribution"): cls for cls in get_args(ReconstructionDistribution)
    }

    def write(value: Any) -> Tree:
        name = type(value).__name__.removesuffix("ReconstructionDistribution")
        return {name: {"activationFn": inner.write(value.activation)}}

    def write_new(value: Any) -> Tree:
        name = f"{_VARIATIONAL}{type(value).__name__}"
        return {"@class": name, "activationFn": inner.written(value.activation, old=False)}

    def read(found: Any, where: str) -> Any:
        short, fields = tagged(found, where)
        cls = kinds.get(short.removesuffix("ReconstructionDistribution"))
        if cls is None:
            raise ModelError(f"{where} is a {short}; known distributions are {', '.join(sorted(kinds))}")
        node = fields.get("activationFn")
        return cls() if node is None else cls(activation=inner.read(node, f"{where}.activationFn"))

    return Codec("outputDistribution", write, read, write_new=write_new)


_RECURRENT: Final = {
    "forget_gate_bias_init": _number("forgetGateBiasInit"),
    "gate_activation": _activation("gateActivationFn", GATES),
}
_LOSS_OF_PRETRAINING: Final = {
    "sparsity": _number("sparsity"),
    "visible_bias_init": _number("visibleBiasInit"),
}
_UNIT: Final = {field: _upper(names.camel(field)) for field in ("hidden_unit", "visible_unit")}

_KINDS = (
    Kind(layers.DenseLayer, "dense", "DenseLayer", {}),
    Kind(layers.OutputLayer, "output", "OutputLayer", {}),
    Kind(layers.RBM, "RBM", "RBM", {**_LOSS_OF_PRETRAINING, **_UNIT, "k": _whole("k")}),
    Kind(
        layers.AutoEncoder,
        "autoEncoder",
        "AutoEncoder",
        {**_LOSS_OF_PRETRAINING, "corruption_level": _number("corruptionLevel")},
    ),
    Kind(layers.ConvolutionLayer, "convolution", "ConvolutionLayer", _CONVOLUTION, is_new=_is_dilated),
    Kind(
        layers.Convolution1DLayer, "convolution1d", "Convolution1DLayer", _CONVOLUTION1D, is_new=_is_dilated, fixed=_NCW
    ),
    Kind(
        layers.SubsamplingLayer,
        "subsampling",
        "SubsamplingLayer",
        _pools(_CONVOLUTION),
        is_sized=False,
        only=_WINDOWS_ONLY,
        fixed=_UNCOUNTED,
    ),
    Kind(
        layers.Subsampling1DLayer,
        "subsampling1d",
        "Subsampling1DLayer",
        _pools(_CONVOLUTION1D),
        is_sized=False,
        only=_WINDOWS_ONLY,
        fixed=_UNCOUNTED,
    ),
    Kind(
        layers.GlobalPoolingLayer,
        "GlobalPooling",
        "GlobalPoolingLayer",
        {**_POOLING, "collapse_dimensions": _flag("collapseDimensions")},
        is_sized=False,
        only={"poolingDimensions": ([2], [2, 3])},
    ),
    Kind(layers.ZeroPaddingLayer, "zeroPadding", "ZeroPaddingLayer", {"padding": _sizes("padding", 4)}, is_sized=False),
    Kind(layers.ZeroPadding1DLayer, None, "ZeroPadding1DLayer", {"padding": _sizes("padding", 2)}, is_sized=False),
    Kind(
        layers.BatchNormalization,
        "batchNormalization",
        "BatchNormalization",
        {
            **{field: _number(field) for field in ("decay", "eps", "gamma", "beta")},
            "is_minibatch": _flag("minibatch"),
            "lock_gamma_beta": _flag("lockGammaBeta"),
        },
        only={"useLogStd": (False, True)},  # see dl4j.layout
    ),
    Kind(
        layers.LocalResponseNormalization,
        "localResponseNormalization",
        "LocalResponseNormalization",
        {"n": _whole("n"), **{field: _number(field) for field in ("k", "alpha", "beta")}},
        is_sized=False,
    ),
    Kind(layers.ActivationLayer, "activation", "ActivationLayer", {}, is_sized=False),
    Kind(layers.DropoutLayer, "dropout", "DropoutLayer", {}, is_sized=False),
    Kind(layers.LossLayer, "loss", "LossLayer", {}, is_sized=False),
    Kind(
        layers.CenterLossOutputLayer,
        "CenterLossOutputLayer",
        "CenterLossOutputLayer",
        {"alpha": _number("alpha"), "lambda_": _number("lambda")},
    ),
    Kind(
        layers.VariationalAutoencoder,
        "VariationalAutoencoder",
        "variational.VariationalAutoencoder",
        {
            "encoder_layer_sizes": _list("encoderLayerSizes"),
            "decoder_layer_sizes": _list("decoderLayerSizes"),
            "reconstruction_distribution": _reconstruction(),
            "pzx_activation": _activation("pzxActivationFn"),
            "num_samples": _whole("numSamples"),
        },
    ),
    Kind(layers.EmbeddingLayer, "embedding", "EmbeddingLayer", {}),
    Kind(layers.LSTM, "LSTM", "LSTM", _RECURRENT, fixed=_NCW),
    Kind(layers.GravesLSTM, "gravesLSTM", "GravesLSTM", _RECURRENT, fixed=_NCW),
    Kind(layers.GravesBidirectionalLSTM, "gravesBidirectionalLSTM", "GravesBidirectionalLSTM", _RECURRENT, fixed=_NCW),
    Kind(layers.RnnOutputLayer, "rnnoutput", "RnnOutputLayer", {}, fixed=_NCW),
    Kind(
        layers.Bidirectional,
        None,
        "recurrent.Bidirectional",
        {"mode": _upper("mode")},
        is_sized=False,
        fixed={"rnndataFormat": "NCW"},
    ),
    Kind(layers.LastTimeStep, None, "recurrent.LastTimeStep", {}, is_sized=False),
)
WRAPPERS: Final[dict[type[Layer], tuple[str, ...]]] = {
    layers.Bidirectional: ("fwd", "bwd"),
    layers.LastTimeStep: ("underlying",),
}
"""Wrapper layers, and DL4J's keys for the wrapped layer."""
KINDS: Final[dict[type[Layer], Kind]] = {kind.cls: kind for kind in _KINDS}


def _key(name: str) -> str:
    return name.rsplit(".", 1)[-1].lower().removesuffix("layer")


_BY_NAME: Final = {_key(name): kind for kind in _KINDS for name in (kind.old or kind.new, kind.new)}


def kind_of(layer: Layer) -> Kind:
    """Return the entry of a layer."""
    return KINDS[type(layer)]


def kind_named(name: str, where: str) -> Kind:
    """Return the entry for a wrapper or class name; raise ``ModelError`` naming ``where`` if there is none."""
    kind = _BY_NAME.get(_key(name))
    if kind is None:
        raise ModelError(f"{where} is a {name}; known layers are {', '.join(sorted(_BY_NAME))}")
    return kind


# -- preprocessors ---------------------------------------------------------------------------------------------------

_PRES: Final[dict[str, type[InputPreProcessor]]] = {cls.__name__: cls for cls in get_args(InputPreProcessor)}
_ENDINGS: Final = ("PrePreProcessor", "PreProcessor", "Processor")
_WRAPPED_PRES: Final[dict[str, str]] = {}
"""Class names by their wrappers in 0.9.1: ``zeroMean`` is a ``ZeroMeanPrePreProcessor``."""
for _name in _PRES:
    _short = _name.removesuffix(next(_end for _end in _ENDINGS if _name.endswith(_end)))
    _WRAPPED_PRES[_short[0].lower() + _short[1:]] = _name
_WRAPPERS_OF_PRES: Final = {name: wrapper for wrapper, name in _WRAPPED_PRES.items()}
_IMAGE: Final = {"height": "inputHeight", "width": "inputWidth", "channels": "numChannels"}
_FORMATS_OF_PRES: Final[dict[str, Tree]] = {
    "CnnToFeedForwardPreProcessor": {"format": "NCHW"},
    "CnnToRnnPreProcessor": {"rnnDataFormat": "NCW"},
    "FeedForwardToRnnPreProcessor": {"rnnDataFormat": "NCW"},
    "RnnToCnnPreProcessor": {"rnnDataFormat": "NCW"},
    "RnnToFeedForwardPreProcessor": {"rnnDataFormat": "NCW"},
}
_PARTS: Final = "inputPreProcessors"


def pre_processor_tree(pre: InputPreProcessor, *, old: bool) -> Tree:
    """Return a preprocessor in DL4J's form."""
    if isinstance(pre, ComposableInputPreProcessor):
        fields: Tree = {_PARTS: [pre_processor_tree(part, old=old) for part in pre.input_pre_processors]}
    else:
        fields = {_IMAGE[field]: getattr(pre, field) for field in pre.__struct_fields__}
    name = type(pre).__name__
    if not old:
        fields |= _FORMATS_OF_PRES.get(name, {})
    return {_WRAPPERS_OF_PRES[name]: fields} if old else {"@class": _PRE_PROCESSORS + name, **fields}


def pre_processor(node: object, where: str) -> InputPreProcessor:
    """Return the preprocessor in DL4J's form ``node``; raise ``ModelError`` if it is unknown."""
    short, fields = tagged(node, where)
    cls: Any = _PRES.get(_WRAPPED_PRES.get(short, short))
    if cls is None:
        raise ModelError(f"{where} is a {short}; known preprocessors are {', '.join(sorted(_PRES))}")
    if cls is ComposableInputPreProcessor:
        parts = fields.get(_PARTS)
        if not isinstance(parts, list) or not parts:
            raise ModelError(f"{where} is a {short} without a list {_PARTS}: {str(parts)[:80]}")
        found = [pre_processor(part, f"{where}.{_PARTS}[{i}]") for i, part in enumerate(parts)]
        return ComposableInputPreProcessor(input_pre_processors=tuple(found))
    check_keys(fields, {"type", "product", *_IMAGE.values()}, where, is_layer=False)
    check_formats(fields, where)
    sizes = {field: _whole(_IMAGE[field]).read(fields.get(_IMAGE[field]), where) for field in cls.__struct_fields__}
    made: InputPreProcessor = cls(**sizes)
    return made
