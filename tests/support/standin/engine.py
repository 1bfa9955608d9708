"""Where the stand-in's work is run, or recorded while a stream is capturing; counters of what tests ask about.

All work goes through ``launch(work)``: without a capture, ``work()`` is called at once; while the thread's current
stream is capturing, it is recorded and called whenever the graph is launched. Compiled kernels and cuBLAS do the same:
they check the arguments first, then hand over a function without arguments that reads and writes raw memory only.

The rest says how a device array is made (``fresh``), written (``into``) and opened (``raw``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tests.support.standin.arrays import ndarray

Raw = npt.NDArray[Any]
Work = Callable[[], object]

_lock = threading.RLock()
_ERRORS = {
    101: ("InvalidDevice", "invalid device ordinal"),
    401: ("IllegalState", "the operation cannot be performed in the present state"),
    900: ("StreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    901: ("StreamCaptureInvalidated", "operation failed due to a previous error during capture"),
    905: ("StreamCaptureIsolation", "dependency created on uncaptured work in another stream"),
    906: ("StreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream"),
}


class CUDARuntimeError(RuntimeError):
    """An error of the CUDA runtime; ``status`` is its number."""

    def __init__(self, status: int) -> None:
        super().__init__("cudaError{}: {}".format(*_ERRORS[status]))
        self.status = status


class CUDADriverError(RuntimeError):
    """An error of the CUDA driver, such as of a kernel's launch; no kind of ``CUDARuntimeError``."""


class OutOfMemoryError(MemoryError):
    """A pool cannot give ``size`` bytes more than the ``total`` it has given."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        words = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
        super().__init__(words + (f", limit set to: {limit:,} bytes)." if limit else ")."))


class CudaError(Exception):
    """What a GPU would not have forgiven, or would have computed nonsense from."""


@dataclass
class Counters:
    """How often something happened since ``reset``.

    Attributes:
        uploads: copies from ordinary memory of the host to the device.
        downloads: copies to ordinary memory of the host; each waits, and counts as a synchronisation, too.
        staged: copies from or to pinned memory, which nothing waits for.
        synchronisations: waits for the device.
        launches: pieces of work done; the launch of a graph is one.
    """

    uploads: int = 0
    downloads: int = 0
    staged: int = 0
    synchronisations: int = 0
    launches: int = 0

    def reset(self) -> None:
        """Begin again at 0."""
        self.__init__()

    def add(self, name: str) -> None:
        """Count one more of ``name``."""
        with _lock:
            setattr(self, name, getattr(self, name) + 1)


counters = Counters()


@dataclass(frozen=True)
class DeviceConf:
    """A simulated GPU."""

    name: str = "Stand-in GPU"
    uuid: bytes = bytes(range(16))
    memory: int = 1 << 30


@dataclass
class Machine:
    """The simulated GPUs and versions."""

    devices: tuple[DeviceConf, ...] = (DeviceConf(),)

    def check(self, device: int) -> None:
        """Raise CUDA's error if there is no such device."""
        if not 0 <= device < len(self.devices):
            raise CUDARuntimeError(101)


machine = Machine()


class _Thread(threading.local):
    """What CUDA has for every thread: the current device, and the current stream of each."""

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, Any] = {}
        self.allocators: list[Any] = []

    @property
    def stream(self) -> Any:
        """The current stream, None for the default one."""
        return self.streams.get(self.device)

    @property
    def capture(self) -> Capture | None:
        """The capture that records the work of this thread."""
        return None if self.stream is None else self.stream._capture


thread = _Thread()


@dataclass(eq=False)
class Capture:
    """What a stream has recorded."""

    origin: Any
    work: list[Work] = field(default_factory=list)
    invalid: bool = False

    def refuse(self) -> CUDARuntimeError:
        """Spoil the capture, as CUDA does after a call that is not permitted, and return the error to raise."""
        self.invalid = True
        return CUDARuntimeError(900)


class Graph:
    """Recorded work that can be launched again and again, on the memory that it was recorded with."""

    def __init__(self, work: list[Work]) -> None:
        self._work = tuple(work)

    def launch(self, stream: Any = None) -> None:
        """Do the work once more, on ``stream`` or the current one."""
        with on(stream):
            launch(lambda: [each() for each in self._work])


@contextmanager
def on(stream: Any) -> Iterator[None]:
    """Make ``stream`` the current one, if one is given."""
    before = thread.streams.get(thread.device)
    thread.streams[thread.device] = before if stream is None else stream
    try:
        yield
    finally:
        thread.streams[thread.device] = before


