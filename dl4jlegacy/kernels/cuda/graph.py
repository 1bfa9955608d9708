"""A captured training step: a CUDA graph with the numbers and the memory it needs."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dl4jlegacy.backend import Array, get_array_module
from dl4jlegacy.errors import CaptureError, DeviceError, DeviceMemoryError
from dl4jlegacy.kernels.cuda.staging import Staging
from dl4jlegacy.kernels.tape import Tape, TracedStream, traced
from dl4jlegacy.seeding import Stream

__all__ = ["Program", "capture"]

_WORDS = 4096
_REFUSALS = (RuntimeError, MemoryError, DeviceError, DeviceMemoryError)
"""What a capture ends with: errors of CUDA's runtime, its driver (a launch after the capture broke), cuDNN and CuPy are
RuntimeErrors, cuBLAS's are ours; a graph's memory is its own, and may not fit where single launches do."""


class Program:
    """A captured step. It keeps the memory alive that its launches write to."""

    def __init__(self, graph: Any, tape: Tape, staging: Staging, kept: Sequence[Any]) -> None:
        self._graph, self._tape, self._staging, self._kept = graph, tape, staging, kept

    def launch(self, inputs: Sequence[tuple[Array, Array]], stream: Stream, scalars: Sequence[float]) -> None:
        """Do the step once more, without waiting for it.

        Args:
            inputs: every array of the batch, on the host or the device, and where the step reads it.
            stream: the random numbers of the batch.
            scalars: of its updaters, in the order in which the step asked for them.
        """
        on_host = [pair for pair in inputs if get_array_module(pair[0]) is np]
        words = self._tape.filled(stream, scalars)
        on_host.append((words, self._tape.words[: len(words)]))
        for source, target in inputs:
            if get_array_module(source) is not np:
                target[...] = source
        self._staging.upload([source for source, _ in on_host], [target for _, target in on_host])
        self._graph.launch()


def capture(
    xp: Any,
    run: Callable[[TracedStream], Any],
    stream: Stream,
    recording: Callable[[Tape], contextlib.AbstractContextManager[None]],
    staging: Staging,
    buffers: Callable[[], Sequence[Array]],
) -> tuple[Program, Any]:
    """Return ``run`` as a program, and what it returned: arrays that hold something once the program was launched.

    Nothing of ``run`` is executed. The current stream must be one of our own.

    Args:
        run: a step that only launches kernels: no waiting for the device, no upload.
        stream: the random numbers that the step is captured with.
        recording: makes kernels ask a tape for their numbers.
        staging: how inputs get to the device.
        buffers: returns the arrays outside of the step that it writes to.

    Raises:
        CaptureError: the step does something that cannot be captured.
    """
    tape = Tape(xp.zeros(_WORDS, np.uint64))
    kept: list[Any] = []
    here = xp.cuda.get_current_stream()
    with _keeping(xp, kept), _without_collector(), recording(tape):
        here.begin_capture()
        try:
            result = run(traced(stream))
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
    return Program(graph, tape, staging, [*kept, *buffers(), result]), result


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Let Python's collector rest: a cuBLAS handle that it found would wait for the device, which breaks a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _keeping(xp: Any, kept: list[Any]) -> Iterator[None]:
    """Let no memory that is allocated inside go back to the pool: a graph writes to it whenever it is launched."""
    pool = xp.get_default_memory_pool()

    def malloc(size: int) -> Any:
        memory = pool.malloc(size)
        kept.append(memory)
        return memory

    with xp.cuda.using_allocator(malloc):
        yield
