"""Real servers for the tests marked ``cluster``: one set for the session, and sets of one's own that may be broken.

A test that uses these fails, and is not skipped, if the servers cannot be started.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.services import Services, ServicesState
from tests.support import REPOSITORY

__all__ = [
    *("QUICK_JAVA", "hazelcast_address", "hazelcast_cluster_name"),
    *("own_services", "session_services", "zookeeper_address"),
]

HEAP = "512m"
QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For members that are not on loopback: a short run does not win back what Java's optimizing compiler costs."""
_STOP_WHEN_STDIN_ENDS = """
import sys
from pathlib import Path
from dl4jlegacy.services import Services
sys.stdin.read()
Services.down(Path(sys.argv[1]))
"""


@contextlib.contextmanager
def stopped_at_the_end(folder: Path) -> Iterator[None]:
    """Stop the servers of a folder at the end, even if the tests are killed: a pipe to a process then ends."""
    command = [sys.executable, "-c", _STOP_WHEN_STDIN_ENDS, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=REPOSITORY, start_new_session=True) as guard:
        try:
            yield
        finally:
            Services.down(folder)
            guard.communicate(timeout=60)


@pytest.fixture(scope="session")
def session_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServicesState]:
    """One Hazelcast member and one Zookeeper server for all tests; do not stop or freeze these."""
    folder = tmp_path_factory.mktemp("services")
    with stopped_at_the_end(folder):
        yield Services.up(folder=folder, heap=HEAP)


@pytest.fixture(scope="session")
def hazelcast_address(session_services: ServicesState) -> str:
    """``host:port`` of the session's Hazelcast member."""
    return session_services.hazelcast


@pytest.fixture(scope="session")
def hazelcast_cluster_name(session_services: ServicesState) -> str:
    """The name that a client of the session's member must give."""
    return session_services.cluster_name


@pytest.fixture(scope="session")
def zookeeper_address(session_services: ServicesState) -> str:
    """``host:port`` of the session's Zookeeper server."""
    return session_services.zookeeper


@pytest.fixture
def own_services(tmp_path: Path) -> Iterator[Callable[..., ServicesState]]:
    """Start servers of the test's own, as ``own_services(members=2, zookeeper=False)``; they may be killed.

    ``Services.restart(name, Path(state.folder))`` brings one back. All are stopped at the end.
    """
    with contextlib.ExitStack() as stack:
        numbers = itertools.count(1)

        def start(**settings: Any) -> ServicesState:
            folder = tmp_path / f"services-{next(numbers)}"
            stack.enter_context(stopped_at_the_end(folder))
            return Services.up(folder=folder, **{"heap": HEAP, **settings})

        yield start
