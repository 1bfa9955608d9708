"""Fixtures for all tests: nothing may be left behind, and random tests repeat themselves."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import settings

from dl4jlegacy.arrays import devices
from dl4jlegacy.datasets import read_mnist
from dl4jlegacy.errors import DataError, DeviceError
from dl4jlegacy.kernels.threads import NAME as POOL
from tests.support import REPOSITORY, open_sockets
from tests.support.aws_fixtures import aws, aws_environment, fault_proxy, image, moto_server, session_proxy  # noqa: F401  # fixtures for every test
from tests.support.browser import browser, chromium_program  # noqa: F401  # fixtures for every test
from tests.support.cluster_commands import cluster, on_own, servers  # noqa: F401  # fixtures for every test
from tests.support.cluster_fixtures import (  # noqa: F401  # fixtures for every test
    hazelcast_address,
    hazelcast_cluster_name,
    own_services,
    session_services,
    zookeeper_address,
)
from tests.support.forked_commands import forks  # noqa: F401  # a fixture for every test
from tests.support.places import place, stopped  # noqa: F401  # fixtures for every test
from tests.support.ssh_server import ssh_server  # noqa: F401  # fixtures for every test
from tests.support.standin import device_arrays  # noqa: F401  # a fixture for every test: CuPy on the CPU, see there

settings.register_profile("default", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("default")

# where bytecode is not to be written, each of some thousand commands would compile the whole package anew
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

os.environ["SCIPY_ARRAY_API"] = "1"  # or scikit-learn leaves some of its checks of estimators out
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # or onnxruntime, once imported, opens sockets of its own to report home

for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if (
        signal.getsignal(_number) is signal.SIG_IGN
    ):  # begun with nohup or in the background: processes of tests inherit it
        signal.signal(_number, _usual)

NOT_RUN = "not_run"
"""Where a process of the suite tells the one that prints the summary what it has left out."""
SLOWEST = (
    *("tests/docs/test_pages.py", "tests/instance/", "tests/aws/test_faults.py", "tests/aws/test_pythons.py"),
    "tests/examples/test_examples.py",
)
"""Where single tests take minutes."""
STAND_INS = {"device_arrays", "gpu", "ssh_server"}
"""Fixtures that need more than Python and Java: a compiler for the kernels in CUDA C, a server of SSH."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process more than there are cores: much of the suites waits for servers, deadlines and other processes."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this machine cannot run, and mark as ``long`` what needs a stand-in or goes beyond ``everyday``.

    Tests marked ``docker`` run only where the marker is asked for, since few machines have the engine they need; so do
    those marked ``release``, which vary what others test, and are run where no marker matters (``-m ""``), too; those
    marked ``gpu`` wherever there is a GPU, and where there is none the summary says so.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(SLOWEST))  # at the end the other processes would be idle
    cases = Counter[str]()
    for item in items:
        few, name = item.get_closest_marker("everyday"), item.nodeid.partition("[")[0]
        cases[name] += not any(item.get_closest_marker(other) for other in ("docker", "gpu", "long", "release"))
        if STAND_INS & set(getattr(item, "fixturenames", ())) or (few and cases[name] > few.args[0]):
            item.add_marker("long")
    asked_for = config.getoption("markexpr")
    if "docker" not in asked_for:
        _leave_out(config, items, "docker")
    if asked_for and "release" not in asked_for:
        _leave_out(config, items, "release")
    if any(item.get_closest_marker("gpu") for item in items):
        try:
            devices.choose("gpu")
        except DeviceError as exc:
            count = _leave_out(config, items, "gpu")
            _summaries(config)[NOT_RUN] = f"{count} tests marked gpu were not run on any GPU: {exc}"


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays anyway: some hundred passes over all modules and tests take a minute."""
    gc.collect()
    gc.freeze()
    gc.enable()


SUMMARIES = pytest.StashKey[dict[str, Any]]()


def _summaries(config: pytest.Config) -> dict[str, Any]:
    """What this process has for the summary; in a worker of pytest-xdist it is sent to the process that prints it."""
    sent: dict[str, Any] | None = getattr(config, "workeroutput", None)
    return config.stash.setdefault(SUMMARIES, {}) if sent is None else sent


def _leave_out(config: pytest.Config, items: list[pytest.Item], marker: str) -> int:
    """Deselect the tests that have the marker; return how many."""
    left_out = [item for item in items if item.get_closest_marker(marker)]
    items[:] = [item for item in items if not item.get_closest_marker(marker)]
    config.hook.pytest_deselected(items=left_out)
    return len(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep what a worker of pytest-xdist has for the summary."""
    sent = getattr(node, "workeroutput", {})  # one that crashed has sent nothing
    _summaries(node.config).update({NOT_RUN: sent[NOT_RUN]} if NOT_RUN in sent else {})


