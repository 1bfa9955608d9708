"""The dashboard's server: uvicorn on a socket that is bound beforehand, in the calling thread or its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.system.admission import most_connections
from dl4jlegacy.system.http_connections import BoundedServer, connection_type
from dl4jlegacy.system.listening import read_token, url_of
from dl4jlegacy.system.service_threads import ServiceThread
from dl4jlegacy.ui import api, model_api, openapi
from dl4jlegacy.ui import legacy_routes as legacy
from dl4jlegacy.ui.endpoints import Panel, Refused, route_of
from dl4jlegacy.ui.guard import Guard, Policy

__all__ = ["ENDPOINTS", "PORT", "TOKEN", "TOKEN_FILE", "Dashboard", "application", "policy_for", "told"]

PORT = 9000
"""The port of Deeplearning4j's own training UI."""
TOKEN, TOKEN_FILE = "DL4J_UI_TOKEN", "DL4J_UI_TOKEN_FILE"
_PAGE = Path(__file__).parent / "page"
_FILES = {
    "/": ("index.html", "text/html"),
    "/dashboard.js": ("dashboard.js", "text/javascript"),
    "/model.js": ("model.js", "text/javascript"),
    "/dashboard.css": ("dashboard.css", "text/css"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}
_TOLD = (*api.ENDPOINTS, *model_api.ENDPOINTS, *legacy.ENDPOINTS)
ENDPOINTS = (*_TOLD, openapi.endpoint_of(_TOLD))
"""All endpoints except the files of the page."""
_LEAVE_SECONDS, _JOIN_SECONDS = 3, 30.0
_MOST_UNREAD = 32 << 20


def application(panel: Panel) -> Starlette:
    """Return the ASGI application of a dashboard."""
    pages = [Route(path, _file(name, kind), methods=["GET"]) for path, (name, kind) in _FILES.items()]
    app = Starlette(
        routes=[*pages, *(route_of(endpoint, panel) for endpoint in ENDPOINTS)],
        middleware=[Middleware(Guard, policy=panel.policy)],
        exception_handlers={HTTPException: _refused},
    )
    app.router.redirect_slashes = False  # it would redirect to whatever host the header Host names
    return app


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    content = (_PAGE / name).read_text(encoding="utf-8")
    return lambda request: Response(content, media_type=kind)


async def _refused(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    what = {404: "there is nothing here", 405: f"there is no {request.method} here"}.get(exc.status_code, exc.detail)
    return Refused(exc.status_code, f"{what}; /api/v1/openapi.json lists what there is").response()


# -- where, and for whom -----------------------------------------------------------------------------------------------


def policy_for(host: str, environ: Mapping[str, str], *, is_signed: bool) -> Policy:
    """Return the access rules for a dashboard on a host; raises as ``read_token`` does.

    Args:
        host: where the dashboard listens.
        environ: may hold the token, or the name of the token's file; else a token is generated.
        is_signed: whether the run has a secret; then the run is only shown to requests with the token.
    """
    given = read_token(host, environ, (TOKEN, TOKEN_FILE), risk="read and stop the run")
    names = dict.fromkeys((socket.gethostname(), socket.getfqdn(), host))
    return Policy(
        token=given or secrets.token_urlsafe(32),
        is_open=given is None and not is_signed,
        names=tuple(name for name in names if name),
        files=frozenset(_FILES),
    )


@contextlib.contextmanager
def told(url: str, policy: Policy, environ: Mapping[str, str], stream: TextIO) -> Iterator[tuple[str, str | None]]:
    """Yield a dashboard's address as it is printed to a stream, and the path of a file that holds its token.

    On a terminal the address contains the token behind a #, which no browser transmits. Elsewhere, as in a log, it does
    not, and a file that only this user can read holds the token until the body ends. A token from the environment is
    never shown.
    """
    if TOKEN in environ or TOKEN_FILE in environ:
        yield url, None
    elif stream.isatty():
        yield f"{url}#token={policy.token}", None
    else:
        with tempfile.TemporaryDirectory(prefix="dl4j-dashboard-") as folder:  # of mode 0700
            file = os.open(path := os.path.join(folder, "token"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(file, "w", encoding="ascii") as kept:
                kept.write(f"{policy.token}\n")
            yield url, path


class Dashboard:
    """The HTTP server of the dashboard.

    ``serve`` blocks in the calling thread, until a signal ends it if that is the main thread. As a context manager it
    serves on a thread of its own until it is left.

    Args:
        panel: the state to show; its watcher has begun.
        listening: the socket, which is closed at the end.
    """

    def __init__(self, panel: Panel, listening: socket.socket) -> None:
        self.url, self._listening = f"{url_of(listening)}/", listening
        config = uvicorn.Config(
            application(panel),
            loop="asyncio",
            http=connection_type(is_fast=False),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_LEAVE_SECONDS,
        )
        self._server = BoundedServer(config, most_connections("dashboard"), _MOST_UNREAD)
        panel.is_closing = lambda: self._server.should_exit
        self._thread = ServiceThread(target=self._run, name="dl4j-dashboard")

    def serve(self) -> None:
        """Serve until a signal arrives; the signal then takes its usual effect."""
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
