"""An exit on a thread is told, and counts as an error of what was done there; the user's own pass where they come."""

from __future__ import annotations

import ast
import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dl4jlegacy.errors import UsageError
from dl4jlegacy.scaleout.persistence.jsonl import JsonlFile, JsonlWriter
from dl4jlegacy.scaleout.workers.plugins import import_parts
from dl4jlegacy.scaleout.zookeeper.scheduler import StepScheduler
from dl4jlegacy.storage.folders import LocalFolder
from dl4jlegacy.system.exits import ExitError, Stopped, error_name, error_text, exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread
from tests.test_layering import MODULES, tree

KINDS = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, type("OwnExit", (BaseException,), {})]
BEARS_ERRORS_ONLY = {
    "dl4jlegacy.system.console": {"run_guarded"},  # the edge of the process, which an exit ends
    "dl4jlegacy.arrays.devices": {"_count", "_cupy", "_properties", "_try_out"},  # what CuPy and its libraries raise
    "dl4jlegacy.doctor.checks": {"_checks_of"},  # what imports raise; an exit is borne by who calls a check
    "dl4jlegacy.doctor.kernels": {"_is_whole"},  # likewise
    "dl4jlegacy.doctor.gpus": {"cupy"},  # likewise
    "dl4jlegacy.system.files": {"damage_as"},  # what libraries raise that read damaged files
    "dl4jlegacy.kernels.cuda.cudnn_convolution": {"_first_plan", "_run", "find_cudnn"},  # what cuDNN raises
    "dl4jlegacy.kernels.numba.compile": {"compile_cached"},  # what a damaged file of the cache raises
    "dl4jlegacy.nn.interchange.modelimport.keras_file": {"opened"},  # what h5py raises for a damaged file
    "dl4jlegacy.serving.application": {"_rest", "endpoint", "route"},  # uvicorn ends requests by ``CancelledError``
    "dl4jlegacy.serving.predictions": {"__call__"},  # likewise
    "dl4jlegacy.ui.endpoints": {"answer", "route_of"},  # likewise
}
"""Which functions bear an error of any kind and let an exit pass, since no part of a program of one's own is below."""


