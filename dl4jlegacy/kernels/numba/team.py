"""The threads that help a kernel: they wait for work in compiled code for a short time, then sleep.

A product of matrices takes some 100 microseconds; handing a part of it to a sleeping thread, or through Python, takes
as long. So workers look for parts without the GIL (``work_queue``), and sleep after a while without work. A thread with
work wakes the sleeping workers, and does not wait for them.

Only one thread at a time has the team; another thread that comes meanwhile computes alone, with the same bits.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Any

import numpy as np
from numba import types

from dl4jlegacy.kernels import threads
from dl4jlegacy.kernels.host_memory import host_vector
from dl4jlegacy.kernels.numba.compile import compile_cached
from dl4jlegacy.kernels.numba.work_queue import (
    ASLEEP,
    CORES,
    MOST,
    MOVE,
    NUMBERS,
    SLEEP,
    TASK,
    TASKS,
    WORDS,
    job,
    serve,
    share_out,
)
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["TeamLease", "run_all", "share_vectors"]

_SCRATCH = 5 << 20  # bytes of memory that a worker packs into; pages that it never writes to take none
_AWAKE = 1e-3  # seconds that a worker looks for work before it sleeps: longer than between two products of a network
_ELEMENTS = 1 << 16  # of vectors that are worth a thread: some 30 microseconds of an updater
_LOOKS = 1 << 12  # to find out how long one takes
_END = 1.0  # seconds that the end of the process waits for workers


def _memory(nbytes: int) -> tuple[np.ndarray[Any, Any], int]:
    """Return ``nbytes`` bytes as zeroed words that begin at a cache line, and their address."""
    words = host_vector(nbytes // 8, np.int64)
    return words, int(words.ctypes.data)


@functools.cache
def _serve() -> Callable[[int, int, int, int, bool], int]:
    signature = (*[types.int64] * 4, types.boolean)
    compiled: Callable[[int, int, int, int, bool], int] = compile_cached(signature, serve)
    return compiled


class _Team:
    """Workers and their shared area. ``free`` is held by the thread that the workers work for."""

    def __init__(self) -> None:
        self.free = threading.Lock()
        self.words, self.area = _memory(8 * WORDS)
        self._asleep = self.words[ASLEEP // 8 + 1 :][: MOST - 1]
        self._cores = self.words[CORES // 8 :][:MOST]
        self.is_over = False
        self.tasks: deque[Callable[[], None]] = deque()
        self._gates: list[SimpleQueue[None]] = []  # where each worker sleeps; it may wake once more than it must
        self._workers: list[threading.Thread] = []
        self._turns = 0

    def call_in(self, count: int) -> bool:
        """Make ``count`` workers exist and wake up; return False if there cannot be any."""
        if len(self._gates) < min(count, MOST - 1):
            self._start(min(count, MOST - 1))
        asleep = self._asleep[:count]
        for number, sleeps in enumerate(asleep.tolist()):  # read once: workers write there whenever they like
            if sleeps:
                asleep[number] = 0
                self._gates[number].put(None)
        return bool(self._gates) and not self.is_over  # whose workers have ended, and would leave tasks undone

    def _start(self, count: int) -> None:
        if self.is_over:
            return
        run = _serve()
        if not self._turns:
            _nothing, area = _memory(8 * WORDS)
            seconds = []
            for _ in range(3):
                start = time.perf_counter()
                run(area, 0, 1, _LOOKS, False)
                seconds.append(time.perf_counter() - start)
            self._turns = max(1, int(_LOOKS * _AWAKE / min(seconds)))
        for number in range(len(self._gates), count):
            gate: SimpleQueue[None] = SimpleQueue()
            worker = ServiceThread(target=self._work, args=(number, gate), name=f"{threads.NAME}-{number}")
            try:
                worker.start()
            except RuntimeError:  # the process ends, or may have no more threads
                return
            self._gates.append(gate)
            self._workers.append(worker)

    def _work(self, number: int, gate: SimpleQueue[None]) -> None:
        run, turns, is_mobile = _serve(), self._turns, True
        _kept, scratch = _memory(_SCRATCH)
        while not self.is_over:
            reason = run(self.area, scratch, number + 1, turns, is_mobile)
            if reason == SLEEP:
                if not self.words[TASKS // 8]:  # else they came when it had looked, and nobody may have seen it asleep
                    gate.get()
                is_mobile = True
            elif reason == TASK:
                self.tasks.popleft()()
            elif reason == MOVE:
                is_mobile = self._move()

    def _move(self) -> bool:
        """Move this thread to a core without a thread of the team; return whether there is one."""
        try:
            cores = os.sched_getaffinity(0)
            others = cores - {core - 1 for core in self._cores.tolist()}
            if others:
                os.sched_setaffinity(0, others)
                os.sched_setaffinity(0, cores)  # it stays where it is, until the scheduler knows better
        except OSError:  # cores were taken away meanwhile
            return False
        return bool(others)

    def end(self) -> None:
        """End the workers, which must not be in compiled code when that is unloaded."""
        self.is_over = True
        until = time.monotonic() + _END
        for worker, gate in zip(self._workers, self._gates, strict=True):
            gate.put(None)
            worker.join(max(0.0, until - time.monotonic()))


_team = _Team()


class TeamLease:
    """``with TeamLease(threads) as area``: the area of ``threads - 1`` workers; 0 if they are not free."""

    __slots__ = ("_count", "_team")

    def __init__(self, count: int) -> None:
        self._count = count
        self._team: _Team | None = None

    def __enter__(self) -> int:
        team = _team
        if not team.free.acquire(blocking=False):
            return 0
        self._team = team
        try:
            return team.area if team.call_in(self._count - 1) else 0
        except BaseException:
            team.free.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._team is not None:
            self._team.free.release()


def run_all(tasks: list[Callable[[], None]]) -> None:
    """Run all tasks, the first of them in this thread, and wait for them; raises the error of a task.

    Tasks must end by themselves: the wait has no deadline, like the call of a kernel.
    """
    with TeamLease(len(tasks)) as area:
        if len(tasks) > 1 and area:
            _share_tasks(tasks)
            return
    _raise_first([_outcome(task) for task in tasks])


def share_vectors(
    share: Callable[[int, int, int], int], vectors: tuple[np.ndarray[Any, Any], ...], more: tuple[float, ...]
) -> list[float] | None:
    """Let threads compute parts of flat vectors; do nothing, return None, if vectors are short or workers busy.

    The numbers for ``share`` are the vectors' addresses, their size, the number of parts, and ``more``. The values of
    ``more`` after the call are returned.
    """
    first = vectors[0]
    count = min(threads.count(), first.size // _ELEMENTS, MOST)
    if count < 2 or first.dtype.char not in "fd":
        return None
    if not all(each.dtype == first.dtype and each.size == first.size and each.flags.c_contiguous for each in vectors):
        return None
    address, run = _address(share), _run_shared()
    with TeamLease(count) as area:
        if not area:
            return None
        given = (*(each.ctypes.data for each in vectors), first.size, count)
        words = _team.words[NUMBERS // 8 :]
        words[: len(given)] = given
        rest = words[len(given) : len(given) + len(more)].view(np.float64)
        rest[:] = more
        run(area, address, count, count, 0)
        left: list[float] = rest.tolist()
    return left


@functools.cache
def _address(share: Callable[[int, int, int], int]) -> int:
    return job(share)


@functools.cache
def _run_shared() -> Callable[[int, int, int, int, int], None]:
    compiled: Callable[[int, int, int, int, int], None] = compile_cached((types.int64,) * 5, _share)
    return compiled


def _share(area: int, share: int, parts: int, count: int, scratch: int) -> None:
    share_out(area, share, parts, count, scratch)


def _share_tasks(tasks: list[Callable[[], None]]) -> None:
    outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
    _team.tasks.extend([functools.partial(_run_for, outcomes, task) for task in tasks[1:]])
    _team.words[TASKS // 8] = len(tasks) - 1  # from here on workers take them
    _team.call_in(len(tasks) - 1)  # those that fell asleep meanwhile
    failures: list[BaseException | None] = []
    found = [_outcome(tasks[0])]
    while len(found) < len(tasks):
        try:
            found.append(outcomes.get())
        except KeyboardInterrupt as interrupt:  # others still write to what belongs to the caller
            failures.append(interrupt)
    _raise_first([*failures, *found])


def _run_for(outcomes: SimpleQueue[BaseException | None], task: Callable[[], None]) -> None:
    outcomes.put(_outcome(task))


def _raise_first(found: list[BaseException | None]) -> None:
    for error in found:
        if error is not None:
            raise error


def _outcome(task: Callable[[], None]) -> BaseException | None:
    """Run a task; return its exception or None."""
    try:
        task()
    except BaseException as error:  # noqa: BLE001  # raised again when all have ended
        return error
    return None


def _end() -> None:
    _team.end()


def _forget() -> None:
    """Reset the team in a forked process, which has none of its parent's threads."""
    global _team
    _team = _Team()


atexit.register(_end)
os.register_at_fork(after_in_child=_forget)
