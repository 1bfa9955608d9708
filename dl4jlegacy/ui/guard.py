"""Access control of the dashboard: an ASGI middleware, with the decision as a pure function.

Requests that change something need the dashboard's token; so does reading a run with a secret, or from another machine.
No browser sends the token by itself, so a foreign web page in the same browser can change nothing. It cannot read
either, because a foreign host name that resolves to this machine ("DNS rebinding") is refused.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dl4jlegacy.system.strict_json import to_json

__all__ = ["Guard", "Policy", "Refusal", "refusal"]

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
    """The access rules.

    Attributes:
        token: required for requests that change something.
        is_open: whether requests without the token may read.
        names: host names of this server, besides ``localhost`` and IP addresses: a stranger cannot redirect an IP
            address.
        files: paths of the page itself, which are public: they contain nothing about a run.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    is_open: bool = True
    names: tuple[str, ...] = field(default_factory=lambda: (socket.gethostname(),))
    files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The status and the reason with which a request is refused."""

    status: int
    message: str


def refusal(method: str, path: str, headers: Mapping[str, str], policy: Policy) -> Refusal | None:
    """Return the reason to refuse a request; None: it is accepted.

    Args:
        method, path: of the request.
        headers: the request's headers, by lower-case names.
        policy: the access rules.
    """
    host = headers.get("host", "")
    if not _is_ours(host, policy.names):
        return Refusal(
            421, f"this server is not {host[:100]!r}: call it localhost, or by an address or the name of its machine"
        )
    if method in _SAFE_METHODS and (policy.is_open or path in policy.files):
        return None
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.casefold() == "bearer" and hmac.compare_digest(given.strip().encode(), policy.token.encode()):
        return None
    return Refusal(
        401,
        "give the token of this dashboard, as 'Authorization: Bearer TOKEN': it is in the link that the dashboard has "
        "printed, or in the file that it has named (docs/dashboard.md)",
    )


def _is_ours(host: str, names: tuple[str, ...]) -> bool:
    """Return whether a ``Host`` header is an IP address, which no stranger can redirect here, or one of our names."""
    before, _, port = host.rpartition(":")
    name = before if port.isdecimal() else host
    try:
        return bool(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
    except ValueError:
        return name.casefold().rstrip(".") in ("localhost", *(each.casefold() for each in names))


class Guard:
    """ASGI middleware: refuses requests by ``refusal``, and sets the security headers for browsers."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; see ASGI."""
        if scope["type"] != "http":
            return
        found = refusal(scope["method"], scope["path"], Headers(scope=scope), self._policy)
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
        headers["www-authenticate"] = "Bearer"
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": found.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
