"""Reads ``configuration.json`` of a Deeplearning4j model, 0.7 to 1.0.0-M2.1 (writing: ``dl4j.json``).

An unknown feature that changes the network's output is an error that names the place in the file. An unknown feature of
training only (a constraint, weight noise, a rate for biases) is left out with a warning in the log: the predictions
remain the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from dl4jlegacy.errors import ConfError, ModelError
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.interchange.dl4j import names
from dl4jlegacy.nn.interchange.dl4j.input_types import is_superfluous, stack_input_type
from dl4jlegacy.nn.interchange.dl4j.layers import WRAPPERS, kind_named, pre_processor
from dl4jlegacy.nn.interchange.dl4j.names import listed, number, read_activation, tagged
from dl4jlegacy.nn.interchange.dl4j.schedules import read_changes, read_policy, read_schedule
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.convolution import Convolution1DLayer
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.output import BaseOutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.optimization.updaters import UPDATERS, Adam, AdamW, Nesterovs, Updater
from dl4jlegacy.nn.optimization.weights import Distribution
from dl4jlegacy.system.decoding import decodable

__all__ = ["biases_of_their_own", "from_dl4j", "read_layer", "read_network", "read_truncation"]

logger = logging.getLogger(__name__)

Tree = dict[str, Any]

_UPDATERS: Final = {cls.__name__.lower(): cls for cls in UPDATERS.values() if cls is not AdamW}
_DISTRIBUTIONS: Final = {cls.__name__.removesuffix("Distribution").lower(): cls for cls in Distribution.__args__}
_ALIASES: Final = frozenset({"mae", "mape", "msle", "squared_loss", "reconstruction_crossentropy"})
_LOSSES: Final = {short.lower(): name for name, (short, _) in names.LOSSES.items() if name not in _ALIASES}
_ENUM_LOSSES: Final = {enum: name for name, (_, enum) in names.LOSSES.items() if name not in ("mae", "mape", "msle")}
_DECAY: Final = "WeightDecay"
_BETA: Final = "the file is of 1.0.0-beta to 1.0.0-beta3, which this package was not compared with"
_TRAINING_ONLY: Final = ("constraints", "weightNoise", "biasUpdater")


def from_dl4j(tree: Tree, input_types: Sequence[AnyInputType] = ()) -> MultiLayerConfiguration:
    """Return the configuration in the tree of a ``configuration.json``.

    Args:
        tree: the parsed file.
        input_types: types of the network's inputs; empty: inferred from the file.

    Raises:
        ModelError: not a multi-layer configuration, or one with layers or functions that this package does not have.
    """
    confs = listed(tree, "confs", "configuration")
    if not confs or not all(isinstance(conf, dict) for conf in confs):
        what = "a ComputationGraph" if "vertices" in tree else "no multi-layer network"
        raise ModelError(f"configuration.json describes {what} (it has no list 'confs'); this reads MultiLayerNetworks")
    try:
        layers = tuple(read_layer(conf, f"confs[{i}]") for i, conf in enumerate(confs))
        network, phases = read_network(confs[0]), _phases(tree, layers)
        kind = stack_input_type(layers, phases["input_pre_processors"], network, input_types)
        return MultiLayerConfiguration(conf=network, layers=layers, input_type=kind, **phases)
    except ConfError as exc:
        raise ModelError(f"configuration.json does not fit together: {exc}") from exc


def _phases(tree: Tree, layers: Sequence[Layer]) -> Tree:
    pres = tree.get("inputPreProcessors") or {}
    if not isinstance(pres, dict) or not all(str(index).isdecimal() for index in pres):
        raise ModelError(f"configuration.inputPreProcessors is no map from layer to preprocessor: {str(pres)[:80]}")
    found = {int(i): pre_processor(p, f"inputPreProcessors[{i}]") for i, p in pres.items()}
    found = {i: pre for i, pre in found.items() if not (0 < i <= len(layers) and is_superfluous(pre, layers[i - 1]))}
    return {
        "pretrain": tree.get("pretrain") is True,
        "backprop": tree.get("backprop") is not False,
        "input_pre_processors": found,
        **read_truncation(tree),
    }


def read_truncation(tree: Tree) -> Tree:
    """Return our fields for truncated backpropagation, for a network of either kind."""
    lengths = {f"tbptt_{way}_length": f"tbptt{way.capitalize()}Length" for way in ("fwd", "back")}
    found: Tree = {name: int(number(tree, key, 20, "configuration")) or 20 for name, key in lengths.items()}
    return found | {"backprop_type": "truncated_bptt" if tree.get("backpropType") == "TruncatedBPTT" else "standard"}


def read_network(conf: Tree) -> NeuralNetConfiguration:
    """Return the network-wide configuration, read from the tree of one of the network's layers."""
    seed, data_type = conf.get("seed"), conf.get("dataType", "FLOAT")
    if data_type not in ("FLOAT", "DOUBLE"):
        raise ModelError(f"confs[0].dataType is {data_type!r}; FLOAT and DOUBLE are known")
    if _is_early_beta(conf, conf.get("layer")):
        logger.warning("confs[0].dataType is missing: %s; compare a prediction with one of there", _BETA)
    if conf.get("minimize") is False:
        logger.warning("minimize is false, but Deeplearning4j's gradient descent goes down all the same; so does this")
    if number(conf, "numIterations", 1, "confs[0]") > 1:
        logger.warning("numIterations is %s; training on would do one update a batch", conf["numIterations"])
    return NeuralNetConfiguration(
        seed=seed if isinstance(seed, int) and not isinstance(seed, bool) else 0,
        mini_batch=conf.get("miniBatch") is not False,
        dtype="float64" if data_type == "DOUBLE" else "float32",
    )


