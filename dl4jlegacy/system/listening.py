"""Listening sockets of the package's HTTP servers, and the token that clients from other machines must send."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from dl4jlegacy.errors import ConfError, NotAuthorisedError, UsageError, counted
from dl4jlegacy.system.secret import SECRET, SECRET_FILE, beyond_loopback, read_secret

__all__ = ["bind", "read_token", "url_of"]

_BACKLOG = 4096
_MOST_PORT = 65535
_LEAST_TOKEN = 16


def bind(host: str, port: int, what: str) -> socket.socket:
    """Return a socket that listens at an address; port 0 means any free port.

    Args:
        host, port: the address.
        what: the name of the server in the message: "the dashboard".

    Raises:
        UsageError: that is not possible; says why.
    """
    if not 0 <= port <= _MOST_PORT:
        raise UsageError(f"--port is {port}; it must be at most {_MOST_PORT}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as exc:
        raise UsageError(f"--host {host}: no address of this machine is known by that name ({exc})") from exc
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as exc:
        listening.close()
        reason = os.strerror(exc.errno).lower() if exc.errno else str(exc)
        raise UsageError(
            f"{what} cannot be served at {_joined(host, port)}: {reason}; choose another --port; --port 0 takes a free "
            "one"
        ) from exc
    return listening


def url_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket as seen from this machine, without a slash at the end."""
    host, port = listening.getsockname()[:2]
    return f"http://{_joined({'0.0.0.0': '127.0.0.1', '::': '::1'}.get(host, host), port)}"


def read_token(
    host: str, environ: Mapping[str, str], variables: tuple[str, str], *, risk: str, file: Path | None = None
) -> str | None:
    """Return the token that clients of a server must send; None: loopback, and no token was given.

    Args:
        host: where the server listens.
        environ: the environment, read as for the secret of a run.
        variables: the names of the variables with the token, and with the name of its file.
        risk: what a client could do without a token, for the message.
        file: overrides the environment.

    Raises:
        NotAuthorisedError: the host is not loopback, and there is no token.
        ConfError: the token's file cannot be read, or the token is empty, short, or no ASCII text; no message shows it.
    """
    token, token_file = variables
    renamed = {SECRET: token, SECRET_FILE: token_file}
    where = file or f"{token} or {token_file}"
    try:
        found = read_secret({name: environ[own] for name, own in renamed.items() if own in environ}, file, warns=False)
        given = None if found is None else found.decode("ascii")
        if given is not None and len(given) < _LEAST_TOKEN:
            raise ConfError(
                f"it has {counted(len(given), 'character')}, which can be guessed; take {_LEAST_TOKEN} or more, at "
                "random: head -c 32 /dev/urandom | base64"
            )
    except UnicodeDecodeError as exc:
        raise ConfError(f"the token in {where} is no ASCII text; make it with base64") from exc
    except ConfError as exc:
        said = str(exc)
        for name, own in ((SECRET_FILE, token_file), (SECRET, token)):
            said = re.sub(rf"\b{name}\b", own, said)
        raise ConfError(f"the token ({where}): {said}") from exc
    if given is None and beyond_loopback(_joined(host, 0)):
        raise NotAuthorisedError(
            f"--host {host} is beyond this machine's loopback, and there is no token: whoever reaches it could {risk}; "
            f"make one with `(umask 077; head -c 32 /dev/urandom | base64 > ~/dl4j.token)` and type `export "
            f"{token_file}=~/dl4j.token`; or keep to loopback, and reach it with `ssh -L`"
        )
    return given


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
