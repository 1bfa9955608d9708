"""Who may ask the dashboard: a middleware before everything else, and the decision as a pure function.

Whoever changes something brings the dashboard's token, and so does whoever looks at a run with a secret, or from beyond
this machine. No browser sends it by itself, so a page of somebody else's in the same browser can do nothing; nor can it
look, since a name of theirs that leads to this machine ("DNS rebinding") is refused.
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
    """What is demanded.

    Attributes:
        token: of those who change something.
        is_open: whether those without it may look.
        names: by which this server may be called, besides ``localhost`` and addresses: no stranger can make an address
            his own.
        files: the paths of the page itself, which everybody may have: it tells nothing of a run.
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
    """Return why a request is refused; None: it is not.

    Args:
        method, path: of the request.
        headers: its headers, by their names in small letters.
        policy: what is demanded.
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
    """Return whether a ``Host`` is this machine by an address, which nobody can lead here, or one of its names."""
    before, _, port = host.rpartition(":")
    name = before if port.isdecimal() else host
    try:
        return bool(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
    except ValueError:
        return name.casefold().rstrip(".") in ("localhost", *(each.casefold() for each in names))


class Guard:
    """ASGI middleware: refuses what ``refusal`` says, and sets the headers that keep browsers from harm."""

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
