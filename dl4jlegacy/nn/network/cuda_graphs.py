"""Training steps on a GPU as CUDA graphs: one launch for a whole step, without Python between its kernels.

The first batch of a shape runs launch by launch, which compiles kernels and lets buffers grow; the second one's step is
captured; all later ones replay it. Values that differ from step to step (keys and rates) are uploaded with the batch.
Source: CUDA Programming Guide, section "CUDA Graphs".
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import CaptureError
from dl4jlegacy.kernels.protocol import DeviceKernels

__all__ = ["CapturedSteps"]

logger = logging.getLogger(__name__)

_KEPT = 8  # most graphs of one network; with sequences of many lengths, launches one by one are better
Arrays = tuple["Array | None", ...]
Run = Callable[[Arrays, Stream], Any]
"""A step over the arrays of a batch, with a stream of random numbers; returns the score, a 0-d device array."""


@dataclass
class _Captured:
    """A captured step: the input arrays of its graph, the graph, and the array of the score."""

    inputs: Arrays
    graph: Any
    score: Array


class CapturedSteps:
    """The captured steps of one network; used only by the network's thread.

    Args:
        kernels: the kernels of a GPU.
        dtype: the network's dtype.
        buffers: returns the work buffers that steps write to; a graph keeps its buffers alive.
    """

    def __init__(self, kernels: DeviceKernels, dtype: npt.DTypeLike, buffers: Callable[[], Sequence[Array]]) -> None:
        self._kernels, self._dtype, self._buffers = kernels, dtype, buffers
        self._steps: OrderedDict[Hashable, _Captured | None] = OrderedDict()
        self.refused: dict[Hashable, str] = {}  # reasons why a kind of step cannot be captured

    def run(self, kind: Hashable, batch: Arrays, stream: Stream, step: Run, updates: Callable[[], None]) -> Any:
        """Do one step; return its score.

        Args:
            kind: distinguishes different steps on batches of the same shapes.
            batch: host or device arrays, or None for a missing one.
            stream: the random numbers of the batch.
            step: the step itself.
            updates: calls the step's updaters again to get the scalars of their iteration; nothing is launched.
        """
        with self._kernels.use():
            name = (kind, tuple(None if array is None else array.shape for array in batch))
            if name in self.refused:
                return step(batch, stream)
            if name not in self._steps:
                self._remember(name, None)
                return step(batch, stream)
            self._steps.move_to_end(name)
            captured = self._steps[name]
            if captured is None:
                try:
                    captured = self._steps[name] = self._capture(batch, stream, step)
                except CaptureError as exc:
                    self.refused[name] = str(exc)
                    logger.warning("steps of this kind are not captured into a CUDA graph: %s", exc)
                    return step(batch, stream)
            return self._replay(captured, batch, stream, updates)

    def _remember(self, name: Hashable, captured: _Captured | None) -> None:
        self._steps[name] = captured
        if len(self._steps) > _KEPT:
            _, old = self._steps.popitem(last=False)
            if old is not None:
                self._kernels.synchronize()  # its memory may be freed only after it has run

    def _capture(self, batch: Arrays, stream: Stream, step: Run) -> _Captured:
        xp = self._kernels.xp
        inputs = tuple(None if array is None else xp.empty(array.shape, self._dtype) for array in batch)
        graph, score = self._kernels.capture(lambda own: step(inputs, own), stream, self._buffers)
        return _Captured(inputs, graph, score)

    def _replay(self, captured: _Captured, batch: Arrays, stream: Stream, updates: Callable[[], None]) -> Any:
        pairs = zip(batch, captured.inputs, strict=True)
        given = [(array, held) for array, held in pairs if array is not None and held is not None]
        captured.graph.launch(given, stream, self._kernels.updater_scalars(updates))
        return captured.score.copy()