captures: list[Capture] = []
"""Those that are going on, of all threads."""


def reset(devices: tuple[DeviceConf, ...]) -> None:
    """Forget all captures, counts, current devices and streams: the next test starts anew."""
    machine.devices = devices
    captures.clear()
    counters.reset()
    thread.__init__()


def launch(work: Work) -> None:
    """Do ``work`` now, or record it while the current stream is capturing.

    Raises:
        CUDADriverError: the capture has been spoilt.
        CUDARuntimeError: the work would go to the default stream while a stream that waits for that one is capturing.
    """
    capture = thread.capture
    if capture is not None:
        if capture.invalid:
            raise CUDADriverError("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: a previous error during capture")
        capture.work.append(work)
        return
    if thread.stream is None or thread.stream.ptr == 0:
        for other in captures:
            if not other.origin.is_non_blocking:
                other.invalid = True
                raise CUDARuntimeError(906)
    counters.add("launches")
    with np.errstate(all="ignore"):  # a device does not warn
        work()


def synchronise(stream: Any = None) -> None:
    """Count a wait for ``stream`` (default: the current one), and refuse it while that is capturing."""
    from tests.support.standin.streams import get_current_stream

    stream = stream or get_current_stream()
    if stream._capture is not None:
        raise stream._capture.refuse()
    counters.add("synchronisations")


def upload() -> None:
    """Count a copy from ordinary host memory, and refuse it while capturing: its content would be frozen."""
    machine.check(thread.device)
    if thread.capture is not None:
        raise thread.capture.refuse()
    counters.add("uploads")


def cublas() -> None:
    """Refuse what CuPy would hand to cuBLAS, in its words, while capturing."""
    if thread.capture is not None:
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")


def raw(x: Any) -> Any:
    """Return what NumPy can compute with: the memory of a device array, or a number.

    Raises:
        TypeError: ``x`` is a NumPy array, a list or something else that is not on the device.
        ValueError: the array is on another device than the current one.
    """
    from tests.support.standin.arrays import ndarray

    if isinstance(x, ndarray):
        if x.data.device_id != thread.device:
            raise ValueError(
                f"Array device must be same as the current device: array device = {x.data.device_id} "
                f"while current = {thread.device}"
            )
        return x._raw
    if isinstance(x, (bool, int, float, complex, np.generic)):
        return x
    raise TypeError(f"Unsupported type {type(x)}")


def _blank(x: Any) -> Any:
    """Return zeros of the shape and dtype of ``x``: results computed from them have the right shape and dtype."""
    return np.broadcast_to(np.zeros((), x.dtype), x.shape) if isinstance(x, np.ndarray) else x


def fresh(function: Callable[..., Any], *inputs: Any, order: str = "C") -> ndarray:
    """Return a new device array with the result of ``function``, given the raw ``inputs``.

    While capturing, ``function`` is tried with zeros for the shape and dtype; the array holds garbage until the graph
    is launched.
    """
    from tests.support.standin.arrays import ndarray

    raws = [raw(x) for x in inputs]
    refuse_half(raws)
    with np.errstate(all="ignore"):
        result = np.asarray(function(*(map(_blank, raws) if thread.capture else raws)))
    strides = None if order == "C" else np.empty_like(result, order=order).strides
    out = ndarray(result.shape, result.dtype, strides=strides)
    target = out._raw
    launch((lambda: np.copyto(target, function(*raws))) if thread.capture else (lambda: np.copyto(target, result)))
    return out


def refuse_half(raws: Iterable[Any]) -> None:
    """Raise ``TypeError`` for truth values with a Python float: CuPy computes in float16 where NumPy takes float64."""
    given = list(raws)
    kinds = {x.dtype.kind for x in given if isinstance(x, (np.ndarray, np.generic))}
    if kinds == {"b"} and any(type(x) is float for x in given):
        raise TypeError("truth values and a Python float: CuPy computes that in float16; give one of them a dtype")


def into(function: Callable[..., object], out: ndarray, *inputs: Any) -> ndarray:
    """Let ``function(out, *inputs)``, given raw arrays, write ``out``; while capturing, check by a trial and record."""
    raws, target = [raw(x) for x in inputs], raw(out)
    if thread.capture is not None:
        with np.errstate(all="ignore"):
            function(np.zeros(target.shape, target.dtype), *map(_blank, raws))
    launch(lambda: function(target, *raws))
    return out
