"""Row averaging: parameter averaging for networks with sparse features that sends only the rows that a job uses.

The update of a job is the change of all parameters, without the rows of the first layer's weights that belong to
features without a value in its examples: training does not change these. So the model plus the mean of the changes is
the mean of the trained models. Most versions are not written: workers apply the updates of each round to their model.

Synchronous: the result does not depend on which worker did which job.

Source: as for ``averaging``; for the rows, the sparse updates of parameter servers, Li et al. 2014 (OSDI).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE, Aggregation, Fold, MeanScore, copy_frame
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.strategies.strategy import WorkRouter
from dl4jlegacy.scaleout.updater_beginning import begin_state
from dl4jlegacy.system.decoding import decodable

__all__ = ["COLUMNS", "ROW_AVERAGING", "RowAveragingWorkRouter", "row_update"]

ROW_AVERAGING = "row-averaging"
COLUMNS, CHANGES = "columns", "changes"
"""The arrays of an update: the columns whose rows it has, ascending, and the changes (see ``row_update``)."""


@dataclass(frozen=True, kw_only=True)
class RowAveragingWorkRouter(WorkRouter):
    """All slots of a round are folded together, in slot order; any number of workers gives the same bits.

    Attributes:
        weighted_average: whether the mean is weighted by examples.
        state_every: rounds after which the model is written whole, at the latest; 1 or more. In between only updates
            are sent.
    """

    name: ClassVar[str] = ROW_AVERAGING
    update_kind: ClassVar[str] = "delta"
    weighted_average: bool = True
    state_every: int = 256

    def __post_init__(self) -> None:
        if self.state_every < 1:
            raise ConfError(f"state_every is {self.state_every}; it must be at least 1")

    @property
    def log_every(self) -> int:
        """See ``WorkRouter``."""
        return self.state_every

    def fold(self, kernels: Kernels, pool: Executor | None = None) -> Fold:
        """See ``WorkRouter``."""
        return RowAverager(weighted=self.weighted_average)


def row_update(values: Mapping[str, Any], rows: InputRows, columns: Array, changes: Sequence[Array]) -> Result:
    """Return an update.

    Args:
        values: of the job: examples, score.
        rows: of the whole network.
        columns: the columns with a value in the job's examples, ascending.
        changes: for each part of the vectors (``InputRows.parts``) the changes of these columns' rows, ``(columns,
            n_out)``, if the part has rows, and then the changes of the rest of the part.
    """
    whole = np.concatenate([change.reshape(-1) for change in changes])
    return Result({**values, "rows": msgspec.to_builtins(rows)}, {COLUMNS: columns, CHANGES: whole})


def _decoded(update: Result, params: int, state: int) -> tuple[InputRows, Array, Array]:
    """Return rows, columns and changes of an update for vectors of so many elements; raises ``WireError``."""
    columns, changes = update.arrays.get(COLUMNS), update.arrays.get(CHANGES)
    try:
        rows = msgspec.convert(update.values.get("rows"), decodable(InputRows))
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


class RowAverager(Fold):
    """Adds the mean of updates to the model: of the first layer's weights, only to the rows that the updates have."""

    works_in_place = True

    def __init__(self, *, weighted: bool) -> None:
        self._weighted = weighted

    def check(self, update: Buffer, model: Buffer) -> None:
        """See ``Fold``."""
        arrays = Result.decode(model).arrays
        _decoded(Result.decode(update), arrays[PARAMS].size, arrays[STATE].size)

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int], in_place: bool = False) -> Aggregation:
        """See ``Fold``."""
        counts = examples if self._weighted else [1] * len(examples)
        return _RowAverage(model if in_place else copy_frame(model)[0], [count / sum(counts) for count in counts])


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
