"""The cache of compiled kernels: what cannot be written costs time, not the run; processes compile a kernel once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numba
import numpy as np
import pytest
from numba.core.caching import IndexDataCacheFile

from dl4jlegacy.kernels.numba import compile as compiling
from dl4jlegacy.kernels.numba.compile import kernel


def double(x):
    """Double every element."""
    for i in range(x.size):
        x[i] *= 2


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PermissionError(13, "denied"), EOFError()])
@pytest.mark.parametrize("when", ["save", "load"])
def test_a_kernel_is_compiled_whatever_becomes_of_the_cache(error, when, monkeypatch):
    def fail(self, *args):
        raise error

    monkeypatch.setattr(IndexDataCacheFile, when, fail)
    x = np.ones(3, np.float32)
    kernel("m")(double)(x)
    assert x.tolist() == [2, 2, 2]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_no_garbage_is_looked_for_while_a_kernel_is_compiled_and_then_as_before(is_enabled, monkeypatch):
    seen, njit = [], numba.njit

    def watched(*args, **options):
        seen.append(gc.isenabled())
        return njit(*args, **options)

    monkeypatch.setattr(compiling, "_njit", watched)
    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        kernel("m")(double)(np.ones(3, np.float32))
        assert gc.isenabled() == is_enabled
        with pytest.raises(numba.core.errors.NumbaError):
            kernel("m")(lambda x: x.nothing())(np.ones(3, np.float32))
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
    assert seen
    assert not any(seen)


def test_threads_that_need_a_kernel_at_once_compile_it_once(monkeypatch):
    compiled, together = [], Barrier(2, timeout=60)

    def compile_cached(signature, function):
        compiled.append(function)
        return function

    monkeypatch.setattr(compiling, "compile_cached", compile_cached)
    shared, x = kernel("m")(double), np.ones((2, 3), np.float32)

    def call(row):
        together.wait()
        shared(row)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(call, x))
    assert (x == 2).all()
    assert len(compiled) == 1


HALVE = "def halve(x):\n    return x / 2.0\n"
ANOTHER_PROCESS = """
import logging, sys
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
from pathlib import Path
from dl4jlegacy.kernels.numba import compile as compiling
"""
COMPILE = """
import numba
import work
compiled = compiling.compile_cached((numba.float64,), work.halve)
print("from the cache:", sum(compiled.stats.cache_hits.values()), compiled(3.0), flush=True)
"""
HOLD = """
with compiling.sole_compiler(Path(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    sys.stdin.readline()
"""
FOR_OTHERS = """
import numba
import work
def step():
    compiled = compiling.compile_cached((numba.float64,), work.halve)
    print("nothing is computed:", compiled(3.0), compiling.address_of(compiled), flush=True)
compiling.compile_for_others(step)
"""


@pytest.fixture
def halve(tmp_path, monkeypatch):
    """A function in a module of its own, whose cache is beside it."""
    (tmp_path / "work.py").write_text(HALVE)
    (tmp_path / "__pycache__").mkdir()
    spec = importlib.util.spec_from_file_location("work", tmp_path / "work.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "work", module)
    spec.loader.exec_module(module)
    return module.halve


@contextlib.contextmanager
def another_process(folder, code, *arguments):
    """Run Python code in another process, which imports what lies in a folder; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", ANOTHER_PROCESS + code, *map(str, arguments)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment_with(folder),
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def environment_with(folder):
    """The environment of this process, with a folder to import from, and caches beside the sources."""
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def line_with(process, words):
    """Return the first line of a process's output that has these words."""
    return next(line for line in process.stdout if words in line)


def test_a_process_reads_from_the_cache_what_another_one_compiles_at_the_time(halve, tmp_path):
    held = compiling.sole_compiler(tmp_path / "__pycache__", "halve")
    with held, another_process(tmp_path, COMPILE) as other:
        assert "halve" in line_with(other, "another process compiles it")
        compiled = compiling.compile_cached((numba.float64,), halve)  # and is done: the lock is free again
        assert sum(compiled.stats.cache_misses.values()) == 1
        assert line_with(other, "from the cache").split()[3:] == ["1", "1.5"]


@pytest.mark.usefixtures("halve")
def test_a_process_compiles_what_another_one_was_killed_over(tmp_path):
    with another_process(tmp_path, HOLD, tmp_path / "__pycache__", "halve") as holder:
        line_with(holder, "held")
        with another_process(tmp_path, COMPILE) as other:
            line_with(other, "another process compiles it")
            holder.kill()
            assert line_with(other, "from the cache").split()[3:] == ["0", "1.5"]


def test_a_process_that_compiles_for_too_long_is_waited_for_no_longer(tmp_path, caplog):
    caplog.set_level("INFO", "dl4jlegacy.kernels.numba.compile")  # above which the command line sets WARNING
    with another_process(tmp_path, HOLD, tmp_path, "halve") as holder:
        line_with(holder, "held")
        with compiling.sole_compiler(tmp_path, "halve", 0.1), compiling.sole_compiler(tmp_path, "another kernel"):
            assert holder.poll() is None
    waits, ends = (record.getMessage() for record in caplog.records)
    assert "another process compiles it" in waits
    assert "not done after 0.1 s" in ends


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_nothing_can_be_locked_everybody_compiles(code, halve, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(code, "no locks")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with compiling.sole_compiler(tmp_path, "halve"):
        assert compiling.compile_cached((numba.float64,), halve)(3.0) == 1.5


def test_a_cache_that_no_lock_can_be_kept_in_keeps_nobody_waiting(tmp_path):
    (tmp_path / compiling.LOCK_FILE).mkdir()
    with compiling.sole_compiler(tmp_path, "halve", seconds=0):
        assert (tmp_path / compiling.LOCK_FILE).is_dir()


def test_a_compiler_compiles_what_nobody_is_at_and_computes_nothing(halve, tmp_path):
    def compile_once():
        with another_process(tmp_path, FOR_OTHERS) as compiler:
            assert line_with(compiler, "nothing is computed").split()[3:] == ["0", "0"]
            assert compiler.wait(60) == 0
        return len(list((tmp_path / "__pycache__").glob("work.halve*.nbc")))

    with compiling.sole_compiler(tmp_path / "__pycache__", "halve"):
        assert compile_once() == 0
    assert compile_once() == 1
    compiled = compiling.compile_cached((numba.float64,), halve)
    assert (sum(compiled.stats.cache_hits.values()), compiled(3.0)) == (1, 1.5)


@pytest.fixture
def compile_for_others(monkeypatch):
    """What lets this process be a compiler for a while."""
    monkeypatch.setattr(compiling, "_needed", None)  # as it is again afterwards
    return compiling.compile_for_others


def test_a_compiler_compiles_nothing_where_nothing_can_be_locked(halve, compile_for_others, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    compile_for_others(lambda: compiling.compile_cached((numba.float64,), halve))
    monkeypatch.setattr(compiling, "_needed", None)
    assert sum(compiling.compile_cached((numba.float64,), halve).stats.cache_hits.values()) == 0


def test_a_compiler_begins_with_what_is_needed_last_also_if_the_step_fails(compile_for_others, monkeypatch):
    order = []
    monkeypatch.setattr(compiling, "_compile_unless_others", lambda *what: order.append(what))

    def step():
        for name in "abc":
            compiling.compile_cached((name,), double)
        raise ValueError("made-up examples")

    with pytest.raises(ValueError, match="made-up"):
        compile_for_others(step)
    assert [what[:2] for what in order] == [(("c",), double), (("b",), double), (("a",), double)]


@pytest.mark.parametrize(("returned", "result"), [("bool", True), ("float", 0.0), ("int", 0), ("None", 0)])
def test_what_a_compiler_does_not_compute_lets_its_caller_go_on(returned, result):
    def kernel_of_some_kind(x):
        return x

    kernel_of_some_kind.__annotations__["return"] = returned
    found = compiling._Uncomputed(kernel_of_some_kind)(1.0)
    assert (found, type(found)) == (result, type(result))
