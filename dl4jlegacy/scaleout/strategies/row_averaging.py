"""Row averaging: parameter averaging for networks with sparse features, in which only the rows travel that jobs touch.

A job's update is what its training has changed in the rows of the first layer's weights that its examples have values
for, and in all other parameters. A row that a job does not touch it leaves as it is, so the mean of the workers'
parameters is the model with the mean of these changes added. Versions in between are not written: they follow from the
updates of their rounds, which each worker applies to the model that it has.

Synchronous: the result does not depend on which worker did what. Source: as for ``averaging``; for the rows, the sparse
updates of parameter servers, Li et al. 2014 (OSDI).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np

from dl4jlegacy.arrays import wire
from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, WireError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.network.input_rows import InputRows
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE, Aggregation, MeanScore, frame_like
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.strategies.strategy import WholeRounds
from dl4jlegacy.scaleout.updater_beginning import begin_state
from dl4jlegacy.system.decoding import described

__all__ = ["COLUMNS", "ROW_AVERAGING", "RowAveragingWorkRouter", "row_update"]

ROW_AVERAGING = "row-averaging"
COLUMNS, CHANGES = "columns", "changes"
"""The arrays of an update: the columns whose rows it has, ascending, and what it changes: see ``row_update``."""


@dataclass(frozen=True, kw_only=True)
class RowAveragingWorkRouter(WholeRounds):
    """All slots of a round are folded together, in slot order; any number of workers gives equal bits.

    Attributes:
        weighted_average: whether the mean is weighted by examples.
        state_every: after how many rounds at most the model is written as a whole; 1 or more. In between only updates
            travel.
    """

    name: ClassVar[str] = ROW_AVERAGING
    binds_model: ClassVar[bool] = True
    shares: ClassVar[str] = "delta"
    is_logged: ClassVar[bool] = True
    weighted_average: bool = True
    state_every: int = 256

    def __post_init__(self) -> None:
        if self.state_every < 1:
            raise ConfError(f"state_every is {self.state_every}; it must be at least 1")

    def check(self, update: Buffer, model: Buffer) -> None:
        """See ``LoggedStrategy``."""
        arrays = Result.decode(model).arrays
        _decoded(Result.decode(update), arrays[PARAMS].size, arrays[STATE].size)

    def aggregator(self, kernels: Kernels, pool: Executor | None = None) -> RowAverager:
        """See ``Strategy``."""
        return RowAverager(weighted=self.weighted_average)


def row_update(values: Mapping[str, Any], rows: InputRows, columns: Array, changes: Sequence[Array]) -> Result:
    """Return an update.

    Args:
        values: of the job: examples, score.
        rows: of the whole network.
        columns: those that the job has touched, ascending.
        changes: for each part of the vectors (``InputRows.parts``) the changed rows, ``(columns, n_out)``, if it has
            any, and what is behind them.
    """
    whole = np.concatenate([change.reshape(-1) for change in changes])
    return Result({**values, "rows": msgspec.to_builtins(rows)}, {COLUMNS: columns, CHANGES: whole})


def _decoded(update: Result, params: int, state: int) -> tuple[InputRows, Array, Array]:
    """Return rows, columns and changes of an update for vectors of so many elements; raises ``WireError``."""
    columns, changes = update.arrays.get(COLUMNS), update.arrays.get(CHANGES)
    try:
        rows = msgspec.convert(update.values.get("rows"), described(InputRows))
    except msgspec.ValidationError as exc:
        raise WireError(f"it is no update of rows: {exc}") from exc
    if columns is None or changes is None or columns.ndim != 1 or changes.ndim != 1:
        raise WireError(f"it is no update of rows: it has the arrays {sorted(update.arrays)}")
    if not rows.fits(params, state) or columns.dtype.kind != "i" or changes.dtype.kind != "f":
        raise WireError(f"it has the rows of another network: {rows}, columns of {columns.dtype}, not {params} numbers")
    whole = rows.n_in * rows.n_out * (1 + rows.vectors)
    wanted = (1 + rows.vectors) * len(columns) * rows.n_out + params + state - whole
    if changes.size != wanted:
        raise WireError(f"it has {changes.size} numbers for {len(columns)} columns; expected {wanted}")
    if len(columns) and not (columns[0] >= 0 and columns[-1] < rows.n_in and bool((np.diff(columns) > 0).all())):
        raise WireError(f"its columns do not ascend from 0 to {rows.n_in - 1} at most")
    return rows, columns, changes


class RowAverager:
    """Adds the mean of updates to the rows that they have. A ``FollowingAggregator`` that can do so in place."""

    def __init__(self, *, weighted: bool) -> None:
        self._weighted = weighted

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int]) -> Aggregation:
        """See ``JobAggregator``."""
        return self.begin_in_place(_copied(model), version=version, examples=examples)

    def begin_in_place(self, model: Buffer, *, version: int, examples: Sequence[int]) -> Aggregation:
        """See ``InPlaceAggregator``."""
        return _RowAverage(model, self._weights(examples))

    def follow(self, model: Buffer, rounds: Iterable[tuple[Sequence[int], Sequence[Buffer]]]) -> Buffer:
        """See ``FollowingAggregator``."""
        frame = _copied(model)
        self.follow_in_place(frame, rounds)
        return frame

    def follow_in_place(self, model: Buffer, rounds: Iterable[tuple[Sequence[int], Sequence[Buffer]]]) -> None:
        """See ``InPlaceAggregator``."""
        arrays = wire.writable(model)
        for examples, updates in rounds:
            for update, weight in zip(updates, self._weights(examples), strict=True):
                _add(arrays, Result.decode(update), weight)

    def _weights(self, examples: Sequence[int]) -> list[float]:
        total = sum(examples) if self._weighted else len(examples)
        return [(count if self._weighted else 1) / total for count in examples]


def _copied(model: Buffer) -> Buffer:
    """Return a copy of a model's frame, to be changed."""
    current = Result.decode(model)
    frame, arrays = frame_like(current.values, current.arrays)
    for name, out in arrays.items():
        out[...] = current.arrays[name]
    return frame


class _RowAverage:
    """The model, in its own frame, to which some updates have been added so far. An ``Aggregation``."""

    def __init__(self, model: Buffer, weights: Sequence[float]) -> None:
        self._frame, self._arrays, self._values = model, wire.writable(model), Result.decode(model).values
        self._weights, self._added, self._score = weights, 0, MeanScore()

    def add(self, updates: Sequence[Buffer]) -> None:
        """See ``Aggregation``."""
        for frame in updates:
            result = Result.decode(frame)
            _add(self._arrays, result, self._weights[self._added])
            self._score.add(result.values)
            self._added += 1

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """See ``Aggregation``."""
        if ends_phase:
            begin_state(self._values, self._arrays[STATE])
        return self._frame, self._score.mean()


def _add(arrays: Mapping[str, Array], update: Result, weight: float) -> None:
    """Add an update to parameters and state, in place; product and sum are rounded apart."""
    params, state = arrays[PARAMS], arrays[STATE]
    rows, columns, changes = _decoded(update, params.size, state.size)
    scaled, start = changes * changes.dtype.type(weight), 0
    for part in rows.parts(params, state):
        if part.W is not None:
            size = len(columns) * rows.n_out
            part.W[columns] += scaled[start : start + size].reshape(len(columns), rows.n_out)
            start += size
        part.rest[...] += scaled[start : start + part.rest.size]
        start += part.rest.size