# -- layers ----------------------------------------------------------------------------------------------------------


def read_layer(conf: Tree, where: str) -> Layer:
    """Return the layer of a ``NeuralNetConfiguration``'s tree; ``where`` names the place in messages."""
    name, body = tagged(conf.get("layer"), f"{where}.layer")
    where = f"{where}.layer"
    is_frozen = name == "FrozenLayer"
    if is_frozen:
        where = f"{where}.layer"
        name, body = tagged(body.get("layer"), where)
    kind = kind_named(name, where)
    cls: Any = kind.cls
    if cls in WRAPPERS:
        inner = read_layer({**conf, "layer": body.get(WRAPPERS[cls][0])}, where)
        wrapper: Layer = cls(layer=inner, name=body.get("layerName"), frozen=is_frozen, **kind.read(body, where))
        return wrapper
    _check_plain(conf, body, where)
    fields: Tree = {
        "name": body.get("layerName"),
        "activation": lambda: _activation(body, where),
        "bias_init": lambda: number(body, "biasInit", 0.0, where),
        "updater": lambda: _updater(conf, body, where),
        "drop_out": lambda: _drop_out(body, where),
        "gradient_normalization": lambda: names.snake(str(body.get("gradientNormalization") or "None")),
        "gradient_normalization_threshold": lambda: number(body, "gradientNormalizationThreshold", 1.0, where) or 1.0,
    }
    fields = {key: read() if callable(read) else read for key, read in fields.items() if key not in cls.unused}
    shared = {**_weight_init(body, where), **_penalties(conf, body, where)}
    fields |= {key: value for key, value in shared.items() if key not in cls.unused}
    if kind.is_sized:
        fields |= {"n_in": _size(body, "nin", where), "n_out": _size(body, "nout", where)}
    if issubclass(cls, BaseOutputLayer):
        fields |= _output_loss(body, where)
    if cls in (RBM, AutoEncoder):
        fields["loss"] = _pretrain_loss(body, where)
    own = kind.read(body, where)
    if _is_early_beta(conf, body):
        _check_beta(cls, own, where)
    _check_padding(body, own, where)
    if body.get("useLogStd") is True:
        logger.warning("%s: training on would average its variance, not the logarithm of that", where)
    layer: Layer = cls(**fields, **own, frozen=is_frozen)
    return layer


