"""``cupy.cuda``: streams that capture, events, devices, and the few questions to the runtime that are asked."""

from __future__ import annotations

import itertools
from typing import Any

from tests.support.standin import engine
from tests.support.standin.engine import Capture, CUDARuntimeError, Graph, counters, machine, thread

_handles = itertools.count(0x1000, 0x10)


class Stream:
    """A sequence of work. What is launched is done at once, unless the stream is capturing; see ``engine``."""

    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self._capture: Capture | None = None
        self.is_non_blocking = non_blocking
        self._before: list[Any] = []
        self.ptr, self._device = (0, None) if null else (next(_handles), thread.device)

    def __enter__(self) -> Stream:
        if self._device not in (None, thread.device):
            raise RuntimeError(f"The stream of device {self._device} does not match the current device {thread.device}")
        self._before.append((thread.device, thread.streams.get(thread.device)))
        thread.streams[thread.device] = self
        return self

    def __exit__(self, *args: object) -> None:
        device, before = self._before.pop()
        thread.streams[device] = before

    def synchronize(self) -> None:
        """Wait for all its work."""
        engine.synchronise(self)

    def record(self, event: Any = None) -> Any:
        """Record an event here."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Let later work here wait for ``event``; a capture can only wait for what it has recorded itself."""
        for capture in (self._capture, event.capture):
            if capture is not None and event.stream is not None and self._capture is not event.capture:
                capture.invalid = True
                raise CUDARuntimeError(905)

    def begin_capture(self, mode: Any = None) -> None:
        """Record work from now on instead of doing it."""
        if self.ptr == 0:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        if self._capture is not None:
            raise CUDARuntimeError(401)
        self._capture = Capture(self)
        engine.captures.append(self._capture)

    def end_capture(self) -> Graph:
        """Return what was recorded; raises ``CUDARuntimeError`` if a call has spoilt the capture, or there is none."""
        capture, self._capture = self._capture, None
        if capture is None:
            raise CUDARuntimeError(401)
        engine.captures.remove(capture)
        if capture.invalid:
            raise CUDARuntimeError(901)
        return Graph(capture.work)

    def is_capturing(self) -> bool:
        """Return whether work is recorded."""
        return self._capture is not None


Stream.null = Stream(null=True)


def get_current_stream() -> Stream:
    """Return the current stream of the thread on its current device."""
    machine.check(thread.device)
    stream: Stream = thread.stream or Stream.null
    return stream


class Event:
    """A mark in the work of a stream."""

    def __init__(self, disable_timing: bool = False) -> None:
        self.capture: Capture | None = None
        self.stream: Stream | None = None

    @property
    def done(self) -> bool:
        """Whether the work before it is done."""
        if self.capture is not None:
            raise self.capture.refuse()
        return True

    def record(self, stream: Stream | None = None) -> None:
        """Put it behind the work so far of ``stream``, or of the current one."""
        self.stream = stream or get_current_stream()
        self.capture = self.stream._capture

    def synchronize(self) -> None:
        """Wait for the work before it."""
        for capture in (self.capture, thread.capture):
            if capture is not None:
                raise capture.refuse()
        counters.add("synchronisations")


class Device:
    """A device; ``with`` makes it the current one of the thread."""

    def __init__(self, device: Any = None) -> None:
        self.id = thread.device if device is None else int(device)
        self._before: list[int] = []

    def __enter__(self) -> Device:
        machine.check(self.id)
        self._before.append(thread.device)
        thread.device = self.id
        return self

    def __exit__(self, *args: object) -> None:
        thread.device = self._before.pop()


# -- the runtime -------------------------------------------------------------------------------------------------------
def getDeviceCount() -> int:
    """Return how many devices there are."""
    return len(machine.devices)


def getDeviceProperties(device: int) -> dict[str, Any]:
    """Return what CUDA knows about a device; bytes for name and UUID."""
    machine.check(device)
    conf = machine.devices[device]
    return {"name": conf.name.encode(), "uuid": conf.uuid, "totalGlobalMem": conf.memory, "major": 8, "minor": 0}


def runtimeGetVersion() -> int:
    """Return the version of the runtime that this CuPy was built for."""
    return 12080


def driverGetVersion() -> int:
    """Return the version of CUDA that the driver knows."""
    return 12080


RUNTIME = (CUDARuntimeError, driverGetVersion, getDeviceCount, getDeviceProperties, runtimeGetVersion)
