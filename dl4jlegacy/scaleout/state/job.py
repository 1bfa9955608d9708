"""Jobs and their results: ``Job``, ``Result``, and the iterators that make jobs from data.

A job is identified by its place in the plan (round and slot), so any process can create it again. Its work is the
``DataSet`` batches of the slot, or any JSON value, as in the 2015 API.

Legacy: ``org.deeplearning4j.scaleout.job.Job``, ``JobIterator``, ``DataSetIteratorJobIterator``,
``CollectionJobIterator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from dl4jlegacy.arrays import wire
from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets import DataSet, MultiDataSet
from dl4jlegacy.datasets.batches import BatchIterator
from dl4jlegacy.datasets.label_scale import LabelScale
from dl4jlegacy.errors import DataError, Dl4jError, WireError, counted
from dl4jlegacy.scaleout.plan import Phase, Plan, SlotPlan, Validation
from dl4jlegacy.scaleout.state.own_parts import told
from dl4jlegacy.scaleout.state.store import Buffer

__all__ = [
    "CollectionJobIterator",
    "DataSetJobIterator",
    "Job",
    "JobIterator",
    "Result",
    "batch_of",
    "decode_work",
    "encode_work",
]


@dataclass(frozen=True, slots=True)
class Job:
    """The input of a performer: the job's position in the run, and its work."""

    slot: SlotPlan
    phase: Phase
    work: Any
    worker_id: str = ""
    version: int = 0
    classifies: bool = True
    """For a validation job: whether the network predicts classes."""
    label_scale: LabelScale | None = None
    """For a validation job: as for ``Validation``."""
    is_wanted: Callable[[], bool] = field(default=lambda: True, compare=False)
    """Returns whether the result is still needed; cheap, to be called between batches."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a job or a round: JSON values and named arrays. The content of a model or update frame."""

    values: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)
    _frame: memoryview | None = field(default=None, compare=False, repr=False)

    @classmethod
    def allocate(cls, values: Mapping[str, Any], like: Mapping[str, Array]) -> Result:
        """Return a result with unfilled arrays of these names, types and shapes, which are views into its frame.

        So large arrays can be encoded without a copy.
        """
        frame, arrays = wire.allocate(values, {name: (array.dtype, array.shape) for name, array in like.items()})
        return cls(values, arrays, frame)

    def with_values(self, values: Mapping[str, Any]) -> Result:
        """Return this result with other values; use only the new one, because it takes over an allocated frame."""
        if self._frame is None or not wire.replace_header(self._frame, values):
            return Result(values, self.arrays)
        return Result(values, self.arrays, self._frame)

    def encode(self) -> Buffer:
        """Return the frame of this result."""
        return wire.encode(self.values, self.arrays) if self._frame is None else self._frame

    @classmethod
    def decode(cls, frame: Buffer) -> Result:
        """Return the result in a frame, with arrays as read-only views; raises ``WireError``."""
        return cls(*wire.decode(frame))


class JobIterator(Protocol):
    """Returns the work of any slot of its plan, in any order, on any thread."""

    plan: Plan

    def work(self, slot: SlotPlan) -> Any:
        """Return the work of a slot: a list of ``DataSet`` batches, or a JSON value."""
        ...


class DataSetJobIterator:
    """Creates jobs from the batches of an iterator of either kind. Legacy: ``DataSetIteratorJobIterator``.

    Args:
        iterator: the training data.
        jobs_per_round, averaging_frequency, phases: as for ``Plan``.
        validation: the validation data, of which the first epoch is used; None: no validation.
        validate_every, classifies, label_scale: as for ``Validation``.
        first_epoch, first_iteration, warm_start, warm_start_jobs: as for ``Plan``.
    """

    def __init__(
        self,
        iterator: BatchIterator,
        *,
        jobs_per_round: int,
        averaging_frequency: int = 1,
        phases: Sequence[Phase] = (Phase(),),
        validation: BatchIterator | None = None,
        validate_every: int = 0,
        classifies: bool = True,
        label_scale: LabelScale | None = None,
        first_epoch: int = 0,
        first_iteration: int = 0,
        warm_start: float = 0.0,
        warm_start_jobs: int = 1,
    ) -> None:
        self.iterator, self.validation = iterator, validation
        self.plan = Plan(
            phases=tuple(phases),
            batches=iterator.total_batches,
            examples=iterator.total_examples,
            batch_size=iterator.batch_size,
            jobs_per_round=jobs_per_round,
            averaging_frequency=averaging_frequency,
            validation=None
            if validation is None
            else Validation(
                batches=validation.total_batches,
                examples=validation.total_examples,
                batch_size=validation.batch_size,
                every=validate_every,
                classifies=classifies,
                label_scale=label_scale,
            ),
            first_epoch=first_epoch,
            first_iteration=first_iteration,
            warm_start=warm_start,
            warm_start_jobs=warm_start_jobs,
        )

    def work(self, slot: SlotPlan) -> list[DataSet | MultiDataSet]:
        """Return the slot's batches; raises ``DataError`` if one is not a batch, or does not have the planned size."""
        if slot.validates and self.validation is not None:
            return [batch_of(self.validation, 0, index) for index in range(slot.first, slot.last)]
        return [batch_of(self.iterator, slot.epoch, index) for index in range(slot.first, slot.last)]


