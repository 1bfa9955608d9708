"""Validation data: examples that a run is not trained on, by which it is scored while it goes on."""

from __future__ import annotations

from dataclasses import dataclass

from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.iterator import DataSetIterator, ListDataSetIterator
from dl4jlegacy.datasets.multi_dataset import ListMultiDataSetIterator, MultiDataSet
from dl4jlegacy.errors import ConfError, counted
from dl4jlegacy.seeding import Stream

__all__ = ["ValidatedData", "in_batches", "split_off"]

Batches = DataSetIterator | ListMultiDataSetIterator


@dataclass(frozen=True, slots=True)
class ValidatedData:
    """The training data of a run, and those that it is validated on."""

    training: Batches
    validation: Batches | DataSet | MultiDataSet


def split_off(training: Batches, fraction: float, seed: int) -> ValidatedData:
    """Return the data in two parts: ``fraction`` of the examples, which ``seed`` draws, to validate on.

    The training part has the batch size, the shuffling and the pre-processing that the whole has.

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
    if isinstance(training, ListDataSetIterator):
        held_out = training.pre_processed(training.dataset.take(order[:cut]))
        return ValidatedData(training.over(training.dataset.take(order[cut:])), held_out)
    return ValidatedData(training.over(training.dataset.take(order[cut:])), training.dataset.take(order[:cut]))


def in_batches(data: Batches | DataSet | MultiDataSet, rows: int) -> Batches:
    """Return validation data as batches in a fixed order; a data set is cut into batches of so many examples."""
    if not isinstance(data, DataSet | MultiDataSet):
        return data
    if isinstance(data, MultiDataSet):
        return ListMultiDataSetIterator(data, rows, shuffle=False)
    return ListDataSetIterator(data, rows, shuffle=False)
