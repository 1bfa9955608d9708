"""Compilers compile a network's kernels beside a process that needs them: they save time, or nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dl4jlegacy.kernels import compilation, load
from dl4jlegacy.kernels.compilation import report_missing
from dl4jlegacy.kernels.numba import compile as compiling
from dl4jlegacy.nn.compiling import compile_ahead
from dl4jlegacy.nn.compiling.compile_ahead import compilers, compiling_ahead
from dl4jlegacy.nn.compiling.warm_up import made_up_batch
from dl4jlegacy.nn.zoo import ZOO

CONF = ZOO["mlp"].build(4, 3)
GIB = 1 << 30


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that wait for ever, started as compilers, of which there may be two; and a cache's folder."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(kind: str, text: bytes) -> subprocess.Popen[bytes]:
        assert kind == "layers"
        assert json.loads(text) == json.loads(CONF.to_json())
        processes.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        return processes[-1]

    monkeypatch.setattr(compile_ahead, "_compiler", start)
    monkeypatch.setattr(compile_ahead, "compilers", lambda: 2)
    monkeypatch.setattr(compiling, "cache_folder", lambda: tmp_path)
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("error", [None, ValueError("not this network")])
def test_compilers_are_there_from_the_first_missing_kernel_on_and_have_ended_afterwards(error, started):
    with contextlib.suppress(ValueError), compiling_ahead(CONF, load("numba")):
        assert started == []
        report_missing()
        report_missing()
        assert [process.poll() for process in started] == [None, None]
        if error:
            raise error
    assert [process.returncode for process in started] == [-9, -9]
    report_missing()
    assert len(started) == 2


def test_nobody_is_started_where_nothing_is_missing_or_nothing_is_compiled(started):
    with compiling_ahead(CONF, load("numba")):
        pass
    with compiling_ahead(CONF, load("numpy")):
        report_missing()
    assert started == []


def test_while_one_process_has_compilers_another_one_gets_none(started):
    with compiling_ahead(CONF, load("numba")):
        report_missing()
        with compiling_ahead(CONF, load("numba")):  # a lock of its own, as in another process
            report_missing()
        assert len(started) == 2
        assert [process.poll() for process in started] == [None, None]
    with compiling_ahead(CONF, load("numba")):
        report_missing()
        assert len(started) == 4


def test_what_cannot_be_started_or_locked_is_done_without(started, monkeypatch, tmp_path):
    def fail(kind: str, text: bytes) -> subprocess.Popen[bytes]:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(compiling, "cache_folder", lambda: None)
    with compiling_ahead(CONF, load("numba")):
        report_missing()
    monkeypatch.setattr(compiling, "cache_folder", lambda: tmp_path / "nowhere")
    with compiling_ahead(CONF, load("numba")):
        report_missing()
    monkeypatch.setattr(compiling, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(compile_ahead, "_compiler", fail)
    with compiling_ahead(CONF, load("numba")):
        report_missing()
    assert started == []


@pytest.mark.parametrize(
    ("cores", "quota", "memory", "count"),
    [(1, None, None, 0), (2, None, None, 1), (16, None, None, 3), (16, 2.5, None, 1), (16, 0.5, None, 0),
     (16, None, GIB // 2, 0), (16, None, GIB, 1), (16, None, 64 * GIB, 3)],
)  # fmt: skip
def test_there_are_as_many_compilers_as_cores_and_memory_are_spare(cores, quota, memory, count, monkeypatch):
    monkeypatch.setattr(compile_ahead.threads, "count", lambda: cores)
    monkeypatch.setattr(compile_ahead, "most_cores", lambda: quota)
    monkeypatch.setattr(compile_ahead, "free_memory", lambda: memory)
    assert compilers() == count


def test_of_what_is_told_inside_something_else_the_innermost_is_called_and_then_the_other_one():
    called = []
    with compilation.when_missing(lambda: called.append("outer")):
        with compilation.when_missing(lambda: called.append("inner")):
            report_missing()
            report_missing()
        assert called == ["inner"]
        report_missing()
    report_missing()
    assert called == ["inner", "outer"]


TRAIN = """
import sys
from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.compilation import when_missing
from dl4jlegacy.nn.compiling.compile_ahead import _KINDS
from dl4jlegacy.nn.compiling.self_check import training_digest

def missing():
    sys.exit("a kernel is missing")

with when_missing(missing):
    print(training_digest(_KINDS[sys.argv[1]].from_json(sys.stdin.buffer.read()), load("numba")))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    ["dbn", "lstm", *(pytest.param(each, marks=pytest.mark.release) for each in ("alexnet-small", "lenet", "vae"))],
)
def test_a_compiler_alone_compiles_all_that_the_training_of_a_model_needs(model, tmp_path):
    conf = ZOO[model].build(*made_up_batch(model)[:2])
    kind = "layers"  # as of all models of the zoo

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        # new memory holds 0x7f7f7f7f, 3.4e38: a compiler computes nothing, and must not go by what it finds there
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1", "MALLOC_PERTURB_": "128"}
        with tempfile.TemporaryFile() as given:
            given.write(conf.to_json().encode())
            given.seek(0)
            return subprocess.run(
                [sys.executable, "-P", *command, kind], stdin=given, capture_output=True, text=True, timeout=300,
                check=False, env=environment,
            )  # fmt: skip

    compiled = run("-m", "dl4jlegacy.nn.compiling.compile_ahead")
    assert (compiled.returncode, compiled.stdout) == (0, ""), compiled.stderr
    trained = run("-c", TRAIN)
    assert trained.returncode == 0, trained.stderr
    assert len(trained.stdout.strip()) == 16
