"""Example weights in an estimator's training: ``sample_weight`` and ``class_weight``, as a mask of labels.

Weights are scaled to a mean of 1 over the examples with weight, so that only their ratios matter. Examples of weight 0
are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.errors import counted

__all__ = ["class_factors", "given_weights", "shown", "weighted"]

_SHOWN = 9  # maximum number of classes named in a message


def given_weights(sample_weight: Any, examples: int) -> Array | None:
    """Return the ``sample_weight`` of ``fit`` as float64, ``(examples,)``; a single number applies to every example.

    Raises:
        ValueError: the weights are not numbers >= 0, not one for each example, or all 0.
    """
    if sample_weight is None:
        return None
    if isinstance(sample_weight, int | float | np.number):
        sample_weight = np.full(examples, sample_weight)
    try:
        weights: Array = np.asarray(sample_weight, np.float64)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"sample_weight is no list of numbers ({exc}); give one number for each row") from exc
    if weights.shape != (examples,):
        raise ValueError(
            f"sample_weight has shape {weights.shape}, and X has {counted(examples, 'row')}; give one weight for each "
            f"row, of shape {(examples,)}"
        )
    wrong = ~((weights >= 0) & (weights < np.inf))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"sample_weight of row {row} is {weights[row]}; give a number from 0 on, 0 to leave it out")
    if not weights.any():
        raise ValueError(f"all {examples} weights in sample_weight are zero, so that nothing would be learned")
    return weights


def class_factors(class_weight: Any, classes: Array, numbers: Array, weights: Array | None) -> Array | None:
    """Return the weight of each example's class, ``(examples,)``; None if all weights are equal.

    ``"balanced"`` is scikit-learn's formula, ``n / (k * count)``, in which examples are counted by their weights.

    Args:
        class_weight: of the estimator: None, "balanced", or a map from class to weight, with 1 for other classes.
        classes: names of all classes.
        numbers: the class of each example, as an index of ``classes``.
        weights: of the examples; None: all 1.

    Raises:
        ValueError: it is none of these, names an unknown class, or has a weight that is not a number >= 0.
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(numbers, weights, minlength=len(classes))
        present = counts > 0
        factors = np.ones(len(classes))
        factors[present] = counts.sum() / (present.sum() * counts[present])
    elif isinstance(class_weight, Mapping):
        factors = _named(class_weight, classes)
    else:
        raise ValueError(f"class_weight is {class_weight!r}; give 'balanced', a weight for each class by name, or None")
    found: Array = factors[numbers]
    if not (found if weights is None else found * weights).any():
        raise ValueError(f"class_weight {dict(class_weight)} makes all weights zero, so that nothing would be learned")
    return found


def _named(class_weight: Mapping[Any, Any], classes: Array) -> Array:
    names = classes.tolist()
    factors = np.ones(len(names))
    for name, weight in class_weight.items():
        if name not in names:
            raise ValueError(f"class_weight names {name!r}, which is none of y's classes, {shown(names)}")
        is_number = isinstance(weight, int | float | np.number) and 0 <= weight < np.inf
        if not is_number:
            raise ValueError(f"class_weight of class {name!r} is {weight!r}; give a number from 0 on")
        factors[names.index(name)] = weight
    return factors


def shown(classes: Iterable[Any]) -> str:
    """Return the first of the classes as text for a message."""
    names = np.asarray(classes).tolist()
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def weighted(features: Any, labels: Array, weights: Array | None) -> DataSet:
    """Return training examples with weights in the loss, without examples of weight 0.

    The weights, scaled to a mean of 1, are the mask of the labels; without differences there is no mask.

    Args:
        features: an array, or a matrix of scipy.sparse in rows.
        weights: None: all 1.
    """
    if weights is None:
        return DataSet(features, labels)
    kept = np.flatnonzero(weights)
    if len(kept) < len(weights):
        features, labels, weights = features[kept], labels[kept], weights[kept]
    scaled = weights / weights.max()  # so that their sum is finite
    scaled = scaled / scaled.mean()
    is_plain = (weights == weights[0]).all()
    return DataSet(features, labels, labels_mask=None if is_plain else scaled)
