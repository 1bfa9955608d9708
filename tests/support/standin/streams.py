"""Streams that capture, and events."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.standin import engine
from tests.support.standin.engine import Capture, Graph, counters, machine, thread
from tests.support.standin.errors import CUDARuntimeError

__all__ = ["Event", "Stream", "get_current_stream", "get_elapsed_time", "streams"]

_handles = itertools.count(0x1000, 0x10)
_streams: weakref.WeakSet[Any] = weakref.WeakSet()


def streams() -> list[Stream]:
    """Return all streams that there are."""
    return list(_streams)


class _Delivery:
    """A copy to the host that was asked for: garbage until somebody waits."""

    def __init__(self, out: Any, content: Any) -> None:
        self._out, self._content = out, content
        np.copyto(out.reshape(-1).view(np.uint8), 0xFF)

    def __call__(self) -> None:
        if self._content is not None:
            np.copyto(self._out, self._content)
        self._content = None


class Stream:
    """A sequence of work. What is launched is done at once, unless the stream is capturing; see ``engine``."""

    null: Stream
    ptds: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False,
                 priority: int | None = None) -> None:  # fmt: skip
        self._capture: Capture | None = None
        self._non_blocking, self.priority = non_blocking, priority or 0
        self._later: list[_Delivery] = []
        self._before: list[Any] = []
        if null or ptds:
            self.ptr, self.device_id = (0 if null else 2), -1
        else:
            machine.check(thread.device)
            self.ptr, self.device_id = next(_handles), thread.device
        _streams.add(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __repr__(self) -> str:
        return f"<Stream {self.ptr} (device {self.device_id})>"

    def _check_device(self) -> None:
        if self.device_id not in (-1, thread.device):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id})"
                f" does not match with the current device ({thread.device})"
            )

    def __enter__(self) -> Stream:
        self._check_device()
        self._before.append((thread.device, thread.streams.get(thread.device)))
        thread.streams[thread.device] = self
        return self

    def __exit__(self, *args: object) -> None:
        device, before = self._before.pop()
        thread.streams[device] = before

    def use(self) -> Stream:
        """Make it the current stream of the thread."""
        self._check_device()
        thread.streams[thread.device] = self
        return self

    @property
    def done(self) -> bool:
        """Whether all work is done: once somebody asks, it is."""
        if self._capture is not None:
            raise self._capture.refuse()
        self._deliver()
        return True

    @property
    def is_non_blocking(self) -> bool:
        """Whether it goes on beside the default stream."""
        return self._non_blocking

    def synchronize(self) -> None:
        """Wait for all its work."""
        engine.synchronise(self)

    def _deliver_later(self, out: Any, content: Any) -> None:
        """Let ``out`` get ``content`` when somebody waits; until then it holds garbage."""
        self._later.append(_Delivery(out, content))

    def _deliver(self) -> None:
        """Hand over the copies that were asked for; the default stream waits for those that are blocking, too."""
        others = [s for s in streams() if s._later and not s._non_blocking] if self.ptr == 0 else []
        for stream in (self, *others):
            later, stream._later = stream._later, []
            for delivery in later:
                delivery()

    def add_callback(self, callback: Callable[..., object], arg: object) -> None:
        """Call ``callback(stream, status, arg)`` when the work so far is done; not while capturing."""
        if self._capture is not None:
            raise self._capture.refuse()
        callback(self, 0, arg)

    def launch_host_func(self, callback: Callable[..., object], arg: object) -> None:
        """Call ``callback(arg)`` when the work so far is done; recorded while capturing."""
        with engine._on(self):
            engine.launch(lambda: callback(arg))

    def record(self, event: Any = None) -> Any:
        """Record an event here."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Let later work here wait for ``event``; one that was recorded by a capture takes this stream into it."""
        other = event._capture
        if self._capture is not None and other is not self._capture:
            if event._stream is not None:
                self._capture.invalid = True
                raise CUDARuntimeError(905)
            return
        self._later.extend(event._later)
        if other is None or other not in engine.capturing():
            return
        if self._capture is None:
            self._capture = other
            other.streams.append(self)
            other.unjoined.append(self)
        elif self is other.origin and event._stream in other.unjoined:
            other.unjoined.remove(event._stream)

    def begin_capture(self, mode: Any = None) -> None:
        """Record work from now on instead of doing it."""
        if self.ptr in (0, 1, 2):
            raise RuntimeError("cannot capture on the default (legacy) stream")
        if self._capture is not None:
            raise CUDARuntimeError(401)
        self._capture = Capture(self, streams=[self])
        engine.begin(self._capture)

    def end_capture(self) -> Graph:
        """Return what was recorded.

        Raises:
            CUDARuntimeError: a call that is not permitted has spoilt the capture, another stream that was taken into it
                was not waited for, or there is none.
        """
        capture = self._capture
        if capture is None or capture.origin is not self:
            raise CUDARuntimeError(401)
        for stream in capture.streams:
            stream._capture = None
        engine.end(capture)
        if capture.invalid:
            raise CUDARuntimeError(901)
        if capture.unjoined:
            raise CUDARuntimeError(904)
        return Graph._of(capture.work)

    def is_capturing(self) -> bool:
        """Return whether work is recorded."""
        return self._capture is not None


Stream.null, Stream.ptds = Stream(null=True), Stream(ptds=True)


def get_current_stream(device_id: int = -1) -> Stream:
    """Return the current stream of the thread on a device (default: the current one)."""
    machine.check(thread.device)
    stream: Stream | None = thread.streams.get(thread.device if device_id == -1 else device_id)
    return stream or Stream.null


class Event:
    """A mark in the work of a stream."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        machine.check(thread.device)
        if interprocess and not disable_timing:
            raise ValueError("Timing must be disabled for interprocess events")
        self.ptr = next(_handles)
        self._capture: Capture | None = None
        self._stream: Stream | None = None
        self._later: tuple[_Delivery, ...] = ()
        self._time: float | None = None
        self._timing = not disable_timing

    @property
    def done(self) -> bool:
        """Whether the work before it is done."""
        self._check()
        self._deliver()
        return True

    def _check(self) -> None:
        if self._capture is not None:
            raise self._capture.refuse() if self._capture in engine.capturing() else CUDARuntimeError(907)

    def _deliver(self) -> None:
        for delivery in self._later:
            delivery()

    def record(self, stream: Stream | None = None) -> None:
        """Put it behind the work so far of ``stream``, or of the current one."""
        self._stream = stream or get_current_stream()
        self._capture, self._later = self._stream._capture, tuple(self._stream._later)
        if self._capture is None:
            self._time = time.perf_counter()

    def synchronize(self) -> None:
        """Wait for the work before it."""
        self._check()
        if thread.capture is not None:
            raise thread.capture.refuse()
        counters.add("synchronisations")
        self._deliver()


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Return the milliseconds between two events."""
    if start_event._time is None or end_event._time is None or not (start_event._timing and end_event._timing):
        raise CUDARuntimeError(400)
    return 1000 * (end_event._time - start_event._time)
