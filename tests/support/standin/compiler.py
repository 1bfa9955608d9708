"""C++ compiled for tests by Clang from the wheel ``ziglang``: no compiler of the system is needed, nor used.

What is compiled is kept in a folder of this user's that all processes share: each source is compiled once. Nothing but
the C library that this process runs on is linked; of C++ there are the headers, no library: no exceptions, no ``new``.
Results do not depend on the processor: products and sums are never fused, and only its basic instructions are used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

__all__ = ["CompileError", "cached", "compile_library", "preprocess"]

CACHE = Path(tempfile.gettempdir()) / f"dl4j-compiled-{os.getuid()}"
SECONDS = 300
TARGET = f"{platform.machine()}-linux-gnu.2.28"
"""Named, so that the headers are those of the wheel, whether this machine has any or not."""
OPTIONS = (
    *("-target", TARGET),
    *("-x", "c++", "-std=c++17", "-O2", "-mcpu=baseline", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-w"),
    *("-fno-sanitize=all", "-U_FORTIFY_SOURCE", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"),
)


class CompileError(Exception):
    """The compiler refused the source; the message is its own."""


def cached(parts: Sequence[str], make: Callable[[Path], None]) -> Path:
    """Return the folder that ``make`` filled, in this process or another, now or earlier.

    Args:
        parts: all texts that the content depends on; the compiler and its options are always among them.
        make: writes files into the folder that it is given; called by one process at a time for the same parts.
    """
    whole = [metadata.version("ziglang"), *OPTIONS, *parts]
    key = hashlib.sha256("\0".join(f"{len(part)} {part}" for part in whole).encode()).hexdigest()
    folder = _cache() / key
    if not folder.exists():
        with _locked(key):
            if not folder.exists():
                draft = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=CACHE))
                try:
                    make(draft)
                    draft.rename(folder)  # at once and whole
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
    return folder


def _cache() -> Path:
    CACHE.mkdir(mode=0o700, exist_ok=True)
    if CACHE.stat().st_uid != os.getuid():
        raise CompileError(f"{CACHE} belongs to somebody else; its libraries are not loaded")
    return CACHE


@contextmanager
def _locked(key: str) -> Iterator[None]:
    """Keep other processes from compiling the same; the lock ends with the process that holds it."""
    with (CACHE / f"{key}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def preprocess(code: str, definitions: Sequence[str] = ()) -> str:
    """Return C++ after its preprocessor; ``definitions`` are options such as ``-DREAL=float``."""
    return _run("c++", "-target", TARGET, "-E", "-P", "-x", "c++", *definitions, "-", text=code)


def compile_library(source: str, library: Path) -> None:
    """Compile C++ to a shared library, which is there once it is whole.

    Raises:
        CompileError: the compiler or the linker refused it.
    """
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=_cache()) as folder:
        text, compiled, linked = (Path(folder, name) for name in ("source.cpp", "compiled.o", "linked.so"))
        text.write_text(source, encoding="utf-8")
        _run("c++", "-c", *OPTIONS, "-o", str(compiled), str(text))
        _run("ld.lld", "-shared", "-o", str(linked), str(compiled), *_c_libraries())
        shutil.move(linked, library)


def _c_libraries() -> list[str]:
    """The parts of the C library that are loaded here: kernels then compute ``exp`` with this very one."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return sorted(set(re.findall(r"/\S+/lib[cm]\.so\.6$", maps, flags=re.M)))


def _run(*arguments: str, text: str | None = None) -> str:
    """Run a part of the compiler, whose own caches lie beside ours; return what it prints."""
    found = find_spec("ziglang")
    if found is None or not found.submodule_search_locations:
        raise CompileError("there is no ziglang here, whose C++ compiler these tests need; ./install dev brings it")
    program = Path(found.submodule_search_locations[0]) / "zig"
    caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(_cache() / "zig"))
    done = subprocess.run(
        [str(program), *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, **caches},
    )
    if done.returncode:
        raise CompileError(f"the compiler refused the source:\n{done.stderr[:4000]}")
    return done.stdout
