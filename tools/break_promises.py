"""Shows that each promise has a test that fails when the promise is broken, by breaking each of them once.

    python -m tools.break_promises [NAME ...] [--control] [--list]

The checkout is copied into a temporary folder. There each promise in ``tools/promises.yaml`` is broken in turn by
replacing one piece of text, its tests are run, and the text is put back. Every test must fail. Exits with status 1 if
one did not.
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tools.promises import PROMISES, Promise

__all__ = ["Outcome", "broken", "is_long", "main", "run_test"]

REPOSITORY = Path(__file__).parent.parent
NOT_COPIED = (".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "build", "dist")
STAND_INS = {"device_arrays", "gpu", "ssh_server"}
"""Fixtures that make a test slow; ``tests/conftest.py`` marks the tests that use them."""

Outcome = Literal["failed", "passed", "hung", "no test"]
"""Outcome of a test: it failed, it passed, it did not end in time, or none was run (it was skipped)."""


@contextmanager
def copy_of_checkout() -> Iterator[Path]:
    """Yield a folder with a copy of the checkout, compiled kernels included; it is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="dl4j-promises-") as name:
        folder = Path(name) / REPOSITORY.name
        shutil.copytree(REPOSITORY, folder, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
        yield folder


@contextmanager
def broken(folder: Path, promise: Promise) -> Iterator[None]:
    """Break a promise in the copy at ``folder`` while the context lasts.

    Raises:
        ValueError: the text to replace is not exactly once in its file.
    """
    path = folder / promise.file
    whole = path.read_text(encoding="utf-8")
    if whole.count(promise.before) != 1:
        raise ValueError(
            f"{promise.name}: {promise.file} has {whole.count(promise.before)} times the text {promise.before!r}; "
            "bring tools/promises.yaml up to date"
        )
    times = path.stat()
    path.write_text(whole.replace(promise.before, promise.after), encoding="utf-8")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1_000_000_000))  # so that no compiled copy is used
    try:
        yield
    finally:
        path.write_text(whole, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # the compiled kernels still fit


def run_test(folder: Path, test: str, seconds: float) -> tuple[Outcome, str]:
    """Run one test in the copy at ``folder`` for at most ``seconds``; return its outcome and last lines."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-m", "", "-p", "no:cacheprovider", test]
    environment = {**os.environ, "PYTHONPATH": str(folder)}  # precedes an installed copy, also in processes of tests
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            return "hung", f"it had not ended after {seconds:g} s"
        output.seek(0)
        lines = output.read().splitlines()
    if status in (4, 5) or (status == 0 and "passed" not in lines[-1]):
        return "no test", "\n".join(lines[-5:])
    return ("passed" if status == 0 else "failed"), "\n".join(lines[-5:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a test run so that it cleans up; kill it if it does not end."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_long(test: str) -> bool:
    """Return whether a test belongs to the suite ``-m long``; raises ``LookupError`` if there is no such test."""
    file, _, name = test.partition("::")
    found = _suites(REPOSITORY / file).get(name.partition("[")[0])
    if found is None:
        raise LookupError(f"there is no test {test}")
    return found


@functools.cache
def _suites(path: Path) -> dict[str, bool]:
    """Return the tests in a file, and whether each belongs to the suite ``-m long``."""
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    assigned = [node for node in body if isinstance(node, ast.Assign)]
    module = any("pytestmark = " in (text := ast.unparse(node)) and "mark.long" in text for node in assigned)
    suites = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            marked = any("mark.long" in ast.unparse(decorator) for decorator in node.decorator_list)
            suites[node.name] = module or marked or bool(STAND_INS & {argument.arg for argument in node.args.args})
    return suites


def _check(folder: Path, promise: Promise, control: bool) -> bool:
    """Break one promise, and print a line for each of its tests; return whether every test noticed."""
    noticed = True
    for test in promise.tests:
        began = time.monotonic()
        unbroken: Outcome = run_test(folder, test, promise.seconds)[0] if control else "passed"
        with broken(folder, promise):
            outcome, said = run_test(folder, test, promise.seconds)
        right = unbroken == "passed" and outcome in (("failed", "hung") if promise.may_hang else ("failed",))
        noticed = noticed and right
        before = f"{unbroken} unbroken, " if control else ""
        print(f"{'ok ' if right else 'NOT'} {promise.name:28} {before}{outcome} broken, {test}", end="")
        print(f" ({time.monotonic() - began:.0f} s)", flush=True)
        if not right:
            print(said)
    return noticed


def main(arguments: Sequence[str] | None = None) -> int:
    """Break the named promises, or all; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.break_promises", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these promises")
    parser.add_argument("--control", action="store_true", help="run each test unbroken too; it must pass")
    parser.add_argument("--list", action="store_true", help="print the names of all promises")
    options = parser.parse_args(arguments)
    every = [promise for group in PROMISES.values() for promise in group]
    if options.list:
        for title, group in PROMISES.items():
            print(f"\n## {title}\n")
            print("\n".join(promise.name for promise in group))
        return 0
    unknown = set(options.names) - {promise.name for promise in every}
    if unknown:
        parser.error(f"there is no promise {', '.join(sorted(unknown))}; see --list")
    chosen = [promise for promise in every if not options.names or promise.name in options.names]
    with copy_of_checkout() as folder:
        unnoticed = [promise.name for promise in chosen if not _check(folder, promise, options.control)]
    print(f"{len(chosen) - len(unnoticed)} of {len(chosen)} broken promises were noticed by every test named for them")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
