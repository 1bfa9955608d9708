"""All kernels for a GPU in one class, with one object for each worker thread; the arrays are CuPy's.

Implements ``kernels.protocol.DeviceKernels``; see there for the description of each method. Only ``all_finite`` and the
threshold codec, which return results to Python, and ``synchronize`` wait for the device.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.kernels.cuda.convolution import Convolutions
from dl4jlegacy.kernels.cuda.graph import CapturedStep, capture_step
from dl4jlegacy.kernels.cuda.graph_parameters import GraphParameters, TracedStream
from dl4jlegacy.kernels.cuda.recurrent import Recurrent
from dl4jlegacy.kernels.cuda.staging import Staging
from dl4jlegacy.kernels.cuda.tiles import Tiles
from dl4jlegacy.kernels.cuda.updaters import Updaters
from dl4jlegacy.kernels.cuda.vectors import Vectors

__all__ = ["CupyKernels"]

_ON = ("", "1")


class CupyKernels(Recurrent, Tiles, Updaters, Vectors, Convolutions):
    """All kernels on one GPU; for the arguments see ``Launcher``.

    Attributes:
        captures: whether steps are captured into CUDA graphs; ``DL4J_CUDA_GRAPHS=0`` switches it off.
    """

    def __init__(self, device: int = 0, precision: str = "float32") -> None:
        super().__init__(device, precision)
        self.captures = os.environ.get("DL4J_CUDA_GRAPHS", "") in _ON
        self._own_stream: Any = None
        self._crossings: tuple[Any, Any] = (None, None)  # events: work outside of ``use`` before it, and within it
        self._staging: Staging | None = None

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Make the device current on this thread, with these kernels' own stream, ordered with the outer one."""
        cuda = self.xp.cuda
        with cuda.Device(self.device):
            if self._own_stream is None:
                self._own_stream = cuda.Stream(non_blocking=True)
                self._crossings = (cuda.Event(disable_timing=True), cuda.Event(disable_timing=True))
            outer, own = cuda.get_current_stream(), self._own_stream
            if outer.ptr == own.ptr:
                yield
                return
            before, behind = self._crossings  # recorded anew each time: a wait is for the last record before it
            own.wait_event(outer.record(before))
            try:
                with own:
                    yield
            finally:
                outer.wait_event(own.record(behind))

    def synchronize(self) -> None:
        """Wait until all work launched by this thread is done.

        It does not wait for the whole device, which CUDA forbids while any thread's stream is capturing.
        """
        with self.use():
            self.xp.cuda.get_current_stream().synchronize()

    def capture(
        self, run: Callable[[TracedStream], Any], stream: Stream, buffers: Callable[[], Sequence[Array]]
    ) -> tuple[CapturedStep, Any]:
        """Capture a step as a CUDA graph without executing it; return it and the arrays that each launch fills."""
        return capture_step(
            self.xp,
            run,
            stream,
            recording=self._recording,
            staging=self._uploads(),
            buffers=lambda: [*buffers(), *self._held()],
        )

    def updater_scalars(self, updates: Callable[[], None]) -> list[float]:
        """Return the scalars used by the updaters that ``updates`` calls; nothing is launched."""
        self._collected = []
        try:
            updates()
            return self._collected
        finally:
            self._collected = None

    def _held(self) -> list[Array]:
        """Return the scratch memory of these kernels, to which a captured step writes."""
        return self._scratch.arrays()

    def _uploads(self) -> Staging:
        if self._staging is None:
            import cupyx

            self._staging = Staging(self.xp, cupyx.empty_pinned)
        return self._staging

    @contextlib.contextmanager
    def _recording(self, parameters: GraphParameters) -> Iterator[None]:
        self._parameters = parameters
        try:
            yield
        finally:
            self._parameters = None