def _is_early_beta(conf: Tree, body: object) -> bool:
    """Return whether a layer is of an early 1.0.0 beta, which has class names but no data type."""
    return isinstance(body, dict) and "@class" in body and "dataType" not in conf


def _check_beta(cls: Any, own: Tree, where: str) -> None:
    """Raise ``ModelError`` for layers whose computation in the first betas is unknown."""
    pads = np.any(own.get("padding", 0)) or own.get("convolution_mode") == "same"
    if cls is Convolution1DLayer or (pads and own.get("pooling_type") in ("max", "avg")):
        what = (
            "one-dimensional convolution keeps its weights" if cls is Convolution1DLayer else "pooling counts padding"
        )
        raise ModelError(
            f"{where} is of a version whose {what} in a way that is not known here: {_BETA}; read the file in "
            "1.0.0-M2.1 and save it there"
        )


def _check_padding(body: Tree, own: Tree, where: str) -> None:
    """Raise ``ModelError`` if padding takes part in pooling: always in 0.9.1, in 1.0.0 by a setting."""
    kind = own.get("pooling_type")
    if kind not in ("max", "avg") or "padding" not in own:
        return
    padding, kernel = (np.atleast_1d(own[name]) for name in ("padding", "kernel_size"))
    if not padding.any() and not (own.get("convolution_mode") == "same" and (kernel > 1).any()):
        return
    if "@class" not in body:
        what = "takes maxima against 0 there" if kind == "max" else "divides by the whole window"
        raise ModelError(f"{where} pools with padding, and Deeplearning4j 0.9.1 {what}; here padding holds no values")
    if kind == "avg" and body.get("avgPoolIncludePadInDivisor") is True:
        raise ModelError(f"{where}.avgPoolIncludePadInDivisor is true; here an average does not count padding")


def _check_plain(conf: Tree, body: Tree, where: str) -> None:
    if body.get("hasBias") is False:
        logger.warning("%s has no bias; here it gets one of zeros, which training on would change", where)
    if body.get("hasLayerNorm") is True:
        raise ModelError(f"{where} uses layer normalization, which is not known here")
    if conf.get("useDropConnect") is True:
        logger.warning("%s: DropConnect is left out; training on would not use it", where)
    rate = number(body, "learningRate", 0.1, where)
    if number(body, "biasLearningRate", rate, where) != rate:
        logger.warning("%s: the separate learning rate of biases is left out; training on would use %s", where, rate)
    for key in _TRAINING_ONLY:
        if body.get(key):
            logger.warning("%s: %s is left out; training on would not use it", where, key)


def biases_of_their_own(tree: object) -> str:
    """Return a text about the first layer whose biases have their own updater or learning rate; "": there is none."""
    for node in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        if found := biases_of_their_own(node):
            return found
    if not isinstance(tree, dict):
        return ""
    name = tree.get("layerName") or "without a name"
    if tree.get("biasUpdater"):
        return f"layer {name} has a biasUpdater"
    rates = [tree.get(key) for key in ("learningRate", "biasLearningRate")]
    if all(isinstance(rate, float) and rate > 0 for rate in rates) and rates[0] != rates[1]:
        return f"layer {name} has learningRate {rates[0]} and biasLearningRate {rates[1]}"
    return ""


def _size(body: Tree, key: str, where: str) -> int:
    value = body.get(key, body.get(key.replace("n", "n_", 1)))
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise ModelError(f"{where}.{key} is {str(value)[:40]}; it must be a positive number of units")
    return value


def _pretrain_loss(body: Tree, where: str) -> str:
    enum = body.get("lossFunction") or "RECONSTRUCTION_CROSSENTROPY"
    if enum not in _ENUM_LOSSES:
        raise ModelError(f"{where}.lossFunction is {str(enum)[:40]!r}; known are {', '.join(sorted(_ENUM_LOSSES))}")
    return _ENUM_LOSSES[enum]


# -- functions -------------------------------------------------------------------------------------------------------


