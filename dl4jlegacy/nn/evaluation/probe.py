"""Probe: whether features say more of labels than their mean does; for a model that answers everything alike.

Three simple learners are fitted on a sample of the training part: the nearest example, the 15 nearest, and ridge
regression. One of them has to beat the commonest class, or the mean, on held-out examples by three standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets import DataSet

__all__ = ["has_pattern"]

_TRAINED, _HELD_OUT = 2000, 1000  # examples at most
_NEIGHBOURS = (1, 15)
_MOST_COLUMNS = 1000  # for ridge regression
_BEYOND = 3.0
_FEWEST = 10  # held-out examples


def has_pattern(train: DataSet, test: DataSet, outputs: int, *, classifies: bool) -> bool:
    """Return whether a probe predicts held-out labels better than an answer that ignores the features.

    False also if that cannot be told: for sparse features, or for labels that are not one for each example or each of
    its time steps.

    Args:
        train, test: scaled examples.
        outputs: number of classes, or of numbers to predict.
        classifies: whether hits count, instead of squared errors.
    """
    known, asked = _rows(train, _TRAINED, outputs), _rows(test, _HELD_OUT, outputs)
    if known is None or asked is None or len(asked[0]) < _FEWEST:
        return False
    usual = _errors(np.broadcast_to(known[1].mean(axis=0), asked[1].shape), asked[1], classifies=classifies)
    for answers in _answers(known[0], known[1], asked[0]):
        gain = usual - _errors(answers, asked[1], classifies=classifies)
        if gain.mean() > max(0.0, _BEYOND * gain.std() / math.sqrt(len(gain))):
            return True
    return False


def _rows(data: DataSet, most: int, outputs: int) -> tuple[Array, Array] | None:
    """Return features and labels of evenly spaced examples, ``(rows, columns)``; None if they have no such form."""
    if data.is_sparse:
        return None
    picked = np.unique(np.linspace(0, data.num_examples - 1, most).astype(np.int64))
    x, y, mask = data.features[picked], data.labels[picked], data.labels_mask
    if y.ndim == 3:
        if x.ndim != 3 or x.shape[2] != y.shape[2]:
            return None
        there = slice(None) if mask is None else mask[picked].reshape(-1) != 0
        x, y = (each.transpose(0, 2, 1).reshape(-1, each.shape[1])[there] for each in (x, y))
        spread = np.unique(np.linspace(0, len(x) - 1, most).astype(np.int64))
        x, y = x[spread], y[spread]
    if y.shape[1] == 1 < outputs:  # class numbers
        y = np.eye(outputs)[y[:, 0].astype(np.int64)]
    return x.reshape(len(x), -1).astype(np.float64), y.astype(np.float64)


def _errors(answers: Array, labels: Array, *, classifies: bool) -> Array:
    """Return the error of each example."""
    if classifies and labels.shape[1] == 1:
        wrong: Array = ((answers[:, 0] > 0.5) != (labels[:, 0] > 0.5)).astype(np.float64)
    elif classifies:
        wrong = (answers.argmax(axis=1) != labels.argmax(axis=1)).astype(np.float64)
    else:
        wrong = ((answers - labels) ** 2).sum(axis=1)
    return wrong


def _answers(x: Array, y: Array, asked: Array) -> Iterator[Array]:
    """Yield the answers of each learner."""
    mean, std = x.mean(axis=0), x.std(axis=0)
    scale = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
    x, asked = (x - mean) * scale, (asked - mean) * scale
    distance = (x**2).sum(axis=1) - 2 * asked @ x.T
    for count in _NEIGHBOURS:
        if count < len(x):
            yield y[np.argpartition(distance, count - 1, axis=1)[:, :count]].mean(axis=1)
    if x.shape[1] <= _MOST_COLUMNS:
        average = y.mean(axis=0)
        weights = np.linalg.solve(x.T @ x + 0.1 * len(x) * np.eye(x.shape[1]), x.T @ (y - average))
        yield asked @ weights + average