def batch_of(data: BatchIterator, epoch: int, index: int) -> DataSet | MultiDataSet:
    """Return a batch of an iterator; raises ``DataError`` unless it is a batch of the planned size.

    A run counts examples by its plan, so in every epoch all batches but the last one must be full.
    """
    what = f"{type(data).__name__}.batch({epoch}, {index})"
    with told(what, DataError, passes=(Dl4jError,)):
        batch = data.batch(epoch, index)
    if not isinstance(batch, DataSet | MultiDataSet):
        raise DataError(f"{what} returned {type(batch).__name__}; it must be a DataSet or a MultiDataSet")
    is_last, size = index == data.total_batches - 1, data.batch_size
    planned = data.total_examples - size * index if is_last else size
    if batch.num_examples != planned:
        raise DataError(
            f"{what} returned {counted(batch.num_examples, 'example')}, and not {planned}: {data.total_examples} "
            f"examples in {data.total_batches} batches of {size} are {planned} there, in every epoch"
        )
    return batch


class CollectionJobIterator:
    """Creates a job for each JSON value in a list, ``epochs`` times.

    Raises:
        DataError: the argument is not a list, or is empty.
    """

    def __init__(self, items: Sequence[Any], *, jobs_per_round: int = 4, epochs: int = 1) -> None:
        if not isinstance(items, Iterable) or isinstance(items, str | bytes | Mapping | Set):
            raise DataError(
                f"CollectionJobIterator got {type(items).__name__}; it makes a job of each item of a list, in its order"
            )
        self._items = list(items)
        if not self._items:
            raise DataError("CollectionJobIterator got no item, so there is no job")
        self.plan = Plan(
            phases=(Phase(kind="collection", epochs=epochs),),
            batches=len(self._items),
            examples=len(self._items),
            batch_size=1,
            jobs_per_round=jobs_per_round,
        )

    def work(self, slot: SlotPlan) -> Any:
        """Return the slot's only item."""
        return self._items[slot.first]


def encode_work(work: Any) -> Buffer:
    """Return the frame of a job's work."""
    if isinstance(work, list) and work and all(isinstance(item, DataSet) for item in work):
        arrays = {f"{name}{i}": array for i, data_set in enumerate(work) for name, array in data_set.arrays().items()}
        return wire.encode({"data_sets": len(work)}, arrays)
    if isinstance(work, list) and work and all(isinstance(item, MultiDataSet) for item in work):
        groups = [(len(item.features), len(item.labels)) for item in work]
        arrays = {f"{name}.{i}": array for i, item in enumerate(work) for name, array in item.arrays().items()}
        return wire.encode({"multi_data_sets": groups}, arrays)
    return wire.encode({"value": work})


def decode_work(frame: Buffer) -> Any:
    """Return the work in a frame; raises ``WireError`` if the frame contains no work."""
    header, arrays = wire.decode(frame)
    if "data_sets" not in header and "multi_data_sets" not in header:
        return header.get("value")
    try:
        if "multi_data_sets" in header:
            return [_multi(arrays, i, x, y) for i, (x, y) in enumerate(header["multi_data_sets"])]
        count = int(header["data_sets"])
        return [_single(arrays, index) for index in range(count)]
    except (KeyError, TypeError, ValueError) as exc:
        raise WireError(f"a job's data frame lacks what its header announces: {exc!r}") from exc


def _single(arrays: Mapping[str, Array], index: int) -> DataSet:
    return DataSet.from_arrays(lambda name: arrays.get(f"{name}{index}"))


def _multi(arrays: Mapping[str, Array], index: int, features: int, labels: int) -> MultiDataSet:
    return MultiDataSet.from_arrays(features, labels, lambda name: arrays.get(f"{name}.{index}"))
