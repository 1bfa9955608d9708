"""Training steps as CUDA graphs: capture of a step, and repeated launches with other parameters."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import CaptureError, DeviceError, DeviceMemoryError
from dl4jlegacy.kernels.cuda.graph_parameters import GraphParameters, TracedStream, trace
from dl4jlegacy.kernels.cuda.staging import Staging

__all__ = ["CapturedStep", "capture_step"]

_WORDS = 4096
_REFUSALS = (RuntimeError, MemoryError, DeviceError, DeviceMemoryError)
"""Errors that end a capture: those of CUDA's runtime, its driver (a launch after the capture broke), cuDNN and CuPy are
RuntimeErrors, cuBLAS's are ours. A graph has its own memory, which may not fit where single launches do.
"""


class CapturedStep:
    """A training step as a CUDA graph. It keeps the memory alive to which its launches write."""

    def __init__(self, graph: Any, parameters: GraphParameters, staging: Staging, kept: Sequence[Any]) -> None:
        self._graph, self._parameters, self._staging, self._kept = graph, parameters, staging, kept

    def launch(self, inputs: Sequence[tuple[Array, Array]], stream: Stream, scalars: Sequence[float]) -> None:
        """Launch the step without waiting for it.

        Args:
            inputs: pairs of each array of the batch, on the host or the device, and the array that the step reads.
            stream: the random numbers of the batch.
            scalars: of its updaters, in the order of the step's requests.
        """
        on_host = [pair for pair in inputs if get_array_module(pair[0]) is np]
        words = self._parameters.values(stream, scalars)
        on_host.append((words, self._parameters.words[: len(words)]))
        for source, target in inputs:
            if get_array_module(source) is not np:
                target[...] = source
        self._staging.upload([source for source, _ in on_host], [target for _, target in on_host])
        self._graph.launch()


def capture_step(
    xp: Any,
    run: Callable[[TracedStream], Any],
    stream: Stream,
    *,
    recording: Callable[[GraphParameters], contextlib.AbstractContextManager[None]],
    staging: Staging,
    buffers: Callable[[], Sequence[Array]],
) -> tuple[CapturedStep, Any]:
    """Return ``run`` as a CUDA graph, and its result: arrays with undefined content until the graph's first launch.

    ``run`` is only captured, not executed. The current stream must be one of our own.

    Args:
        run: a step that only launches kernels: it must not wait for the device or upload data.
        stream: the random numbers during the capture.
        recording: makes kernels use the addresses of parameters instead of values.
        staging: uploads the inputs to the device.
        buffers: returns the arrays that the step writes to but does not own.

    Raises:
        CaptureError: the step does something that cannot be captured.
    """
    parameters = GraphParameters(xp.zeros(_WORDS, np.uint64))
    kept: list[Any] = []
    here = xp.cuda.get_current_stream()
    with _keeping(xp, kept), _without_collector(), recording(parameters):
        here.begin_capture()
        try:
            result = run(trace(stream))
        except BaseException as exc:
            with contextlib.suppress(Exception):  # the capture is broken: what ended it is in exc
                here.end_capture()
            if isinstance(exc, _REFUSALS):
                raise CaptureError(f"{type(exc).__name__}: {exc}") from exc
            raise
        try:
            graph = here.end_capture()
        except _REFUSALS as exc:
            raise CaptureError(f"{type(exc).__name__}: {exc}") from exc
    return CapturedStep(graph, parameters, staging, [*kept, *buffers(), result]), result


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Switch off Python's garbage collector: freeing a cuBLAS handle waits for the device, which breaks a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _keeping(xp: Any, kept: list[Any]) -> Iterator[None]:
    """Do not return memory allocated inside to the pool: the graph writes to it at every launch."""
    pool = xp.get_default_memory_pool()

    def malloc(size: int) -> Any:
        memory = pool.malloc(size)
        kept.append(memory)
        return memory

    with xp.cuda.using_allocator(malloc):
        yield
