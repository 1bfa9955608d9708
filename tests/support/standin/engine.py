"""Where the stand-in's work is run, or recorded while a stream is capturing; counters of what tests ask about.

All work goes through ``launch(work)``: without a capture, ``work()`` is called at once; while the thread's current
stream is capturing, it is kept and called whenever the graph is launched. Others (compiled kernels, cuBLAS) plug in
there: check the arguments first, then hand over a function without arguments that reads and writes raw memory only.

The rest says how a device array is made (``fresh``), written (``into``) and opened (``raw``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tests.support.standin.errors import CUDADriverError, CUDARuntimeError

if TYPE_CHECKING:
    from tests.support.standin.arrays import ndarray

__all__ = ["Capture", "Counters", "DeviceConf", "Graph", "counters", "cublas", "fresh", "into", "launch", "machine",
           "raw", "synchronise", "thread", "upload"]  # fmt: skip

Raw = npt.NDArray[Any]
Work = Callable[[], object]

_lock = threading.RLock()


@dataclass
class Counters:
    """How often something happened since ``reset``.

    Attributes:
        uploads: copies from ordinary memory of the host to the device.
        downloads: copies to ordinary memory of the host; each waits, and counts as a synchronisation, too.
        staged: copies from or to pinned memory, for which nobody waits.
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
        self.uploads = self.downloads = self.staged = self.synchronisations = self.launches = 0

    def add(self, name: str) -> None:
        """Count one more of ``name``."""
        with _lock:
            setattr(self, name, getattr(self, name) + 1)


counters = Counters()


@dataclass(frozen=True)
class DeviceConf:
    """A card that the stand-in pretends to have."""

    name: str = "Stand-in GPU"
    uuid: bytes = bytes(range(16))
    memory: int = 1 << 30
    capability: tuple[int, int] = (8, 0)
    pci_bus_id: str = "0000:01:00.0"


@dataclass
class Machine:
    """The pretended cards and versions; ``reset`` is called by the fixture."""

    devices: tuple[DeviceConf, ...] = (DeviceConf(),)
    driver_version: int = 12080
    runtime_version: int = 12080
    failure: int = 0  # status that every call to the runtime fails with (35: driver too old, 100: no device)

    def check(self, device: int = 0) -> None:
        """Raise what CUDA does if nothing works, or there is no such device."""
        if self.failure:
            raise CUDARuntimeError(self.failure)
        if not self.devices:
            raise CUDARuntimeError(100)
        if not 0 <= device < len(self.devices):
            raise CUDARuntimeError(101)


machine = Machine()


class _Thread(threading.local):
    """What CUDA keeps for every thread: the current device, and the current stream of each."""

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
        """The capture that work of this thread now goes to."""
        stream = self.stream
        return None if stream is None else stream._capture


thread = _Thread()


@dataclass(eq=False)
class Capture:
    """What a stream (and those that were forked from it) has recorded."""

    origin: Any
    work: list[Work] = field(default_factory=list)
    streams: list[Any] = field(default_factory=list)
    unjoined: list[Any] = field(default_factory=list)
    invalid: bool = False

    def refuse(self) -> CUDARuntimeError:
        """Spoil the capture, as CUDA does after a call that is not permitted, and return the error to raise."""
        self.invalid = True
        return CUDARuntimeError(900)  # what CUDA answers to a wait, or a copy that waits


