"""Validation data: examples that a run does not train on, by which it is scored during training."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets.batches import Batch, BatchIterator
from dl4jlegacy.datasets.iterator import ListDataSetIterator
from dl4jlegacy.datasets.multi_dataset import ListMultiDataSetIterator, MultiDataSet
from dl4jlegacy.datasets.splitting import class_numbers, lone_rows, stratified
from dl4jlegacy.errors import ConfError, DataError, counted

__all__ = ["ValidatedData", "in_batches", "split_off"]

logger = logging.getLogger(__name__)
_SHOWN = 9  # maximum classes named in a message

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ValidatedData:
    """The training data and the validation data of a run."""

    training: BatchIterator
    validation: Batch | BatchIterator


def split_off(
    training: BatchIterator, fraction: float, seed: int, *, stratify: bool = False, fewest: int = 1
) -> ValidatedData:
    """Return the data in two parts, with ``fraction`` of the examples, drawn by ``seed``, for validation.

    The training part has the batch size, shuffling and pre-processing of the whole. With ``stratify`` both parts have
    the same shares of the classes, with ``fewest`` as for ``splitting.stratified``; if it is 1, a class with a single
    example is logged.

    Raises:
        ConfError: the data cannot be split.
    """
    if not isinstance(training, ListDataSetIterator | ListMultiDataSetIterator):
        raise ConfError(
            f"validation.fraction is {fraction}, and {type(training).__name__} cannot be split: its batches are fixed; "
            "give the validation data apart (ActorNetworkRunner(..., validation=...))"
        )
    whole = training.dataset
    if len(whole) < 2:
        raise ConfError(f"{counted(len(whole), 'example')} cannot be split into training and validation data")
    order = Stream.of(seed).at(purpose="validation").generator().permutation(len(whole))
    cut = min(max(1, round(len(whole) * fraction)), len(whole) - 1)
    learned, held = order[cut:], order[:cut]
    if stratify:
        learned, held = _stratified(training, learned, held, fewest)
    if isinstance(training, ListDataSetIterator):
        held_out = training.pre_processed(training.dataset.take(held))
        return ValidatedData(training.over(training.dataset.take(learned)), held_out)
    return ValidatedData(training.over(training.dataset.take(learned)), training.dataset.take(held))


def _stratified(training: BatchIterator, learned: Rows, held: Rows, fewest: int) -> tuple[Rows, Rows]:
    """Return the training rows and the validation rows, split class by class; raises ``ConfError``."""
    if not isinstance(training, ListDataSetIterator):
        raise ConfError(
            f"stratify is for a data set with one label for each example, and this is a {type(training).__name__}; "
            "leave it out"
        )
    try:
        classes = class_numbers(training.dataset.labels)
        order = stratified(classes, (learned, held), fewest)
    except DataError as exc:
        raise ConfError(f"the validation part: {exc}") from exc
    if fewest and (lone := lone_rows(classes)):
        named = [training.label_names[number] if training.label_names else str(number) for number in lone]
        logger.warning(
            "%s with a single example to learn from, which the validation therefore has none of: %s",
            counted(len(lone), "class", "classes"),
            ", ".join(named[:_SHOWN]),
        )
    return order


def in_batches(data: Batch | BatchIterator, rows: int) -> BatchIterator:
    """Return validation data as batches in a fixed order; a data set is cut into batches of ``rows`` examples."""
    if not isinstance(data, Batch):
        return data
    if isinstance(data, MultiDataSet):
        return ListMultiDataSetIterator(data, rows, shuffle=False)
    return ListDataSetIterator(data, rows, shuffle=False)
