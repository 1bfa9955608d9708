"""Parallel runs of several trials, each on its own thread, monitored and stopped by the calling thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.system.exits import exits_as_errors

__all__ = ["Tick", "side_by_side"]

T = TypeVar("T")
Tick = Callable[[RunStatus], None]
_LOOK_SECONDS = 0.2


class _HaltedError(Exception):
    """Ends a run because another run, or the whole search, has ended."""


class _Watched:
    """The last status of each run, by the number of its trial; the runs write it, and one thread reads it."""

    def __init__(self) -> None:
        self._said: dict[int, RunStatus] = {}
        self.halted = threading.Event()

    def tick_of(self, number: int) -> Tick:
        """Return the ``tick`` of a run, which ends the run when the others shall end."""

        def tick(status: RunStatus) -> None:
            if self.halted.is_set():
                raise _HaltedError
            self._said[number] = status

        return tick

    def of_first(self, numbers: Iterator[int]) -> RunStatus | None:
        """Return the last status of the first of these trials that has one; None if none has."""
        return next((self._said[number] for number in sorted(numbers) if number in self._said), None)


def side_by_side(
    tasks: Mapping[int, Callable[[Tick | None], T]], tick: Tick | None
) -> Generator[tuple[int, Future[T]], None, None]:
    """Yield number and future of each task as soon as it is done, with result or error; a single task runs here.

    Closing the generator stops the other tasks and waits for them: a run stops at its next tick, which comes several
    times a second.

    Args:
        tasks: by the numbers of their trials; each gets the tick for its run.
        tick: called on this thread with the status of the first running trial; its exceptions end all tasks.
    """
    if len(tasks) == 1:
        [(number, task)] = tasks.items()
        future: Future[T] = Future()
        try:
            with exits_as_errors():
                future.set_result(task(tick))
        except Exception as exc:  # noqa: BLE001  # reading the result raises it again
            future.set_exception(exc)
        yield number, future
        return
    watched = _Watched()
    with contextlib.ExitStack() as opened:
        # Thread limits apply to the whole process: without one limit around all runs, the first run that ends would
        # remove it for the others, whose sums could then be rounded differently.
        opened.enter_context(one_thread())
        pool = opened.enter_context(ThreadPoolExecutor(len(tasks), thread_name_prefix="dl4j-trial"))
        opened.callback(watched.halted.set)
        numbers = {pool.submit(task, watched.tick_of(number)): number for number, task in tasks.items()}
        while numbers:
            done, _ = wait(numbers, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=numbers.__getitem__):
                yield numbers.pop(future), future
            status = watched.of_first(iter(numbers.values()))
            if tick is not None and status is not None:
                tick(status)
