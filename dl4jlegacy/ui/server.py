"""The dashboard's server: uvicorn on a socket that is bound first, in this thread or in one of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dl4jlegacy.errors import ConfError, Dl4jError, NotAuthorisedError, UsageError
from dl4jlegacy.scaleout.secret import beyond_loopback, read_secret
from dl4jlegacy.ui import api, legacy, openapi
from dl4jlegacy.ui.endpoints import Panel, Refused, route_of
from dl4jlegacy.ui.guard import Guard, Policy

__all__ = ["ENDPOINTS", "PORT", "TOKEN", "TOKEN_FILE", "Dashboard", "application", "bind", "policy_for", "url_of"]

PORT = 9000
"""As of Deeplearning4j's own training UI."""
TOKEN, TOKEN_FILE = "DL4J_UI_TOKEN", "DL4J_UI_TOKEN_FILE"
_PAGE = Path(__file__).parent / "page"
_FILES = {
    "/": ("index.html", "text/html"),
    "/dashboard.js": ("dashboard.js", "text/javascript"),
    "/dashboard.css": ("dashboard.css", "text/css"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}
_TOLD = (*api.ENDPOINTS, *legacy.ENDPOINTS)
ENDPOINTS = (*_TOLD, openapi.endpoint_of(_TOLD))
"""All of them but the page's own files."""
_LEAVE_SECONDS, _JOIN_SECONDS = 3, 30.0
_MOST_CONNECTIONS = 256


def application(panel: Panel) -> Starlette:
    """Return the ASGI application of a dashboard."""
    pages = [Route(path, _file(name, kind, panel.policy), methods=["GET"]) for path, (name, kind) in _FILES.items()]
    app = Starlette(
        routes=[*pages, *(route_of(endpoint, panel) for endpoint in ENDPOINTS)],
        middleware=[Middleware(Guard, policy=panel.policy)],
        exception_handlers={HTTPException: _refused},
    )
    app.router.redirect_slashes = False  # it would lead to wherever the header Host says
    return app


def _file(name: str, kind: str, policy: Policy) -> Callable[[Request], Response]:
    content = (_PAGE / name).read_text(encoding="utf-8").replace("{{page_token}}", policy.page_token)
    return lambda request: Response(content, media_type=kind)


async def _refused(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    what = {404: "there is nothing here", 405: f"there is no {request.method} here"}.get(exc.status_code, exc.detail)
    return Refused(exc.status_code, f"{what}; /api/v1/openapi.json lists what there is").response()


# -- where, and for whom -----------------------------------------------------------------------------------------------


def policy_for(host: str, environ: Mapping[str, str]) -> Policy:
    """Return what is demanded of those who come to a host; the token is that of the environment or of a file.

    Raises:
        NotAuthorisedError: the host is beyond loopback, and there is no token.
        ConfError: the token's file cannot be read, or the token is empty.
    """
    token = _token(environ)
    if token is None and beyond_loopback(_joined(host, 0)):
        raise NotAuthorisedError(
            f"--host {host} is beyond this machine's loopback, and there is no token: whoever reaches it could read "
            f"and stop the run; make one with `(umask 077; head -c 32 /dev/urandom | base64 > ~/dl4j-ui.token)` and "
            f"type `export {TOKEN_FILE}=~/dl4j-ui.token`; or keep to loopback, and reach it with `ssh -L`"
        )
    names = dict.fromkeys((socket.gethostname(), socket.getfqdn(), host))
    return Policy(token=token, names=tuple(name for name in names if name))


def _token(environ: Mapping[str, str]) -> str | None:
    """Return the token; as the secret of a run is read, under names of its own."""
    renamed = {"DL4J_SECRET": TOKEN, "DL4J_SECRET_FILE": TOKEN_FILE}
    try:
        found = read_secret({name: environ[own] for name, own in renamed.items() if own in environ})
    except ConfError as exc:
        raise ConfError(f"{TOKEN} or {TOKEN_FILE}: {exc}") from exc
    try:
        return None if found is None else found.decode()
    except UnicodeDecodeError as exc:
        raise ConfError(f"{TOKEN} or {TOKEN_FILE}: the token is no text; make it with base64") from exc


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; raises ``UsageError`` if that is not possible."""
    if not 0 <= port <= 65535:
        raise UsageError(f"--port is {port}; it must be at most 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as exc:
        raise UsageError(f"--host {host}: no address of this machine is known by that name ({exc})") from exc
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as exc:
        listening.close()
        remedy = "choose another --port; --port 0 takes a free one"
        raise UsageError(f"the dashboard cannot listen at {_joined(host, port)}: {os_reason(exc)}; {remedy}") from exc
    return listening


def os_reason(exc: OSError) -> str:
    """Return the system's reason, in its words."""
    return os.strerror(exc.errno).lower() if exc.errno else str(exc)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def url_of(listening: socket.socket) -> str:
    """Return the address of the page on a socket, for a browser on this machine."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{_joined(host, port)}/"


class Dashboard:
    """A server that shows a run.

    ``serve`` blocks in the calling thread, until a signal ends it if that is the main one. As a context manager it
    serves on a thread of its own until it is left.

    Args:
        panel: what it shows; its watcher has begun.
        listening: the socket, which is closed at the end.
    """

    def __init__(self, panel: Panel, listening: socket.socket) -> None:
        self.url, self._listening = url_of(listening), listening
        config = uvicorn.Config(
            application(panel),
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_LEAVE_SECONDS,
        )
        self._server = uvicorn.Server(config)
        panel.is_closing = lambda: self._server.should_exit
        self._thread = threading.Thread(target=self._run, name="dl4j-dashboard", daemon=True)

    def serve(self) -> None:
        """Serve until a signal comes, which then goes the way that it would have gone without this."""
        try:
            self._server.run(sockets=[self._listening])
        finally:
            self._listening.close()

    def _run(self) -> None:
        with contextlib.suppress(Dl4jError):
            self.serve()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(_JOIN_SECONDS)