def _activation(body: Tree, where: str) -> str:
    if "activationFn" not in body and isinstance(body.get("activationFunction"), str):  # before 0.7.2
        short: str = body["activationFunction"]
        fields: Tree = {}
    else:
        short, fields = tagged(body.get("activationFn"), f"{where}.activationFn")
    return read_activation(short, fields, where)


def _output_loss(body: Tree, where: str) -> Tree:
    enum = body.get("lossFunction")
    if body.get("lossFn") is None and enum in _ENUM_LOSSES:  # up to 0.5
        return {"loss": _ENUM_LOSSES[enum]}
    short, fields = tagged(body.get("lossFn"), f"{where}.lossFn")
    name = _LOSSES.get(short.removeprefix("Loss").lower())
    if name is None:
        raise ModelError(f"{where}: loss {short!r} is not known; known: {', '.join(sorted(_LOSSES))}")
    weights = fields.get("weights")
    if weights is None:
        return {"loss": name}
    if isinstance(weights, dict):  # an ND4J array in 1.0.0
        weights = weights.get("data")
    if not isinstance(weights, list) or not all(isinstance(w, int | float) for w in weights):
        raise ModelError(f"{where}.lossFn.weights is not a list of numbers")
    return {"loss": name, "loss_weights": tuple(float(w) for w in weights)}


def _drop_out(body: Tree, where: str) -> float:
    dropout = body.get("idropout")
    if dropout is None:
        return number(body, "dropOut", 0.0, where)
    kind, fields = tagged(dropout, f"{where}.idropout")
    if kind != "Dropout" or fields.get("pschedule"):
        logger.warning("%s: %s is left out; training on would not use it", where, kind)
        return 0.0
    return number(fields, "p", 0.0, f"{where}.idropout")


def _weight_init(body: Tree, where: str) -> Tree:
    if body.get("weightInitFn") is None:
        name = str(body.get("weightInit") or "XAVIER").lower()
        dist = body.get("dist")
        return {"weight_init": name, "dist": None if dist is None else _distribution(dist, f"{where}.dist")}
    short, fields = tagged(body["weightInitFn"], f"{where}.weightInitFn")
    name = names.snake(short.removeprefix("WeightInit"))
    if name == "constant":
        name = {0.0: "zero", 1.0: "ones"}.get(number(fields, "value", 0.0, where), "zero")
    if name == "distribution":
        return {"weight_init": name, "dist": _distribution(fields.get("distribution"), f"{where}.weightInitFn")}
    return {"weight_init": name}


def _distribution(node: object, where: str) -> Distribution:
    short, fields = tagged(node, where)
    key = short.lower().removesuffix("distribution").replace("gaussian", "normal")
    if key not in _DISTRIBUTIONS:
        raise ModelError(f"{where}: distribution {short!r} is not known; known: {', '.join(sorted(_DISTRIBUTIONS))}")
    cls = _DISTRIBUTIONS[key]
    distribution: Distribution = _converted(cls, {f: fields.get(names.camel(f)) for f in cls.__struct_fields__}, where)
    return distribution


def _converted(cls: Any, fields: Tree, where: str) -> Any:
    """Return a struct made from plain values; missing values, null and NaN get the default."""
    given = {name: value for name, value in fields.items() if value is not None and value != "NaN"}
    try:
        return msgspec.convert(given, decodable(cls))
    except msgspec.ValidationError as exc:
        raise ModelError(f"{where}: {exc}") from exc


def _penalties(conf: Tree, body: Tree, where: str) -> dict[str, float]:
    if "regularization" in body or "regularizationBias" in body:
        return _regularization(body, "regularization", "", where) | _regularization(
            body, "regularizationBias", "_bias", where
        )
    used = conf.get("useRegularization") is not False  # 0.x stores the values but ignores them without this flag
    keys = {"l1": "l1", "l2": "l2", "l1_bias": "l1Bias", "l2_bias": "l2Bias"}
    return {ours: number(body, key, 0.0, where) if used else 0.0 for ours, key in keys.items()}