class FailuresAtOnce:
    """Names each test that fails when it does: where the suite is cut off, its summary is never printed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the name, and where and how it failed, on a line of its own."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = f" - {crash.path}:{crash.lineno}: {crash.message}" if crash else ""
            terminal.ensure_newline()
            terminal.write_line(f"{report.nodeid} failed{why}".partition("\n")[0])


def pytest_configure(config: pytest.Config) -> None:
    """Let the process that prints name failures at once; while tests are collected nothing becomes garbage."""
    gc.disable()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the device tests that were not run."""
    not_run = _summaries(config).get(NOT_RUN, "")
    if not_run:
        terminalreporter.section("no GPU")
        terminalreporter.line(not_run)


def _children() -> set[psutil.Process]:
    """Return the child processes and theirs; mostly there are none, which the kernel says at once."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    me = os.getpid()
    if not Path(f"/proc/{me}/task/{me}/children").exists():  # no Linux, or one without these lists
        return set(psutil.Process().children(recursive=True))
    found = set()
    for number in _listed_children(me):
        with suppress(psutil.NoSuchProcess):
            found.add(psutil.Process(number))
    return found


def _listed_children(number: int) -> set[int]:
    """Return the numbers of the children of a process and of theirs, from the kernel's own lists.

    psutil reads about every process of the machine instead, and twice for each of ten thousand tests.
    """
    found: set[int] = set()
    tasks, threads = Path(f"/proc/{number}/task"), list[str]()
    with suppress(OSError):  # the process is over
        threads = os.listdir(tasks)
    for thread in threads:
        with suppress(OSError):  # the thread is
            found |= {int(child) for child in (tasks / thread / "children").read_text().split()}
    return found.union(*map(_listed_children, found))


def _connections(descriptors: set[int]) -> list[str]:
    """Say what sockets are connected to, for the message of a test that left them; of one that is gone, that it is."""
    known = {each.fd: str(each) for each in psutil.Process().net_connections("all") if each.fd in descriptors}
    return [known.get(each) or f"{each}: {_link(each)}, neither of the Internet nor of Unix" for each in descriptors]


def _link(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError as exc:
        return exc.strerror or str(exc)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread (but those of the kernels' pool, which stay), a child process or a socket."""
    threads, sockets = set(threading.enumerate()), open_sockets()
    children = _children()
    yield
    left = [t for t in threading.enumerate() if t not in threads and not t.name.startswith(POOL)]
    for thread in left:
        thread.join(timeout=60)
    left = [t.name for t in left if t.is_alive()]
    assert not left, f"threads left behind: {left}"
    _, alive = psutil.wait_procs(_children() - children, timeout=60)
    assert not alive, f"processes left behind: {alive}"
    opened = open_sockets() - sockets
    assert not opened, f"sockets left behind: {opened} {_connections(opened)}; threads: {threading.enumerate()}"


@pytest.fixture(autouse=True)
def same_signal_handlers() -> Iterator[None]:
    """Undo the handlers of a command that was interrupted in this process: those stay until its process ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order(request: pytest.FixtureRequest) -> None:
    """Begin each test with its module's generators as they were made: what ran before it in this process is chance."""
    for value in vars(request.module).values():
        if isinstance(value, np.random.Generator):
            _, beginning = _GENERATORS.setdefault(id(value), (value, value.bit_generator.state))
            value.bit_generator.state = beginning


_GENERATORS: dict[int, tuple[np.random.Generator, Any]] = {}
"""Those of the tests' modules, and their states before the first test."""


@pytest.fixture(scope="session")
def mnist_dir() -> str:
    """``DL4J_DATA_DIR``; without it MNIST's own place, where it is downloaded to. Skips only if it cannot be had."""
    given = os.environ.get("DL4J_DATA_DIR", "")
    if not given:
        try:
            read_mnist("t10k")
        except DataError as exc:
            pytest.skip(f"MNIST is not here and cannot be downloaded: {exc}")
    return given


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every attempt to connect fail at once."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.fixture
def repository() -> Path:
    """The project's folder."""
    return REPOSITORY
