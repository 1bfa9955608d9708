"""Real servers for the tests marked ``cluster``: one set for the session, and sets of one's own that may be broken.

A test that uses these fails, and is not skipped, if the servers cannot be started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dl4jlegacy.services import Services, ServicesState

__all__ = ["hazelcast_address", "hazelcast_cluster_name", "own_services", "session_services", "zookeeper_address"]

HEAP = "512m"


@pytest.fixture(scope="session")
def session_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServicesState]:
    """One Hazelcast member and one Zookeeper server for all tests; do not stop or freeze these."""
    folder = tmp_path_factory.mktemp("services")
    try:
        yield Services.up(folder=folder, heap=HEAP)
    finally:
        Services.down(folder)


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
    folders: list[Path] = []

    def start(**settings: object) -> ServicesState:
        folders.append(tmp_path / f"services-{len(folders) + 1}")
        return Services.up(folder=folders[-1], **{"heap": HEAP, **settings})  # type: ignore[arg-type]

    try:
        yield start
    finally:
        for folder in folders:
            Services.down(folder)
