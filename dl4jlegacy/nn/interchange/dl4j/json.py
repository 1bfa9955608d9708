"""Writes ``configuration.json`` in Deeplearning4j's format (reading: ``dl4j.reader``).

The tree has the format of 0.9.1, which 0.9.1 and 1.0.0 read, if 0.9.1 knows everything in the network. A network with
newer features (AMSGrad, swish, ...) is written in the format of 1.0.0-M2.1. (RBMs were removed from DL4J after 0.9.1.)
With both formats DL4J makes the same predictions. Further training in 1.0.0 takes the same steps as here only from the
format of 1.0.0: for an old file, 1.0.0 applies L1 and L2 as 0.9.1 did, after the updater, and ignores learning rate
policies.
"""

from __future__ import annotations

from typing import Any

from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.interchange.dl4j import names
from dl4jlegacy.nn.interchange.dl4j.layers import WRAPPERS, kind_of, pre_processor_tree
from dl4jlegacy.nn.interchange.dl4j.schedules import changes_tree, known_schedule, policy_tree, schedule_tree
from dl4jlegacy.nn.interchange.dl4j.versions import Version, is_old
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.bidirectional import Bidirectional, LastTimeStep
from dl4jlegacy.nn.layers.convolution import ConvolutionLayer
from dl4jlegacy.nn.layers.embedding import EmbeddingLayer
from dl4jlegacy.nn.layers.layer import DenseLayer, Layer
from dl4jlegacy.nn.layers.output import BaseOutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.optimization.schedules import MapSchedule
from dl4jlegacy.nn.optimization.updaters import Adam, AdamW, Nesterovs, RmsProp, Sgd, Updater

__all__ = ["layer_conf", "network_tree", "to_dl4j"]

_LAYERS = "org.deeplearning4j.nn.conf.layers."
_UPDATERS = "org.nd4j.linalg.learning.config."
_SCHEDULES = "org.nd4j.linalg.schedule."
_DISTRIBUTIONS = "org.deeplearning4j.nn.conf.distribution."
_WEIGHTS = "org.deeplearning4j.nn.weights.WeightInit"
_LOSSES = "org.nd4j.linalg.lossfunctions.impl.Loss"
_REGULARIZATION = "org.nd4j.linalg.learning.regularization."

Tree = dict[str, Any]


def to_dl4j(conf: MultiLayerConfiguration, *, iteration: int = 0, version: Version = "0.9.1") -> Tree:
    """Return ``conf`` as the tree of ``configuration.json``.

    Args:
        conf: any configuration.
        iteration: the number of updates done so far.
        version: the format to write, if it can express everything in ``conf``.
    """
    stages = conf.stages()
    layers = [stage.layer for stage in stages]
    old = version == "0.9.1" and all(is_old(layer) for layer in layers)
    own: Tree = {
        "confs": [layer_conf(conf, layer, i, old=old) for i, layer in enumerate(layers)],
        "inputPreProcessors": {
            str(i): pre_processor_tree(stage.pre_processor, old=old)
            for i, stage in enumerate(stages)
            if stage.pre_processor is not None
        },
    }
    return network_tree(conf, own, iteration=iteration, old=old)


def network_tree(conf: Any, own: Tree, *, iteration: int, old: bool, own_of_new: Tree | None = None) -> Tree:
    """Return the tree of a network of either kind: ``own`` fields, those of 1.0.0 alone, and the shared ones."""
    shared = {
        "backpropType": "TruncatedBPTT" if conf.backprop_type == "truncated_bptt" else "Standard",
        "cacheMode": "NONE",
        "inferenceWorkspaceMode": "SEPARATE" if old else "ENABLED",
        "iterationCount": iteration,
        "tbpttBackLength": conf.tbptt_back_length,
        "tbpttFwdLength": conf.tbptt_fwd_length,
        "trainingWorkspaceMode": "NONE" if old else "ENABLED",
    }
    tree = dict(sorted((own | shared).items()))
    if old:
        return tree | {"backprop": conf.backprop, "pretrain": conf.pretrain}
    more = {"dataType": _data_type(conf), "epochCount": 0, **(own_of_new or {}), "validateOutputLayerConfig": False}
    return tree | more


def layer_conf(conf: Any, layer: Layer, index: int, *, old: bool) -> Tree:
    """Return the tree of a layer with the network-wide settings, in the format of 0.9.1 or 1.0.0.

    Args:
        conf: a configuration of any kind of network.
        layer: resolved.
        index: used for the name of a layer without one.
        old: whether to write the format of 0.9.1.
    """
    return _old_conf(conf, layer, index) if old else _new_conf(conf, layer, index)


def _data_type(conf: MultiLayerConfiguration) -> str:
    return "DOUBLE" if conf.conf.dtype == "float64" else "FLOAT"


def _variables(layer: Layer) -> list[str]:
    return [name for name, _ in layer.param_shapes()]


