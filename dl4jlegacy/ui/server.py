"""The dashboard's server: uvicorn on a socket that is bound first, in this thread or in one of its own."""

from __future__ import annotations

import contextlib
import socket
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

from dl4jlegacy.admission import most_connections
from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.http_connections import BoundedServer, connection_type
from dl4jlegacy.listening import read_token, url_of
from dl4jlegacy.service_threads import ServiceThread
from dl4jlegacy.ui import api, legacy, model_api, openapi
from dl4jlegacy.ui.endpoints import Panel, Refused, route_of
from dl4jlegacy.ui.guard import Guard, Policy

__all__ = ["ENDPOINTS", "PORT", "TOKEN", "TOKEN_FILE", "Dashboard", "application", "policy_for"]

PORT = 9000
"""As of Deeplearning4j's own training UI."""
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
"""All of them but the page's own files."""
_LEAVE_SECONDS, _JOIN_SECONDS = 3, 30.0
_MOST_UNREAD = 32 << 20


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
    """Return what is demanded of those who come to a host; raises as ``read_token`` does."""
    token = read_token(host, environ, (TOKEN, TOKEN_FILE), risk="read and stop the run")
    names = dict.fromkeys((socket.gethostname(), socket.getfqdn(), host))
    return Policy(token=token, names=tuple(name for name in names if name))


class Dashboard:
    """A server that shows a run.

    ``serve`` blocks in the calling thread, until a signal ends it if that is the main one. As a context manager it
    serves on a thread of its own until it is left.

    Args:
        panel: what it shows; its watcher has begun.
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
