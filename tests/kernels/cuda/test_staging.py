"""Uploads through pinned memory, on a device whose streams work as late, or as unevenly, as they are allowed to."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.kernels.cuda import staging
from dl4jlegacy.kernels.cuda.staging import Staging


class Late:
    """A device that works only when it is waited for; streams in ``eager`` work at once instead."""

    def __init__(self, eager: set[str]) -> None:
        self.eager, self.pinned, self.waits = eager, 0, 0
        self.compute, self.copying = Queue(self, "compute"), Queue(self, "copying")
        self.current = self.compute
        self.freed: np.ndarray | None = None  # what the pool gives to the next one who asks, as CuPy's does
        self.cuda = SimpleNamespace(
            Stream=lambda non_blocking: self.copying,
            Event=lambda disable_timing: Event(),
            get_current_stream=lambda: self.current,
        )

    def empty(self, size: int, dtype: Any) -> Memory:
        held, self.freed = np.zeros(size, dtype) if self.freed is None else self.freed, None
        return Memory(self, held)

    def empty_pinned(self, size: int, dtype: Any) -> np.ndarray:
        self.pinned += 1
        return np.zeros(size, dtype)


class Queue:
    """A stream: work in order, done up to the place that is waited for."""

    def __init__(self, device: Late, name: str) -> None:
        self.device, self.name, self.work, self.passed = device, name, [], 0

    def add(self, work: Callable[[], None]) -> None:
        self.work.append(work)
        if self.name in self.device.eager:
            self.until(len(self.work))

    def until(self, place: int) -> None:
        while self.passed < place:
            self.passed += 1
            self.work[self.passed - 1]()

    def record(self, event: Event) -> Event:
        event.queue, event.place = self, len(self.work)
        return event

    def wait_event(self, event: Event) -> None:
        queue, place = event.queue, event.place  # the last record before now, not one that comes later
        if queue is not None:
            self.add(lambda: queue.until(place))

    def synchronize(self) -> None:
        self.until(len(self.work))

    def __enter__(self) -> None:
        self.device.current = self

    def __exit__(self, *args: object) -> None:
        self.device.current = self.device.compute


class Event:
    """A place in a stream; one that was never recorded has passed."""

    queue: Queue | None = None
    place = 0

    @property
    def done(self) -> bool:
        return self.queue is None or self.queue.passed >= self.place

    def synchronize(self) -> None:
        assert self.queue is not None
        self.queue.device.waits += 1
        self.queue.until(self.place)


class Memory:
    """An array on the device."""

    def __init__(self, device: Late, held: np.ndarray) -> None:
        self.device, self.held, self.nbytes, self.dtype, self.shape = device, held, held.nbytes, held.dtype, held.shape

    def __getitem__(self, key: Any) -> Memory:
        return Memory(self.device, self.held[key])

    def view(self, dtype: Any) -> Memory:
        return Memory(self.device, self.held.view(dtype))

    def reshape(self, shape: tuple[int, ...]) -> Memory:
        return Memory(self.device, self.held.reshape(shape))

    def __setitem__(self, key: Any, value: Memory) -> None:
        self.device.current.add(lambda: self.held.__setitem__(key, value.held))

    def set(self, source: np.ndarray, stream: Queue) -> None:
        stream.add(lambda: self.held.__setitem__(..., source))  # reads pinned memory when it is done, not now


@pytest.mark.parametrize("eager", [set(), {"compute"}, {"copying"}, {"compute", "copying"}])
@pytest.mark.parametrize("slots", [2, 64])
def test_every_step_reads_its_own_batch(eager: set[str], slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_SLOTS", slots)
    device = Late(eager)
    uploads = Staging(device, device.empty_pinned)
    host, target, seen = np.zeros((3, 5), np.float32), device.empty(15, np.float32).reshape((3, 5)), []
    words, place = np.zeros(2, np.uint64), device.empty(2, np.uint64)
    for turn in range(150):
        host[:], words[:] = turn, turn
        uploads.upload([host, words], [target, place])
        host[:] = -1  # the batch's memory belongs to somebody else again
        device.compute.add(lambda: seen.append((set(target.held.ravel().tolist()), set(place.held.tolist()))))
    device.compute.synchronize()
    assert seen == [({float(turn)}, {turn}) for turn in range(150)]
    assert device.pinned <= slots + 1


def test_the_host_waits_only_when_it_is_all_slots_ahead() -> None:
    device = Late(set())
    uploads = Staging(device, device.empty_pinned)
    target = device.empty(4, np.float32)
    for _ in range(staging._SLOTS):
        uploads.upload([np.ones(4, np.float32)], [target])
    assert device.waits == 0
    uploads.upload([np.ones(4, np.float32)], [target])
    assert device.waits == 1


def test_a_slot_whose_copy_has_passed_is_used_again() -> None:
    device = Late({"copying"})
    uploads = Staging(device, device.empty_pinned)
    for _ in range(50):
        uploads.upload([np.ones(4, np.float32)], [device.empty(4, np.float32)])
    assert device.pinned == 1 and device.waits == 0


def test_a_copy_waits_for_those_who_had_its_memory_before() -> None:
    device = Late({"copying"})
    uploads = Staging(device, device.empty_pinned)
    target, device.freed, seen = device.empty(4, np.float32), np.full(256, 7, np.uint8), []
    earlier = device.freed
    device.compute.add(lambda: seen.append(set(earlier.tolist())))  # launched, not done; then the pool got it back
    uploads.upload([np.ones(4, np.float32)], [target])
    device.compute.synchronize()
    assert seen == [{7}]


def test_larger_batches_get_larger_buffers_and_numbers_are_cast(device_arrays: ModuleType) -> None:
    import cupyx

    xp = device_arrays
    with xp.cuda.Stream(non_blocking=True):
        uploads = Staging(xp, cupyx.empty_pinned)
        for size in (10, 1000, 10):
            target = xp.empty((size, 2), np.float32)
            uploads.upload([np.arange(2 * size, dtype=np.int64).reshape(size, 2)], [target])
            assert target.get().ravel().tolist() == list(range(2 * size))
        uploads.upload([np.empty((0, 2), np.float32)], [xp.empty((0, 2), np.float32)])
