"""Conversion of Keras losses and optimizers, so that training can continue."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rnn_output import RnnOutputLayer
from dl4jlegacy.nn.optimization.updaters import AdaGrad, Adam, Nesterovs, RmsProp, Sgd, Updater

__all__ = ["output_layer", "updater_of"]

logger = logging.getLogger(__name__)

_LOSSES = {
    "binary_crossentropy": "xent",
    "categorical_crossentropy": "mcxent",
    "hinge": "hinge",
    "kl_divergence": "kl_divergence",
    "kullback_leibler_divergence": "kl_divergence",
    "mae": "mae",
    "mape": "mape",
    "mean_absolute_error": "mae",
    "mean_absolute_percentage_error": "mape",
    "mean_squared_error": "mse",
    "mean_squared_logarithmic_error": "msle",
    "mse": "mse",
    "msle": "msle",
    "poisson": "poisson",
    "sparse_categorical_crossentropy": "sparse_mcxent",
    "squared_hinge": "squared_hinge",
}
_USUAL = {"softmax": "mcxent", "sigmoid": "xent"}


def output_layer(
    layer: DenseLayer, training: Mapping[str, Any], name: str, number: int, *, is_sequence: bool
) -> OutputLayer | RnnOutputLayer:
    """Return the dense layer at output ``number`` with the compiled loss, or the usual one for its activation."""
    said = training.get("loss")
    if isinstance(said, dict) and "class_name" not in said:
        said = said.get(name)
    elif isinstance(said, list):
        said = said[number] if number < len(said) else None
    usual = _USUAL.get(layer.activation or "", "mse")
    loss = usual if said is None else _LOSSES.get(_snake(said), "")
    if not loss:
        logger.warning("output %r: the loss %s is not here; training on takes %s", name, said, usual)
        loss = usual
    kind = RnnOutputLayer if is_sequence else OutputLayer
    penalties: dict[str, Any] = {field: getattr(layer, field) for field in ("l1", "l2", "l1_bias", "l2_bias")}
    return kind(
        n_out=layer.n_out, activation=layer.activation, loss=loss, name=layer.name, frozen=layer.frozen, **penalties
    )


def _snake(said: Any) -> str:
    """Return the name of a loss, which may be an object's description: ``MeanSquaredError`` is mean_squared_error."""
    if isinstance(said, dict):
        told = said.get("config")
        named = told.get("name") if isinstance(told, dict) else told
        said = named or said.get("class_name", "")
    text = str(said)
    return text if text.islower() else "".join(f"_{c.lower()}" if c.isupper() else c for c in text).lstrip("_")


def updater_of(training: Mapping[str, Any]) -> Updater:
    """Return the model's compiled updater; plain gradient descent, and a warning, for an unsupported one."""
    given = training.get("optimizer_config") or training.get("optimizer")
    if given is None:
        return Sgd(learning_rate=0.1)
    told = given.get("config", {}) if isinstance(given, dict) else {}
    kind = str(given.get("class_name", given) if isinstance(given, dict) else given).rpartition(">")[2].lower()
    rate = told.get("learning_rate", told.get("lr", 0.01))
    if not isinstance(rate, int | float):
        logger.warning("the optimizer's learning rate is a schedule, which is not read; training on takes 0.01")
        rate = 0.01
    epsilon = float(told.get("epsilon") or 1e-7)
    if kind == "adam" and not told.get("amsgrad"):
        betas: dict[str, Any] = {"beta1": float(told.get("beta_1", 0.9)), "beta2": float(told.get("beta_2", 0.999))}
        return Adam(learning_rate=float(rate), epsilon=epsilon, **betas)
    if kind == "sgd" and told.get("nesterov") and told.get("momentum"):
        return Nesterovs(learning_rate=float(rate), momentum=float(told["momentum"]))
    if kind == "sgd" and not told.get("momentum"):
        return Sgd(learning_rate=float(rate))
    if kind == "rmsprop" and not told.get("momentum") and not told.get("centered"):
        return RmsProp(learning_rate=float(rate), decay=float(told.get("rho", 0.9)), epsilon=epsilon)
    if kind == "adagrad":
        return AdaGrad(learning_rate=float(rate), epsilon=epsilon)
    logger.warning("the optimizer %s is not here; training on takes plain gradient descent", kind)
    return Sgd(learning_rate=float(rate))