def _common(conf: MultiLayerConfiguration, layer: Layer) -> Tree:
    return {
        "cacheMode": "NONE",
        "iterationCount": 0,
        "maxNumLineSearchIterations": 5,
        "miniBatch": conf.conf.mini_batch,
        "minimize": conf.conf.minimize,
        "optimizationAlgo": "STOCHASTIC_GRADIENT_DESCENT",
        "seed": conf.conf.seed,
        "stepFunction": None,
        "variables": _variables(layer),
    }


def _body(layer: Layer, index: int, *, old: bool) -> Tree:
    """Return the fields that both versions spell alike."""
    threshold = layer.gradient_normalization_threshold
    body: Tree = {
        "biasInit": layer.bias_init or 0.0,
        "gradientNormalization": names.gradient_normalization_name(layer.gradient_normalization),
        "gradientNormalizationThreshold": 1.0 if threshold is None else threshold,
        "layerName": layer.name or f"layer{index}",
    }
    kind = kind_of(layer)
    if kind.is_sized:
        body |= {"nin": layer.n_in, "nout": layer.n_out}
    if isinstance(layer, RBM | AutoEncoder):
        body["lossFunction"] = names.LOSSES[layer.loss][1]
    return body | kind.written(layer, old=old)


def _updater_tree(updater: Updater) -> Tree:
    """Return class and constants of an updater, without schedules; weight decay is a regularization there."""
    name, fields = type(updater).__name__, updater.__struct_fields__
    if isinstance(updater, AdamW):
        name, fields = Adam.__name__, Adam.__struct_fields__
    tree: Tree = {"@class": _UPDATERS + name}
    for field in fields:
        if field not in ("schedule", "momentum_after"):
            tree["rmsDecay" if field == "decay" else names.camel(field)] = getattr(updater, field)
    return tree


def _distribution(layer: Layer) -> Tree | None:
    if layer.dist is None:
        return None
    fields = {names.camel(field): getattr(layer.dist, field) for field in layer.dist.__struct_fields__}
    return {"type": _DISTRIBUTIONS + type(layer.dist).__name__, **fields}


# -- 0.9.1 -----------------------------------------------------------------------------------------------------------


def _old_conf(conf: MultiLayerConfiguration, layer: Layer, index: int) -> Tree:
    rate = _rate(layer.updater)
    by_param = {
        "l1ByParam": (layer.l1, layer.l1_bias),
        "l2ByParam": (layer.l2, layer.l2_bias),
        "learningRateByParam": (0.0, 0.0) if layer.frozen else (rate, rate),
    }
    tables = {
        key: {name: float((of_weight if name in layer.weights else of_bias) or 0.0) for name in _variables(layer)}
        for key, (of_weight, of_bias) in by_param.items()
    }
    return {
        **_common(conf, layer),
        **tables,
        **policy_tree(known_schedule(layer.updater)),
        "layer": _old_layer(layer, index, rate),
        "leakyreluAlpha": 0.0,
        "numIterations": 1,
        "pretrain": False,
        "useDropConnect": False,
        "useRegularization": any((layer.l1, layer.l2, layer.l1_bias, layer.l2_bias)),
    }


def _old_layer(layer: Layer, index: int, rate: float) -> Tree:
    wrapped = {str(kind_of(layer).old): _old_body(layer, index, rate)}
    if not layer.frozen:
        return wrapped  # without dropOut, 0.9.1 uses NaN
    return {"FrozenLayer": {"dropOut": 0.0, "layer": wrapped, "layerName": layer.name or f"layer{index}"}}


def _rate(updater: Updater | None) -> float:
    return float(getattr(updater, "learning_rate", 0.1))


def _old_body(layer: Layer, index: int, rate: float) -> Tree:
    updater = layer.updater or Sgd()
    iupdater, schedule = _updater_tree(updater), known_schedule(updater)
    momentum_after = None
    if isinstance(updater, Nesterovs):
        momentum_after = changes_tree(updater.momentum_after)
    short, constants = names.ACTIVATIONS[layer.activation or "sigmoid"]
    name = type(updater).__name__
    body = {
        **_body(layer, index, old=True),
        "activationFn": {"HardTanh" if short == "HardTanH" else short: constants},
        "biasLearningRate": rate,
        "dist": _distribution(layer),
        "dropOut": layer.drop_out or 0.0,
        "iupdater": iupdater,
        "l1": layer.l1 or 0.0,
        "l1Bias": layer.l1_bias or 0.0,
        "l2": layer.l2 or 0.0,
        "l2Bias": layer.l2_bias or 0.0,
        "learningRate": rate,
        "learningRateSchedule": changes_tree(schedule.values) if isinstance(schedule, MapSchedule) else None,
        "momentumSchedule": momentum_after,
        "updater": names.OLD_UPDATERS[name],
        "weightInit": names.OLD_WEIGHT_INITS[layer.weight_init or "xavier"],
        **_old_constants(updater),
    }
    if isinstance(layer, RBM | AutoEncoder):
        body["preTrainIterations"] = 1
    if isinstance(layer, BaseOutputLayer):
        short, enum = names.LOSSES[layer.loss]
        body |= {"lossFn": {short: _loss_fields(layer)}, "lossFunction": enum}
    return body


