"""A warning for unscaled training data: conversion to the network's dtype makes different values of a column equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.iterator import ListDataSetIterator
from dl4jlegacy.datasets.multi_dataset import ListMultiDataSetIterator, MultiDataSet
from dl4jlegacy.datasets.precision import warn_of_equal

__all__ = ["warn_of_rounding"]


def warn_of_rounding(data: Any, batch: DataSet | MultiDataSet, dtype: npt.DTypeLike) -> bool:
    """Warn of columns of training data in which the network's dtype makes different values equal.

    Args:
        data: a data set, or its batches; all data is checked if it is in memory.
        batch: the first batch, which is checked otherwise.
        dtype: the network's dtype.

    Returns:
        whether there was a warning.
    """
    if np.dtype(dtype) != np.float32:
        return False
    whole = data if isinstance(data, DataSet | MultiDataSet) else None
    if isinstance(data, ListDataSetIterator):
        whole = data.whole()
    elif isinstance(data, ListMultiDataSetIterator):
        whole = data.dataset
    examples = MultiDataSet.of(batch if whole is None else whole)
    first = " of the first batch" if whole is None else ""
    told = False
    for what in ("features", "labels"):
        arrays, masks = getattr(examples, what), getattr(examples, f"{what}_masks")
        for index, (array, mask) in enumerate(zip(arrays, masks, strict=True)):
            name = what if len(arrays) == 1 else f"{what}[{index}]"
            told |= warn_of_equal(array, f"the {name}{first}", (), mask)
    return told
