"""The model server: uvicorn on a socket that is bound beforehand, on a thread of its own."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn

from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.serving.application import application
from dl4jlegacy.serving.models import ModelWatcher
from dl4jlegacy.serving.service import Service
from dl4jlegacy.system.clock import RUNNING, SLICE_SECONDS, read_often
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.http_connections import BoundedServer, connection_type, event_loop
from dl4jlegacy.system.listening import read_token, url_of
from dl4jlegacy.system.resources import allow_open_files
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["CONNECTIONS", "TOKEN", "TOKEN_FILE", "ModelServer", "token_for"]

logger = logging.getLogger(__name__)

TOKEN, TOKEN_FILE = "DL4J_SERVE_TOKEN", "DL4J_SERVE_TOKEN_FILE"
CONNECTIONS = 10_000
_OTHER_FILES = 200  # open files beside connections; if fewer than twice as many are allowed, half of them
_MOST_UNREAD = 256 << 20
_KEEP_ALIVE_SECONDS = 75
_LEAVE_SECONDS = 30.0  # in addition to the draining time
_SWITCH_SECONDS = 5e-5
"""Seconds that a thread waits for another thread to release Python's interpreter lock.

Workers wait so after every kernel; with Python's default of 5 ms they would stand still until the server's thread is
idle.
"""


def token_for(host: str, environ: Mapping[str, str], file: Path | None = None) -> str | None:
    """Return the token that requests must have, from a file or the environment; see ``read_token``."""
    return read_token(host, environ, (TOKEN, TOKEN_FILE), risk="use the models", file=file)


def _possible(connections: int) -> int:
    """Return how many of the wanted connections are possible."""
    files = allow_open_files(connections + _OTHER_FILES)
    if files < connections + _OTHER_FILES:
        connections = max(1, min(connections, max(files - _OTHER_FILES, files // 2)))
        logger.warning(
            "only %s connections are served at a time, since this process may have %s files open; raise the hard limit "
            "(ulimit -Hn)",
            f"{connections:,}",
            f"{files:,}",
        )
    return connections


@contextlib.contextmanager
def _short_turns() -> Iterator[None]:
    """Let the threads of this process switch quickly while a server runs, and keep garbage collection short.

    Objects loaded by now are excluded from garbage collection: no garbage is expected among them, and scanning them
    takes many milliseconds each time.
    """
    before = sys.getswitchinterval()
    is_long = before > _SWITCH_SECONDS  # else unchanged: each setting rounds down to whole microseconds
    if is_long:
        sys.setswitchinterval(_SWITCH_SECONDS)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if is_long:
            sys.setswitchinterval(before)


class ModelServer:
    """Serves models while it is entered; on exit it answers the received requests, and then ends.

    ::

        models = {"flowers": ServedModel("flowers", "flowers.zip")}
        with ModelServer(Service(models), bind("127.0.0.1", 0, "the models")) as server:
            print(server.url)
            server.wait()

    Args:
        service: the served models.
        listening: the socket, which is closed at the end.
        reload_seconds: interval at which models are checked for changes.
        drain_seconds: how long received requests may take at the end; computations that still run then end with the
            process.
        connections: maximum number of open connections; one more replaces a connection without an active request, or is
            answered with status 503. The process's limit of open files is raised as far as possible, and bounds this
            number.

    Attributes:
        url: the address of the server.
    """

    def __init__(
        self,
        service: Service,
        listening: socket.socket,
        *,
        reload_seconds: float = 1.0,
        drain_seconds: float = 30.0,
        connections: int = CONNECTIONS,
    ) -> None:
        self.url, self._ends = url_of(listening), contextlib.ExitStack()
        self._service, self._listening = service, listening
        self._reload_seconds, self._drain_seconds = reload_seconds, drain_seconds
        config = uvicorn.Config(
            application(service),
            loop=event_loop(),
            http=connection_type(),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(drain_seconds)),
        )
        self._server = BoundedServer(config, _possible(connections), _MOST_UNREAD)
        self._thread = ServiceThread(target=self._run, name="dl4j-serve")
        self._failure: Exception | None = None

    def _run(self) -> None:
        try:
            with exits_as_errors():
                self._server.run(sockets=[self._listening])
        except Exception as exc:  # noqa: BLE001  # raised again by wait
            self._failure = exc

    def wait(self) -> None:
        """Block until the server has ended, which it does not do by itself; raises the error that ended it."""
        while self._thread.is_alive():
            self._thread.join(SLICE_SECONDS)
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        # Entered once, while it serves: two concurrent predictions would restore each other's number of threads.
        self._ends.enter_context(one_thread())
        self._ends.enter_context(_short_turns())
        self._ends.enter_context(read_often(RUNNING))  # else the deadlines of requests would not count computing time
        for served in self._service.models.values():
            self._ends.callback(served.close, self._drain_seconds)
        self._ends.enter_context(ModelWatcher(self._service.models, self._reload_seconds))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._service.is_ending = True
        self._server.should_exit = True
        self._thread.join(self._drain_seconds + _LEAVE_SECONDS)
        self._listening.close()
        self._ends.close()
