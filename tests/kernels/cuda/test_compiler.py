"""The compiler of the stand-in: each source is compiled once for all processes, and computes what it says."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import pytest

from tests.support.standin import compiler
from tests.support.standin.compiler import CompileError, cached, compile_library, preprocess

pytestmark = pytest.mark.long  # they need the compiler


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compiler, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def test_products_and_sums_are_not_fused(tmp_path: Path) -> None:
    source = '#include <math.h>\nextern "C" double f(double a, double b) { return a * a - b + 0 * exp(b); }\n'
    compile_library(source, tmp_path / "f.so")
    function = ctypes.CDLL(str(tmp_path / "f.so")).f
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double, ctypes.c_double]
    assert function(1 + 2.0**-30, 1 + 2.0**-29) == 0.0  # 2**-60 if fused


def test_the_compilers_own_words_are_passed_on(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"expected '\)'|expected expression"):
        compile_library("int f(", tmp_path / "f.so")
    with pytest.raises(CompileError, match="the wrong one"):
        preprocess("#error the wrong one\n")
    assert preprocess("#ifdef A\nint x = A;\n#endif\n", ["-DA=3"]).split() == ["int", "x", "=", "3;"]
    assert not (tmp_path / "f.so").exists()


def test_many_at_once_make_one_and_all_get_it() -> None:
    made, found, all_there = [], [], threading.Barrier(4)

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "text").write_text("whole")

    def ask() -> None:
        all_there.wait(60)
        found.append((cached(["a", "b"], make) / "text").read_text())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(made), found) == (1, ["whole"] * 4)
    assert cached(["a", "b"], make) != cached(["ab", ""], make)


def test_what_failed_leaves_nothing_and_is_made_anew(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise CompileError("no")

    with pytest.raises(CompileError):
        cached(["a"], fail)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]
    assert [path.name for path in cached(["a"], lambda folder: (folder / "whole").touch()).iterdir()] == ["whole"]


def test_libraries_of_somebody_else_are_not_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(CompileError, match="belongs to somebody else"):
        cached(["a"], lambda folder: None)
