"""Names in Deeplearning4j's JSON: constant tables, and its two forms for polymorphic types.

Version 0.9.1 wraps an object in its short name, ``{"ReLU": {...}}``; 1.0.0 writes ``{"@class": "...ActivationReLU"}``
(distributions have always had ``type``). ``tagged`` reads both. Names were checked against files of both versions.
"""

from __future__ import annotations

import re
from typing import Any, Final

from dl4jlegacy.errors import ModelError

__all__ = [
    "ACTIVATIONS",
    "ACTIVATION_CLASS",
    "LOSSES",
    "OLD_ACTIVATIONS",
    "OLD_DISTRIBUTIONS",
    "OLD_LOSSES",
    "OLD_UPDATERS",
    "OLD_WEIGHT_INITS",
    "camel",
    "gradient_normalization_name",
    "listed",
    "number",
    "read_activation",
    "snake",
    "tagged",
]

ACTIVATION_CLASS: Final = "org.nd4j.linalg.activations.impl.Activation"
ACTIVATIONS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "cube": ("Cube", {}),
    "elu": ("ELU", {"alpha": 1.0}),
    "gelu": ("GELU", {"precise": False}),
    "hardsigmoid": ("HardSigmoid", {}),
    "hardtanh": ("HardTanH", {}),
    "identity": ("Identity", {}),
    "leakyrelu": ("LReLU", {"alpha": 0.01}),
    "mish": ("Mish", {}),
    "rationaltanh": ("RationalTanh", {}),
    "rectifiedtanh": ("RectifiedTanh", {}),
    "relu": ("ReLU", {}),
    "relu6": ("ReLU6", {}),
    "rrelu": ("RReLU", {"l": 0.125, "u": 1 / 3}),
    "selu": ("SELU", {}),
    "sigmoid": ("Sigmoid", {}),
    "softmax": ("Softmax", {}),
    "softplus": ("SoftPlus", {}),
    "softsign": ("SoftSign", {}),
    "swish": ("Swish", {}),
    "tanh": ("TanH", {}),
    "thresholdedrelu": ("ThresholdedReLU", {"theta": 1.0}),
}
"""Our name to DL4J's short name and our formula's constants; ``Activation`` + short name is the class.

0.9.1 has one other spelling: ``HardTanh``.
"""
OLD_ACTIVATIONS: Final = frozenset(ACTIVATIONS) - {"relu6", "swish", "thresholdedrelu", "gelu", "mish"}

LOSSES: Final[dict[str, tuple[str, str]]] = {
    "cosine_proximity": ("CosineProximity", "COSINE_PROXIMITY"),
    "hinge": ("Hinge", "HINGE"),
    "kl_divergence": ("KLD", "KL_DIVERGENCE"),
    "l1": ("L1", "L1"),
    "l2": ("L2", "L2"),
    "mae": ("MAE", "MEAN_ABSOLUTE_ERROR"),
    "mape": ("MAPE", "MEAN_ABSOLUTE_PERCENTAGE_ERROR"),
    "mcxent": ("MCXENT", "MCXENT"),
    "mean_absolute_error": ("MAE", "MEAN_ABSOLUTE_ERROR"),
    "mean_absolute_percentage_error": ("MAPE", "MEAN_ABSOLUTE_PERCENTAGE_ERROR"),
    "mean_squared_logarithmic_error": ("MSLE", "MEAN_SQUARED_LOGARITHMIC_ERROR"),
    "mse": ("MSE", "MSE"),
    "msle": ("MSLE", "MEAN_SQUARED_LOGARITHMIC_ERROR"),
    "negativeloglikelihood": ("NegativeLogLikelihood", "NEGATIVELOGLIKELIHOOD"),
    "poisson": ("Poisson", "POISSON"),
    "reconstruction_crossentropy": ("KLD", "RECONSTRUCTION_CROSSENTROPY"),
    "sparse_mcxent": ("SparseMCXENT", "SPARSE_MCXENT"),
    "squared_hinge": ("SquaredHinge", "SQUARED_HINGE"),
    "squared_loss": ("MSE", "SQUARED_LOSS"),
    "wasserstein": ("Wasserstein", "WASSERSTEIN"),
    "xent": ("BinaryXENT", "XENT"),
}
"""Our name to DL4J's short name (``Loss`` + short name is the class) and its enum ``LossFunction``."""
OLD_LOSSES: Final = frozenset(LOSSES) - {"sparse_mcxent", "wasserstein"}

