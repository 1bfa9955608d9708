"""Who may ask the dashboard: a middleware before everything else, and the decision as a pure function.

On this machine's loopback everybody may look, as everybody there may look at the run's own files and servers. A page of
somebody else's that is open in the same browser must not: hence the check of ``Host`` (a name of theirs may lead to
this machine, "DNS rebinding") and, for what changes something, of ``Origin`` and a token that only our page has.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dl4jlegacy.strict_json import to_json

__all__ = ["TOKEN_HEADER", "Guard", "Policy", "Refusal", "refusal"]

TOKEN_HEADER = "x-dl4j-token"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is demanded.

    Attributes:
        token: of those who look and steer; None: whoever reaches the server may look.
        page_token: what our page proves itself with; made anew by every server.
        names: by which this server may be called, besides ``localhost`` and addresses: no stranger can make an address
            his own.
    """

    token: str | None = field(default=None, repr=False)
    page_token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    names: tuple[str, ...] = field(default_factory=lambda: (socket.gethostname(),))


@dataclass(frozen=True, slots=True)
class Refusal:
    """The status and the reason with which a request is refused."""

    status: int
    message: str


def refusal(method: str, headers: Mapping[str, str], policy: Policy) -> Refusal | None:
    """Return why a request is refused; None: it is not.

    Args:
        method: of the request.
        headers: its headers, by their names in small letters.
        policy: what is demanded.
    """
    host = headers.get("host", "")
    if not _is_ours(host, policy.names):
        return Refusal(
            421, f"this server is not {host[:100]!r}: call it localhost, or by an address or the name of its machine"
        )
    is_bearer = _is_same(_bearer(headers.get("authorization", "")), policy.token)
    if policy.token is not None and not is_bearer and not _is_same(_basic(headers), policy.token):
        return Refusal(401, "give the token of this dashboard: as a password, or as 'Authorization: Bearer TOKEN'")
    if method in _SAFE_METHODS or is_bearer:
        return None
    origin = headers.get("origin", "")
    if origin.partition("://")[2].casefold() != host.casefold() or headers.get("sec-fetch-site") not in (
        None,
        "same-origin",
    ):
        return Refusal(
            403,
            "what changes a run is taken from this dashboard's own page only (the header Origin), or with "
            "'Authorization: Bearer TOKEN' (docs/dashboard.md)",
        )
    if not _is_same(headers.get(TOKEN_HEADER), policy.page_token):
        return Refusal(403, f"the header {TOKEN_HEADER} has not this page's token: load the page again")
    return None


def _is_ours(host: str, names: tuple[str, ...]) -> bool:
    """Return whether a ``Host`` is this machine by an address, which nobody can lead here, or one of its names."""
    before, _, port = host.rpartition(":")
    name = before if port.isdecimal() else host
    try:
        return bool(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
    except ValueError:
        return name.casefold().rstrip(".") in ("localhost", *(each.casefold() for each in names))


def _bearer(authorization: str) -> str | None:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.casefold() == "bearer" else None


def _basic(headers: Mapping[str, str]) -> str | None:
    """Return the password that a browser has asked for."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.casefold() != "basic":
        return None
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return None


def _is_same(given: str | None, token: str | None) -> bool:
    return given is not None and token is not None and hmac.compare_digest(given.encode(), token.encode())


class Guard:
    """ASGI middleware: refuses what ``refusal`` says, and sets the headers that keep browsers from harm."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; see ASGI."""
        if scope["type"] != "http":
            return
        found = refusal(scope["method"], Headers(scope=scope), self._policy)
        if found is not None:
            await _refuse(found, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_SECURITY_HEADERS)
            await send(message)

        await self._app(scope, receive, guarded)


async def _refuse(found: Refusal, send: Send) -> None:
    body = to_json({"error": {"code": "DL4J-AUTH", "message": found.message}}).encode()
    headers = {**_SECURITY_HEADERS, "content-type": "application/json", "content-length": str(len(body))}
    if found.status == 401:
        headers["www-authenticate"] = 'Basic realm="dl4j dashboard", charset="UTF-8"'
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": found.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
