"""A worker's performer on its GPU: every call happens there, and what does not fit into its memory is told (layer 5).

Performers know nothing of devices: a GPU, and the stream that work is put on, belong to the thread that enters them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dl4jlegacy.devices import Device
from dl4jlegacy.scaleout.compute import on_gpu
from dl4jlegacy.scaleout.job import Job, Result
from dl4jlegacy.scaleout.perform import WorkerPerformer

__all__ = ["OnDevice"]

T = TypeVar("T")


class OnDevice:
    """A ``WorkerPerformer`` whose calls run on a GPU.

    Args:
        make: makes the performer; called at once, on the GPU.
        kernels: the performer's; their ``use()`` enters the GPU for the calling thread.
        device: the GPU.

    Raises:
        DeviceMemoryError: from every call for which the GPU's memory is too small.
    """

    def __init__(self, make: Callable[[], WorkerPerformer], kernels: Any, device: Device) -> None:
        self._kernels, self._device = kernels, device
        self._performer = self._entered(make)

    @property
    def progress(self) -> int:
        """The performer's."""
        return self._performer.progress

    def update(self, model: Result) -> None:
        """See ``WorkerPerformer``."""
        self._entered(lambda: self._performer.update(model))

    def perform(self, job: Job) -> Result | None:
        """See ``WorkerPerformer``."""
        return self._entered(lambda: self._performer.perform(job))

    def _entered(self, call: Callable[[], T]) -> T:
        with on_gpu(self._kernels, self._device):
            return call()
