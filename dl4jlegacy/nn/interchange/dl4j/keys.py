"""The known keys of layers and vertices in Deeplearning4j's JSON: an unsupported key is an error.

A model from a file must predict as it did in Deeplearning4j. So every key is either supported, or known not to affect
predictions. Any other key, and an unsupported value of a known key, is an error that names its place.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from dl4jlegacy.errors import ModelError

__all__ = ["check_formats", "check_keys", "check_values"]

Tree = dict[str, Any]

_LAYER: Final = frozenset(
    [
        "@class",
        "activationFn",
        "activationFunction",
        "biasInit",
        "biasLearningRate",
        "biasUpdater",
        "constraints",
        "dist",
        "dropOut",
        "epsilon",
        "adamMeanDecay",
        "adamVarDecay",
        "gainInit",
        "gradientNormalization",
        "gradientNormalizationThreshold",
        "hasBias",
        "hasLayerNorm",
        "idropout",
        "iupdater",
        "l1",
        "l1Bias",
        "l2",
        "l2Bias",
        "layerName",
        "learningRate",
        "learningRateSchedule",
        "momentum",
        "momentumSchedule",
        "nin",
        "nout",
        "regularization",
        "regularizationBias",
        "rho",
        "rmsDecay",
        "updater",
        "weightInit",
        "weightInitFn",
        "weightNoise",
        "cudnnAlgoMode",
        "cudnnAllowFallback",
        "cudnnBwdDataAlgo",
        "cudnnBwdFilterAlgo",
        "cudnnFwdAlgo",
        "helperAllowFallback",
        "distRecurrent",
        "weightInitFnRecurrent",
        "weightInitRecurrent",
        "eps",
        "gradientCheck",
        "lossFn",
        "lossFunction",
        "preTrainIterations",
        "pretrain",
        "pnorm",
        "n_in",
        "n_out",
        "visibleBiasInit",
    ]
)
"""Keys that layers share: supported by ``dl4j.reader``, or only about training, memory and libraries."""

_FORMATS: Final = ("cnn2DFormat", "cnn2dDataFormat", "dataFormat", "format", "inputFormat", "rnnDataFormat",
                   "rnndataFormat", "timeDistributedFormat")  # fmt: skip
_CHANNELS_FIRST: Final = ("NCHW", "NCW")


def check_keys(body: Tree, known: Collection[str], where: str, *, is_layer: bool = True) -> None:
    """Raise ``ModelError`` for the first unknown key, unless its value is empty (null, NaN, an empty list)."""
    for key, value in body.items():
        if key in known or key in _FORMATS or (is_layer and key in _LAYER) or key == "@class":
            continue
        if value is None or value == "NaN" or value in ([], {}):
            continue
        raise ModelError(
            f"{where}.{key} is {str(value)[:60]}; this is not known here and could change what the network answers"
        )


def check_formats(body: Tree, where: str) -> None:
    """Raise ``ModelError`` unless the data format is (examples, channels, ...), the only supported one."""
    for key in _FORMATS:
        value = body.get(key)
        if value is not None and value not in _CHANNELS_FIRST:
            raise ModelError(
                f"{where}.{key} is {str(value)[:40]}; only channels first is known here ({', '.join(_CHANNELS_FIRST)})"
            )


def check_values(body: Tree, only: dict[str, tuple[Any, ...]], where: str) -> None:
    """Raise ``ModelError`` for a key with an unsupported value; missing and null are valid."""
    for key, values in only.items():
        found = body.get(key)
        if found is not None and found not in values:
            known = ", ".join(str(value) for value in values)
            raise ModelError(f"{where}.{key} is {str(found)[:60]}; known here: {known}")
