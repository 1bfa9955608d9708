"""Threads that share a kernel's work: the same bits for any number of threads, also if they sleep, fork or fail."""

from __future__ import annotations

import itertools
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numba import types

from dl4jlegacy.kernels import load, threads
from dl4jlegacy.kernels.numba import product, team
from dl4jlegacy.kernels.numba import work_queue as handing
from dl4jlegacy.kernels.numba.compile import compile_cached
from dl4jlegacy.kernels.numba.product import matmul
from tests.kernels.test_product import numbers
from tests.support import REPOSITORY
from tests.support.cluster_commands import until

DEADLINE = 60.0


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Share out every product, however small, in four threads; what is returned lists how many got each."""
    asked: list[int] = []

    class Counted(team.TeamLease):
        def __enter__(self) -> int:
            area = super().__enter__()
            asked.append(self._count if area else 1)
            return area

    monkeypatch.setattr(team, "TeamLease", Counted)
    monkeypatch.setattr(product, "_PART", 1)
    monkeypatch.setattr(threads, "_CORES", 4)
    monkeypatch.setattr(threads, "_limits", 0)
    yield asked
    assert_free()


def assert_free() -> None:
    """Nobody has the team, and nothing is left to do."""
    assert not team._team.free.locked()
    assert not team._team.tasks and not team._team.words[handing.TASKS // 8]
    assert not team._team.words[0] & handing._FREE


def alone(a: np.ndarray, b: np.ndarray, out: np.ndarray, accumulate: bool = False) -> np.ndarray:
    """Return the product in this thread only."""
    found = out.copy(order="K")
    with threads.one_thread():
        matmul(a, b, found, accumulate)
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("out_turned", [False, True])
@pytest.mark.everyday(1)
def test_any_number_of_threads_gives_the_same_bits(
    out_turned: bool, dtype: str, shared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = (1, 2, 3, 4, 7, 40)  # some shapes have fewer tiles than there are threads
    for (m, k, n), accumulate in itertools.product(
        ((70, 600, 410), (128, 50, 10), (3, 5, 7), (1, 1, 200), (500, 20, 33), (13, 1100, 97)), (False, True)
    ):
        a, b = numbers(m, k, dtype), numbers(k, n, dtype, turned=True)
        start = numbers(m, n, dtype, turned=out_turned)
        wanted = alone(a, b, start, accumulate)
        for count in counts:
            monkeypatch.setattr(threads, "_CORES", count)
            together = start.copy(order="K")
            matmul(a, b, together, accumulate)
            np.testing.assert_array_equal(together, wanted, err_msg=f"{m} x {k} x {n}, {count} threads")
    assert shared == [2, 3, 4, 7, 40] * 12


def _meet(numbers: int, part: int, scratch: int) -> int:
    """A part that ends when all parts have begun, each in a thread of its own, or after a while."""
    handing._add(numbers + 8, 1)
    turns = 0
    while handing.get(numbers + 8) < handing.get(numbers + 16) and turns < 2_000_000:
        turns += 1
        handing._wait(True)
    handing.put(handing.get(numbers) + 8 * part, scratch)
    return 0


def _share_out(area: int, share: int, parts: int, count: int, scratch: int) -> None:
    handing.share_out(area, share, parts, count, scratch)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_parts_are_computed_by_different_threads_at_the_same_time(count: int) -> None:
    share, run = handing.job(_meet), compile_cached((types.int64,) * 5, _share_out)
    by = np.zeros(count, np.int64)  # whose scratch memory each part got; the caller's is -1

    def have_met() -> bool:  # not yet if a worker fell asleep just before the parts were there
        with team.TeamLease(count) as area:
            at = handing.NUMBERS // 8
            team._team.words[at : at + 3] = by.ctypes.data, 0, count
            run(area, share, count, count, -1)
        return len(set(by.tolist())) == count

    until(have_met, DEADLINE, "every part is computed by another thread")
    assert -1 in by


def test_workers_have_as_much_memory_to_pack_into_as_callers() -> None:
    assert max(product._scratch_of(char).nbytes for char in "fd") <= team._SCRATCH


def test_workers_that_sleep_are_woken(shared: list[int]) -> None:
    a, b = numbers(60, 50, "float32"), numbers(50, 70, "float32")
    out = np.empty((60, 70), np.float32)
    wanted = alone(a, b, out)
    matmul(a, b, out)
    asleep = team._team._asleep[: len(team._team._gates)]
    for _ in range(3):
        until(asleep.all, DEADLINE, "workers that have nothing to do sleep")
        matmul(a, b, out)
        np.testing.assert_array_equal(out, wanted)


def test_threads_that_call_at_once_compute_the_same(shared: list[int]) -> None:
    pairs = [(numbers(90 + k, 70, "float32"), numbers(70, 80, "float32")) for k in range(4)]
    wanted = [alone(a, b, np.empty((len(a), 80), np.float32)) for a, b in pairs]
    wrong: list[int] = []

    def repeat(number: int) -> None:
        a, b = pairs[number]
        for _ in range(300):
            out = np.full((len(a), 80), np.nan, np.float32)
            matmul(a, b, out)
            if not np.array_equal(out, wanted[number]):
                wrong.append(number)

    callers = [threading.Thread(target=repeat, args=(number,)) for number in range(len(pairs))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(DEADLINE)
    assert not wrong and len(shared) == 1200 and 4 in shared


def _product_in_child(a: np.ndarray, b: np.ndarray, wanted: np.ndarray) -> None:
    out = np.empty(wanted.shape, np.float32)
    matmul(a, b, out)
    sys.exit(0 if np.array_equal(out, wanted) and team._team._gates else 1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_a_team_of_its_own(shared: list[int]) -> None:
    a, b = numbers(60, 50, "float32"), numbers(50, 70, "float32")
    wanted = np.empty((60, 70), np.float32)
    matmul(a, b, wanted)
    with team.TeamLease(2):  # while another thread had the team
        child = multiprocessing.get_context("fork").Process(target=_product_in_child, args=(a, b, wanted))
        child.start()
    child.join(DEADLINE)
    assert child.exitcode == 0
    child.close()


def test_what_a_task_raises_is_raised_when_all_have_ended(shared: list[int]) -> None:
    for count in (2, 3, 6):
        done: list[int] = []

        def fails() -> None:
            raise ValueError("no")

        tasks: list[Any] = [lambda done=done: done.append(1), fails, *[lambda done=done: done.append(2)] * (count - 2)]
        for order in (tasks, tasks[::-1]):
            done.clear()
            with pytest.raises(ValueError, match="no"):
                team.run_all(order)
            assert sorted(done) == [1] + [2] * (count - 2)
            assert_free()
    assert shared == [2, 2, 3, 3, 6, 6]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_updater_of_long_vectors_gives_the_same_bits(
    dtype: str, shared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team, "_ELEMENTS", 1 << 10)
    given = [np.abs(numbers(1, 5003, dtype)[0]) + k for k in range(3)]

    def updated() -> list[np.ndarray]:
        vectors = [each.copy() for each in given]
        load("numba").adagrad(*vectors, 0.1, 1e-6)
        return vectors

    with threads.one_thread():
        wanted = updated()
    for vector, other in zip(updated(), wanted, strict=True):
        np.testing.assert_array_equal(vector, other)
    assert shared == [4] and not np.array_equal(wanted[0], given[0])


def test_an_updater_of_long_vectors_says_what_is_not_finite_in_any_part(
    shared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team, "_ELEMENTS", 1 << 10)
    for place in (None, 0, 1500, 5002):
        params, gradient, h = (np.abs(numbers(1, 5003, "float32")[0]) + k for k in range(3))
        if place is not None:
            gradient[place] = np.nan
        assert load("numba").adagrad(params, gradient, h, 0.1, 1e-6) is (place is None)
    assert shared == [4] * 4


def test_workers_may_fall_asleep_at_any_moment(shared: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    restless = team._Team()
    restless._turns = 20  # looks for work, and then they sleep
    monkeypatch.setattr(team, "_team", restless)
    a, b, out = numbers(60, 40, "float32"), numbers(40, 50, "float32"), numbers(60, 50, "float32")
    wanted, done = alone(a, b, out), list[int]()
    try:
        for number in range(3000):
            out.fill(np.nan)
            matmul(a, b, out)
            np.testing.assert_array_equal(out, wanted)
            if number % 10 == 0:
                team.run_all([lambda: done.append(1)] * 4)
    finally:
        restless.end()
    assert len(done) == 4 * 300 and shared.count(4) == 3300


def test_a_task_that_has_tasks_runs_them_alone(shared: list[int]) -> None:
    where: list[threading.Thread] = []
    team.run_all([lambda: team.run_all([lambda: where.append(threading.current_thread())] * 3)] * 2)
    assert len(where) == 6
    assert shared[0] == 2 and shared[1:] == [1, 1]


def test_a_product_that_does_not_fit_leaves_the_team_free(shared: list[int]) -> None:
    for b in (np.ones((9, 20), np.float32), np.ones((40, 40), np.float32)[::2, ::2]):
        out = np.ones((40, 40), np.float32)[::2, ::2]
        with pytest.raises(ValueError, match="product"):
            matmul(np.ones((20, 20), np.float32), b, out)
        assert_free()


AT_EXIT = """
import atexit, sys
import numpy as np
from dl4jlegacy.kernels import load, threads
from dl4jlegacy.kernels.numba import product, team
threads._CORES, product._PART = 4, 1
a, done = np.ones((200, 200), np.float32), []
def run():
    out = np.empty_like(a)
    product.matmul(a, a, out)
    team.run_all([lambda: done.append(1)] * 3)
    print(int(out.sum()), bool(team._team._gates), len(done), flush=True)
"""


@pytest.mark.parametrize("at_exit", [False, True])
def test_workers_do_not_keep_a_process_from_ending_and_work_after_their_end_is_done_by_its_caller(
    at_exit: bool,
) -> None:
    code = AT_EXIT + ("team._end()\natexit.register(run)" if at_exit else "run()")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=False, cwd=REPOSITORY
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, f"{200**3} {not at_exit} 3", "")