class Graph:
    """Recorded work that can be launched again and again, on the memory that it was recorded with."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("currently this class should not be initiated by a constructor")

    @classmethod
    def _of(cls, work: list[Work]) -> Graph:
        graph = cls.__new__(cls)
        graph._work = tuple(work)
        return graph

    _work: tuple[Work, ...]

    def launch(self, stream: Any = None) -> None:
        """Do the work once more, on ``stream`` or the current one."""
        work = self._work

        def replay() -> None:
            for each in work:
                each()

        with _on(stream):
            launch(replay)

    def upload(self, stream: Any = None) -> None:
        """Bring the graph to the device before its first launch: nothing to do here."""


@contextmanager
def _on(stream: Any) -> Iterator[None]:
    """Let ``stream`` be the current one, if one is given."""
    if stream is None:
        yield
        return
    before = thread.streams.get(thread.device)
    thread.streams[thread.device] = stream
    try:
        yield
    finally:
        thread.streams[thread.device] = before


_captures: list[Capture] = []  # those that are going on, whatever their thread


def begin(capture: Capture) -> None:
    """Remember a capture that begins."""
    with _lock:
        _captures.append(capture)


def end(capture: Capture) -> None:
    """Forget a capture that ends."""
    with _lock:
        _captures.remove(capture)


def forget() -> None:
    """Forget all captures, counts, current devices and streams: the next test starts anew."""
    _captures.clear()
    counters.reset()
    thread.__init__()


def capturing() -> tuple[Capture, ...]:
    """All captures that are going on."""
    return tuple(_captures)


def launch(work: Work) -> None:
    """Do ``work`` now, or record it while the current stream is capturing.

    Raises:
        CUDADriverError: the capture has been spoilt.
        CUDARuntimeError: the work would go to the default stream while a stream that waits for that one is capturing.
    """
    capture = thread.capture
    if capture is not None:
        if capture.invalid:
            raise CUDADriverError(901)  # kernels are launched by the driver, whose errors are no runtime errors
        capture.work.append(work)
        return
    stream = thread.stream
    if stream is None or stream.ptr == 0:
        for other in capturing():
            if not other.origin.is_non_blocking:
                other.invalid = True
                raise CUDARuntimeError(906)
    counters.add("launches")
    with np.errstate(all="ignore"):  # a device does not warn
        work()


def synchronise(stream: Any = None) -> None:
    """Count a wait for ``stream`` (default: the current one), and refuse it while that is capturing."""
    machine.check(thread.device)
    capture = thread.capture if stream is None else stream._capture
    if capture is not None:
        raise capture.refuse()
    counters.add("synchronisations")
    (stream or _null())._deliver()


def _null() -> Any:
    from tests.support.standin.streams import Stream

    return thread.stream or Stream.null


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
    """Return what NumPy can compute with: the memory of a device array, or a number; nothing else is let in.

    Raises:
        TypeError: ``x`` is a NumPy array, a list or something else that does not live on the device.
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
    """Zeros of the shape and dtype of ``x``: what is computed from them has the right shape and dtype."""
    return np.broadcast_to(np.zeros((), x.dtype), x.shape) if isinstance(x, np.ndarray) else x


def fresh(function: Callable[..., Any], *inputs: Any, order: str = "C") -> ndarray:
    """Return a new device array with the result of ``function``, given the raw ``inputs``.

    While capturing, ``function`` is tried with zeros for the shape and dtype; the array holds garbage until the graph
    is launched.
    """
    from tests.support.standin.arrays import ndarray

    raws = [raw(x) for x in inputs]
    _refuse_half(raws)
    with np.errstate(all="ignore"):
        result = np.asarray(function(*(map(_blank, raws) if thread.capture else raws)))
    out = ndarray(result.shape, result.dtype, strides=_strides(result, order))
    target = out._raw
    launch((lambda: np.copyto(target, function(*raws))) if thread.capture else (lambda: np.copyto(target, result)))
    return out


def _refuse_half(raws: list[Any]) -> None:
    """Refuse truth values and a Python float: CuPy 14 computes them in float16, where NumPy takes float64.

    Raises:
        TypeError: nothing but the float says what the dtype is to be.
    """
    kinds = [x.dtype.kind for x in raws if isinstance(x, (np.ndarray, np.generic))]
    if kinds and set(kinds) == {"b"} and any(type(x) is float for x in raws):
        raise TypeError("truth values and a Python float: CuPy computes that in float16; give one of them a dtype")


def _strides(result: Raw, order: str) -> tuple[int, ...] | None:
    return None if order == "C" else np.empty_like(result, order=order).strides


def into(function: Callable[..., object], out: ndarray, *inputs: Any) -> ndarray:
    """Let ``function(out, *inputs)``, given raw arrays, write ``out``; while capturing, check by a trial and record."""
    raws, target = [raw(x) for x in inputs], raw(out)
    if thread.capture is not None:
        with np.errstate(all="ignore"):
            function(np.zeros(target.shape, target.dtype), *map(_blank, raws))
    launch(lambda: function(target, *raws))
    return out
