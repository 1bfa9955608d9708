"""Class weights: the factor of each class in the loss, as the ``loss_weights`` of the output layer.

``"balanced"`` is scikit-learn's formula, ``n / (k * count)`` for n examples in k classes: all classes then have the
same total weight, and an example has weight 1 on average. It follows King and Zeng (2001).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.errors import ConfError, DataError, nearest
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration
from dl4jlegacy.nn.layers.output import BaseOutputLayer
from dl4jlegacy.nn.networks import NetworkConfiguration

__all__ = [
    "BALANCED",
    "balanced_weights",
    "check_class_weights",
    "class_counts",
    "named_weights",
    "output_layer",
    "weigh_classes",
]

BALANCED = "balanced"
ClassWeights = dict[str, float] | str
_CLASSIFIES = ("mcxent", "negativeloglikelihood", "sparse_mcxent")


def check_class_weights(weights: ClassWeights, where: str) -> None:
    """Raise ``ConfError`` unless ``weights`` is ``"balanced"``, or holds valid numbers that are not all 0."""
    if isinstance(weights, str):
        if weights != BALANCED:
            raise ConfError(f"{where} is {weights!r}; give {BALANCED!r}, or a weight for each class by its name")
        return
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ConfError(f"{where}: class {name!r} has weight {weight}; it must be a number, not negative")
    if not weights:
        raise ConfError(f"{where} is empty; give {BALANCED!r}, or a weight for each class by its name")


def balanced_weights(counts: Sequence[int] | Array) -> tuple[float, ...]:
    """Return ``n / (k * count)`` for each class; k does not count classes without examples, whose weight is 1."""
    total, present = sum(map(int, counts)), sum(1 for count in counts if count)
    return tuple(total / (present * int(count)) if count else 1.0 for count in counts)


def named_weights(weights: Mapping[str, float], names: Sequence[str]) -> tuple[float, ...]:
    """Return the weight of each class, 1 for classes not named; raises ``ConfError`` for an unknown class."""
    for name in weights:
        if name not in names:
            raise ConfError(
                f"Conf.class_weights names {name!r}, which is no class of the data{nearest(name, tuple(names))}"
            )
    found = tuple(float(weights.get(name, 1.0)) for name in names)
    if not any(found):
        raise ConfError("Conf.class_weights are 0 for all classes, so that nothing would be learned")
    return found


def class_counts(examples: DataSet, n_classes: int) -> Array:
    """Return the number of examples (for sequences, of unmasked time steps) in each class, ``(n_classes,)`` int64.

    Raises:
        DataError: the labels are not one class each.
    """
    labels, mask = examples.labels, examples.labels_mask
    if labels.shape[1] == 1 < n_classes:  # class indices
        kept = labels[:, 0].reshape(-1) if mask is None else labels[:, 0][mask.reshape(labels[:, 0].shape) != 0]
        if len(kept) and not ((kept == np.floor(kept)) & (kept >= 0) & (kept < n_classes)).all():
            raise DataError(f"labels are no class numbers from 0 to {n_classes - 1}, so that no class can be weighed")
        return np.bincount(kept.astype(np.int64), minlength=n_classes)
    rows = labels if labels.ndim == 2 else labels.transpose(0, 2, 1).reshape(-1, labels.shape[1])
    if mask is not None and mask.size == len(rows):
        rows = rows[mask.reshape(-1) != 0]
    if not (((rows == 0) | (rows == 1)).all() and (rows.sum(axis=1) == 1).all()):
        raise DataError(
            f"labels of shape {labels.shape} are not one class for each example, so that no class can be weighed; "
            "leave class_weights out"
        )
    counts: Array = rows.sum(axis=0, dtype=np.float64).astype(np.int64)
    return counts


def weigh_classes(conf: NetworkConfiguration, weights: Sequence[float]) -> NetworkConfiguration:
    """Return the configuration with these ``loss_weights`` in its output layer, one for each output.

    Raises:
        ConfError: as for ``output_layer``; or that layer already has other weights.
    """
    layer: Any = output_layer(conf)
    given = tuple(map(float, weights))
    if layer.loss_weights is not None and layer.loss_weights != given:
        raise ConfError(
            f"the output layer has loss_weights {layer.loss_weights}, and Conf.class_weights gives {given}; leave one "
            "of them out"
        )
    changed = msgspec.structs.replace(layer, loss_weights=given)
    if isinstance(conf, MultiLayerConfiguration):
        return conf.replace(layers=(*conf.layers[:-1], changed))
    nodes = tuple(
        msgspec.structs.replace(node, vertex=changed) if node.name == conf.network_outputs[0] else node
        for node in conf.vertices
    )
    return conf.replace(vertices=nodes)


def output_layer(conf: NetworkConfiguration) -> BaseOutputLayer:
    """Return the output layer of a classifying network; raises ``ConfError`` if the network does not classify."""
    last: Any = None
    if isinstance(conf, ComputationGraphConfiguration):
        if len(conf.network_outputs) == 1:
            last = next(node.vertex for node in conf.vertices if node.name == conf.network_outputs[0])
    elif conf.backprop:
        last = conf.layers[-1]
    if not isinstance(last, BaseOutputLayer):
        raise ConfError("Conf.class_weights is for a network with one output layer, which tells classes apart")
    if last.loss not in _CLASSIFIES:
        raise ConfError(
            f"Conf.class_weights is given, and the output layer has loss {last.loss!r}, in which its weights are "
            f"those of outputs and not of classes; take loss {_CLASSIFIES[0]!r}, or leave class_weights out"
        )
    return last