def on_a_thread(call: Callable[[], Any]) -> BaseException | None:
    """Call something on a thread that is not the main one; return what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # that is what is looked at
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return raised[0] if raised else None


def inside(kind: type[BaseException]) -> None:
    with exits_as_errors():
        raise kind("no licence")


@pytest.mark.parametrize("kind", KINDS)
def test_an_exit_on_a_thread_becomes_an_error_that_says_what_it_was(kind: type[BaseException]) -> None:
    error = on_a_thread(lambda: inside(kind))
    assert isinstance(error, ExitError) and isinstance(error.__cause__, kind)
    assert (error_name(error), error_text(error)) == (kind.__name__, f"{kind.__name__}: no licence")


@pytest.mark.parametrize("kind", [ValueError, UsageError])
def test_an_error_passes_as_it_is(kind: type[Exception]) -> None:
    error = on_a_thread(lambda: inside(kind))
    assert type(error) is kind
    assert error_text(error) == f"{kind.__name__}: no licence"


def test_an_exit_without_words_has_its_name_alone() -> None:
    assert error_text(ExitError(SystemExit())) == "SystemExit" == error_text(SystemExit())


@pytest.mark.parametrize("exit_", [KeyboardInterrupt(), Stopped(signal.SIGTERM)])
def test_what_the_user_sends_passes_on_the_main_thread(exit_: BaseException) -> None:
    with pytest.raises(type(exit_)) as raised, exits_as_errors():
        raise exit_
    assert raised.value is exit_


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not KeyboardInterrupt])
def test_no_other_exit_passes_on_the_main_thread(kind: type[BaseException]) -> None:
    with pytest.raises(ExitError, match=f"{kind.__name__}: no licence"):
        inside(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_that_exits_when_it_is_imported_is_named(
    kind: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = {"OwnExit": "type('OwnExit', (BaseException,), {})", "CancelledError": "asyncio.CancelledError"}
    (tmp_path / "leaving.py").write_text(
        f"import asyncio\nraise {raised.get(kind.__name__, kind.__name__)}('no licence')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    error = on_a_thread(lambda: import_parts(["leaving"]))
    sys.modules.pop("leaving", None)
    assert isinstance(error, UsageError)
    assert str(error) == f"--use leaving: it cannot be imported: {kind.__name__}: no licence"


# --- threads of the package -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_that_ends_by_an_exit_tells_so(kind: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def leave() -> None:
        raise kind("no licence")

    thread = ServiceThread(target=leave, name="dl4j-some")
    thread.start()
    thread.join(30)
    assert [(args.thread, str(args.exc_value)) for args in told] == [(thread, f"{kind.__name__}: no licence")]


@pytest.mark.parametrize("kind", [ValueError, *KINDS])
def test_a_step_that_exits_ends_no_scheduler(kind: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    def leave() -> None:
        raise kind("no licence")

    scheduler = StepScheduler("scheduler")
    scheduler.run(leave, 30)
    done = threading.Event()
    scheduler.schedule(done.set)
    assert done.wait(30)
    scheduler.stop(30)
    assert "a callback failed" in caplog.text and f"{kind.__name__}: no licence" in caplog.text


class Line(msgspec.Struct, frozen=True):
    number: int


@pytest.mark.parametrize("kind", [ValueError, *KINDS])
def test_a_file_that_exits_ends_no_keeper_of_lines(
    kind: type[BaseException], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class File(JsonlFile[Line]):
        def append(self, records: Any) -> bool:
            if (Line(1),) == tuple(records):
                tried.set()
                raise kind("no licence")
            return super().append(records)

    tried, file = threading.Event(), File(LocalFolder(tmp_path), "lines.jsonl", Line, "the file")
    keeper = JsonlWriter(file)
    keeper.add([Line(1)])
    assert tried.wait(30)
    keeper.add([Line(2)])
    keeper.close()
    assert file.lines() == [Line(2)]
    assert "the file failed" in caplog.text and f"{kind.__name__}: no licence" in caplog.text


def functions_that_bear(module: str) -> set[str]:
    """Return the functions of a module that bear errors of any kind, and let pass what is no ``Exception``."""
    found = set()
    for function in ast.walk(tree(module)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            tries = [node for node in ast.walk(function) if isinstance(node, ast.Try)]
            if any(_is_of_any_kind(handler) for node in tries if not _is_inside(node) for handler in node.handlers):
                found.add(function.name)
    return found


def _is_of_any_kind(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or (isinstance(handler.type, ast.Name) and handler.type.id == "Exception")


def _is_inside(node: ast.Try) -> bool:
    first = node.body[0]
    return isinstance(first, ast.With) and ast.unparse(first.items[0]) == "exits_as_errors()"


def modules_with(*words: str) -> list[str]:
    """Return the package's modules in whose text is one of these words, so that few are parsed."""
    own = [module for module in MODULES if module.startswith("dl4jlegacy")]
    return [module for module in own if any(word in MODULES[module].read_text() for word in words)]


def test_whoever_bears_errors_of_any_kind_bears_exits_too() -> None:
    found = {module: functions_that_bear(module) for module in modules_with("except Exception", "except:")}
    assert {module: names for module, names in found.items() if names} == BEARS_ERRORS_ONLY


def makes_threads(module: str) -> bool:
    nodes = [*ast.walk(tree(module))]
    made = [node.func for node in nodes if isinstance(node, ast.Call)]
    made += [base for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    return any(ast.unparse(each) in THREADS for each in made if isinstance(each, ast.Name | ast.Attribute))


THREADS = {f"{place}{name}" for place in ("", "threading.") for name in ("Thread", "Timer")}


def test_every_thread_of_the_package_tells_what_ends_it() -> None:
    assert [m for m in modules_with("Thread", "Timer") if makes_threads(m)] == ["dl4jlegacy.system.service_threads"]