def _regularization(body: Tree, key: str, suffix: str, where: str) -> dict[str, float]:
    result = {f"l1{suffix}": 0.0, f"l2{suffix}": 0.0}
    for node in listed(body, key, where):
        short, fields = tagged(node, f"{where}.{key}")
        name = short.removesuffix("Regularization").lower()
        fixed = fields.get(name)
        if short == _DECAY and not suffix:
            continue  # it belongs to the updater
        if name not in ("l1", "l2") or not isinstance(fixed, dict) or "value" not in fixed:
            logger.warning("%s: %s is left out; training on would not use it", where, short)
            continue
        result[name + suffix] = number(fixed, "value", 0.0, f"{where}.{key}")
    return result


# -- updaters --------------------------------------------------------------------------------------------------------


def _updater(conf: Tree, body: Tree, where: str) -> Updater:
    node = body.get("iupdater")
    if node is not None:
        short, fields = tagged(node, f"{where}.iupdater")
        fields = {**body, **fields} if "updater" in body else fields
    else:  # before 0.9: an enum, with the constants in the layer's fields
        short, fields = str(body.get("updater") or "SGD"), body
    key = {"none": "noop"}.get(short.lower(), short.lower())
    if key not in _UPDATERS:
        raise ModelError(f"{where}: updater {short!r} is not known; known: {', '.join(sorted(_UPDATERS))}")
    cls = _UPDATERS[key]
    own = [name for name in cls.__struct_fields__ if name not in ("schedule", "momentum_after")]
    values: Tree = {name: fields.get(_updater_key(node is None, name)) for name in own}
    schedule = None
    if "schedule" in cls.__struct_fields__:
        given = fields.get("learningRateSchedule")
        if isinstance(given, dict) and "@class" in given:
            values["learning_rate"], schedule = read_schedule(given, f"{where}.learningRateSchedule")
        else:
            schedule = read_policy(conf, body, where)
    updater: Updater = _converted(cls, values, f"{where}.iupdater")
    if schedule is not None:
        updater = msgspec.structs.replace(updater, schedule=schedule)
    return _with_momentum(_with_decay(updater, body, where), fields, where)


def _with_decay(updater: Updater, body: Tree, where: str) -> Updater:
    """Return AdamW for Adam with ``WeightDecay`` of weights by its rate; any other is left out.

    Deeplearning4j applies all that are in the list; its builder writes the one of a network twice.
    """
    for node in listed(body, "regularization", where):
        short, fields = tagged(node, f"{where}.regularization")
        coeff = fields.get("coeff")
        if short != _DECAY:
            continue
        if isinstance(updater, Adam) and fields.get("applyLR") is True and isinstance(coeff, dict) and "value" in coeff:
            known = {"weight_decay": 0.0} | msgspec.structs.asdict(updater)
            known["weight_decay"] += number(coeff, "value", 0.0, f"{where}.regularization")
            updater = AdamW(**known)
        else:
            logger.warning("%s: %s is left out; training on would not use it", where, short)
    return updater


def _updater_key(is_enum: bool, name: str) -> str:
    if is_enum:
        old = {"beta1": "adamMeanDecay", "beta2": "adamVarDecay"}
        if name in old:
            return old[name]
    return "rmsDecay" if name == "decay" else names.camel(name)


def _with_momentum(updater: Updater, fields: Tree, where: str) -> Updater:
    """Add ``momentum_after`` to Nesterovs: a map in 0.x, a schedule in 1.0.0."""
    if not isinstance(updater, Nesterovs):
        return updater
    table = fields.get("momentumSchedule")
    node = fields.get("momentumISchedule")
    if node is not None:
        short, values = tagged(node, f"{where}.momentumISchedule")
        table = values.get("values") if short == "MapSchedule" else None
        if table is None:
            logger.warning("%s: the momentum's %s is left out", where, short)
    if not table:
        return updater
    return msgspec.structs.replace(updater, momentum_after=read_changes(table, where))