def _old_constants(updater: Updater) -> Tree:
    """Return the constants again, as fields of the layer; NaN if the updater has none."""
    return {
        "adamMeanDecay": getattr(updater, "beta1", "NaN"),
        "adamVarDecay": getattr(updater, "beta2", "NaN"),
        "epsilon": getattr(updater, "epsilon", "NaN"),
        "momentum": getattr(updater, "momentum", "NaN"),
        "rho": getattr(updater, "rho", "NaN"),
        "rmsDecay": updater.decay if isinstance(updater, RmsProp) else "NaN",
    }


def _loss_fields(layer: BaseOutputLayer) -> Tree:
    fields: Tree = {"softmaxClipEps": 1e-10} if layer.loss in ("mcxent", "negativeloglikelihood") else {}
    return fields | ({"weights": list(layer.loss_weights)} if layer.loss_weights else {})


# -- 1.0.0 -----------------------------------------------------------------------------------------------------------

_NEW_WEIGHT_INITS: dict[str, tuple[str, Tree]] = {
    "zero": ("Constant", {"value": 0.0}),
    "ones": ("Constant", {"value": 1.0}),
    "lecun_normal": ("Normal", {}),
    "xavier_fan_in": ("Normal", {}),
    "vi": ("XavierUniform", {}),
    "si": ("SigmoidUniform", {}),
}


def _new_conf(conf: MultiLayerConfiguration, layer: Layer, index: int) -> Tree:
    body = _new_layer(layer, index)
    if layer.frozen:
        body = {"@class": _LAYERS + "misc.FrozenLayer", "layer": body, "layerName": body["layerName"]}
    return _common(conf, layer) | {"dataType": _data_type(conf), "epochCount": 0, "layer": body}


def _new_layer(layer: Layer, index: int) -> Tree:
    if isinstance(layer, Bidirectional | LastTimeStep):
        inner = dict.fromkeys(WRAPPERS[type(layer)], _new_layer(layer.inner(), index))
        own = {"layerName": layer.name or f"layer{index}", **kind_of(layer).written(layer, old=False)}
        return {"@class": _LAYERS + kind_of(layer).new, **inner, **own}  # 1.0.0 expects the layers before the name
    updater = layer.updater or Sgd()
    short, constants = names.ACTIVATIONS[layer.activation or "sigmoid"]
    body: Tree = {
        "@class": _LAYERS + kind_of(layer).new,
        **_body(layer, index, old=False),
        "activationFn": {"@class": names.ACTIVATION_CLASS + short, **constants},
        "biasUpdater": None,
        "constraints": None,
        "gainInit": 1.0,
        "idropout": _new_dropout(layer.drop_out),
        "iupdater": _new_updater(updater),
        "regularization": [*_new_regularization(layer.l1, layer.l2), *_weight_decay(updater)],
        "regularizationBias": _new_regularization(layer.l1_bias, layer.l2_bias),
        "weightInitFn": _new_weight_init(layer),
        "weightNoise": None,
    }
    if isinstance(layer, DenseLayer | BaseOutputLayer | ConvolutionLayer | EmbeddingLayer):
        body["hasBias"] = True
    if isinstance(layer, DenseLayer):
        body["hasLayerNorm"] = False
    if isinstance(layer, BaseOutputLayer):
        body["lossFn"] = {"@class": _LOSSES + names.LOSSES[layer.loss][0], **_loss_fields(layer)}
    return body


def _new_dropout(retain: float | None) -> Tree | None:
    if not retain:
        return None
    return {"@class": "org.deeplearning4j.nn.conf.dropout.Dropout", "p": retain, "pschedule": None}


def _new_regularization(l1: float | None, l2: float | None) -> list[Tree]:
    values = (("l1", l1), ("l2", l2))
    return [
        {
            "@class": f"{_REGULARIZATION}{name.upper()}Regularization",
            name: {"@class": _SCHEDULES + "FixedSchedule", "value": value},
        }
        for name, value in values
        if value
    ]


def _weight_decay(updater: Updater) -> list[Tree]:
    if not isinstance(updater, AdamW):
        return []
    coeff = {"@class": _SCHEDULES + "FixedSchedule", "value": updater.weight_decay}
    return [{"@class": f"{_REGULARIZATION}WeightDecay", "applyLR": True, "coeff": coeff}]


def _new_weight_init(layer: Layer) -> Tree:
    name = layer.weight_init or "xavier"
    if name == "distribution":
        return {"@class": _WEIGHTS + "Distribution", "distribution": _distribution(layer)}
    short, fields = _NEW_WEIGHT_INITS.get(name, (names.camel(name, capital=True), {}))
    return {"@class": _WEIGHTS + short, **fields}


def _new_updater(updater: Updater) -> Tree:
    tree = _updater_tree(updater)
    schedule = known_schedule(updater)
    if schedule is not None:
        tree |= {"learningRate": "NaN", "learningRateSchedule": schedule_tree(schedule, _rate(updater))}
    if isinstance(updater, Nesterovs) and updater.momentum_after:
        tree["momentumISchedule"] = schedule_tree(MapSchedule(values=updater.momentum_after), updater.momentum)
    return tree
