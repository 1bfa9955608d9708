"""The kernels on a GPU, put together: one object a worker thread, its arrays are CuPy's.

Implements ``dl4jlegacy.kernels.Kernels``; see there for what each method does. Nothing here waits for the device but
``all_finite`` and the threshold codec, which give their answer to Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dl4jlegacy.kernels.cupy_convolution import Convolutions
from dl4jlegacy.kernels.cupy_layers import Layers
from dl4jlegacy.kernels.cupy_recurrent import Recurrent
from dl4jlegacy.kernels.cupy_tiles import Tiles
from dl4jlegacy.kernels.cupy_updaters import Updaters
from dl4jlegacy.kernels.cupy_vectors import Vectors

__all__ = ["CupyKernels"]


class CupyKernels(Layers, Tiles, Recurrent, Updaters, Vectors, Convolutions):
    """See ``Launcher`` for what it is made from."""

    @contextmanager
    def use(self) -> Iterator[None]:
        """Enter the GPU for the calling thread: what it makes and computes inside is there."""
        with self.xp.cuda.Device(self.device):
            yield
