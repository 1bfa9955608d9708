"""The server of the models: uvicorn on a socket that is bound first, on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import h11
import uvicorn
from threadpoolctl import threadpool_limits
from uvicorn.protocols.http.h11_impl import H11Protocol

from dl4jlegacy.clock import RUNNING, SLICE_SECONDS, read_often
from dl4jlegacy.errors import ConfError, NotAuthorisedError, UsageError
from dl4jlegacy.scaleout.secret import beyond_loopback, read_secret
from dl4jlegacy.serving.application import Service, application
from dl4jlegacy.serving.models import ModelWatcher

__all__ = ["TOKEN", "TOKEN_FILE", "ModelServer", "bind", "token_for"]

TOKEN, TOKEN_FILE = "DL4J_SERVE_TOKEN", "DL4J_SERVE_TOKEN_FILE"
_MOST_CONNECTIONS = 1000
_HEADER_SECONDS = 10.0
_KEEP_ALIVE_SECONDS = 75


def token_for(host: str, environ: Mapping[str, str], file: Path | None = None) -> str | None:
    """Return the token that requests must bring: that of a file, or of the environment; None: none is needed.

    Raises:
        NotAuthorisedError: the host is beyond loopback, and there is no token.
        ConfError: the token's file cannot be read, or the token is empty or no text.
    """
    renamed = {"DL4J_SECRET": TOKEN, "DL4J_SECRET_FILE": TOKEN_FILE}
    try:
        found = read_secret({name: environ[own] for name, own in renamed.items() if own in environ}, file)
        token = None if found is None else found.decode("ascii")
    except UnicodeDecodeError as exc:
        raise ConfError(f"the token in {file or TOKEN} is no ASCII text; make it with base64") from exc
    except ConfError as exc:
        raise ConfError(f"the token ({file or f'{TOKEN} or {TOKEN_FILE}'}): {exc}") from exc
    if token is None and beyond_loopback(f"{host}:0"):
        raise NotAuthorisedError(
            f"--host {host} is beyond this machine's loopback, and there is no token: whoever reaches it could use the "
            f"models; make one with `(umask 077; head -c 32 /dev/urandom | base64 > ~/dl4j-serve.token)` and give "
            "--token-file ~/dl4j-serve.token"
        )
    return token


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; raises ``UsageError`` if that is not possible."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as exc:
        raise UsageError(f"--host {host}: no address of this machine is known by that name ({exc})") from exc
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except OSError as exc:
        listening.close()
        reason = os.strerror(exc.errno).lower() if exc.errno else str(exc)
        raise UsageError(
            f"the models cannot be served at {host}:{port}: {reason}; choose another --port; --port 0 takes a free one"
        ) from exc
    return listening


class _Protocol(H11Protocol):
    """Closes a connection whose client does not send its headers in time; uvicorn itself would wait for ever."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._timer = self.loop.call_later(_HEADER_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._disarm()
        elif self._timer is None:  # the beginning of another request on the same connection
            self._timer = self.loop.call_later(_HEADER_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ModelServer:
    """Serves models while it is entered; leaving it answers what has come, and then ends.

    ::

        models = {"flowers": ServedModel("flowers", "flowers.zip")}
        with ModelServer(Service(models), bind("127.0.0.1", 0)) as server:
            print(server.url)
            server.wait()

    Args:
        service: what is served.
        listening: the socket, which is closed at the end.
        reload_seconds: how often it looks whether models have changed.
        drain_seconds: how long requests that have come may take at the end.

    Attributes:
        url: where it is.
    """

    def __init__(
        self, service: Service, listening: socket.socket, *, reload_seconds: float = 1.0, drain_seconds: float = 30.0
    ) -> None:
        host, port = listening.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._service, self._listening, self._ends = service, listening, contextlib.ExitStack()
        self._reload_seconds = reload_seconds
        config = uvicorn.Config(
            application(service),
            loop="asyncio",
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(drain_seconds)),
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="dl4j-serve", daemon=True)
        self._failure: BaseException | None = None

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._listening])
        except BaseException as exc:  # noqa: BLE001  # raised again by wait
            self._failure = exc

    def wait(self) -> None:
        """Block until the server has ended, which it does not by itself; raises what ended it."""
        while self._thread.is_alive():
            self._thread.join(SLICE_SECONDS)
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        # For as long as it serves: two predictions side by side would else give each other back more threads.
        self._ends.enter_context(threadpool_limits(limits=1, user_api="blas"))
        self._ends.enter_context(read_often(RUNNING))  # or the deadlines of requests would not count what is computed
        self._ends.enter_context(ModelWatcher(self._service.models, self._reload_seconds))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._service.is_ending = True
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()
        for served in self._service.models.values():
            served.thread.shutdown()
        self._ends.close()