OLD_UPDATERS: Final = {
    "Sgd": "SGD",
    "Nesterovs": "NESTEROVS",
    "AdaGrad": "ADAGRAD",
    "RmsProp": "RMSPROP",
    "Adam": "ADAM",
    "AdaMax": "ADAMAX",
    "AdaDelta": "ADADELTA",
    "Nadam": "NADAM",
    "NoOp": "NONE",
}
OLD_DISTRIBUTIONS: Final = frozenset({"NormalDistribution", "UniformDistribution", "BinomialDistribution"})
OLD_WEIGHT_INITS: Final = {
    "distribution": "DISTRIBUTION",
    "zero": "ZERO",
    "sigmoid_uniform": "SIGMOID_UNIFORM",
    "si": "SIGMOID_UNIFORM",
    "uniform": "UNIFORM",
    "xavier": "XAVIER",
    "xavier_uniform": "XAVIER_UNIFORM",
    "vi": "XAVIER_UNIFORM",  # differs by a 1 under the root; irrelevant for drawn weights
    "xavier_fan_in": "XAVIER_FAN_IN",
    "normal": "XAVIER_FAN_IN",
    "lecun_normal": "XAVIER_FAN_IN",
    "xavier_legacy": "XAVIER_LEGACY",
    "relu": "RELU",
    "relu_uniform": "RELU_UNIFORM",
}


_PACKAGES: Final = ("org.deeplearning4j.", "org.nd4j.")


def camel(name: str, *, capital: bool = False) -> str:
    """``learning_rate`` to ``learningRate`` (or ``LearningRate``)."""
    first, *rest = name.split("_")
    return (first.capitalize() if capital else first) + "".join(word.capitalize() for word in rest)


def snake(name: str) -> str:
    """``ClipL2PerLayer`` to ``clip_l2_per_layer``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def gradient_normalization_name(name: str | None) -> str:
    """``clip_l2_per_layer`` to ``ClipL2PerLayer``."""
    return camel(name or "none", capital=True)


def tagged(node: object, where: str) -> tuple[str, dict[str, Any]]:
    """Return the short type name of a polymorphic object and its fields.

    Raises:
        ModelError: not such an object, or of a class that is not Deeplearning4j's; ``where`` names the place.
    """
    if isinstance(node, dict):
        for key in ("@class", "type"):
            name = node.get(key)
            if not isinstance(name, str):
                continue
            if (key == "@class" or "." in name) and not name.startswith(_PACKAGES):
                raise ModelError(
                    f"{where}.{key} is {name[:80]!r}, a class of somebody's own and none of Deeplearning4j's; what it "
                    "computes is not known here"
                )
            return re.split(r"[.$]", name)[-1], node
        if len(node) == 1:
            name, fields = next(iter(node.items()))
            if isinstance(fields, dict) or fields is None:
                return name, fields or {}
    raise ModelError(f"{where} does not say its type as Deeplearning4j does: {str(node)[:80]}")


def number(fields: dict[str, Any], key: str, default: float, where: str) -> float:
    """Return a number, or ``default`` for a missing field, null or NaN (DL4J writes NaN for unset fields)."""
    value = fields.get(key)
    if value is None or value == "NaN" or value != value:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"{where}.{key} is {str(value)[:40]!r} instead of a number")
    return float(value)


def listed(fields: dict[str, Any], key: str, where: str) -> list[Any]:
    """Return a list, empty if it is missing or null."""
    value = fields.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ModelError(f"{where}.{key} is a {type(value).__name__} instead of a list")
    return value


_BY_SHORT_NAME: Final = {short.lower(): name for name, (short, _) in ACTIVATIONS.items()}


def read_activation(short: str, fields: dict[str, Any], where: str) -> str:
    """Return our name of an activation; raise ``ModelError`` for an unknown activation or constant."""
    key = short.removeprefix("Activation").lower()
    name = _BY_SHORT_NAME.get(key, key)
    if name not in ACTIVATIONS:
        raise ModelError(f"{where}: activation {short!r} is not known; known: {', '.join(sorted(ACTIVATIONS))}")
    constants = dict(ACTIVATIONS[name][1])
    if name == "relu":
        constants = {"max": 0.0, "negativeSlope": 0.0, "threshold": 0.0}
    for field, ours in constants.items():
        found = fields.get(field)
        if found is not None and found != ours:
            raise ModelError(f"{where}: {short} with {field} = {found} is not known here, only with {ours}")
    return name
