"""The secret of a run, read from the environment or a file, never from a command line or the tracker.

A process with the secret can take part in the run: the values in the tracker are signed with it, and the run's nodes in
Zookeeper are protected by it. A process without a secret trusts everything that it reads there, so it may only use
servers on this machine's loopback, unless its user allows more.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from dl4jlegacy.errors import ConfError

__all__ = [
    "ALLOW_UNSIGNED",
    "GET_SECRET",
    "MAKE_SECRET",
    "SECRET",
    "SECRET_FILE",
    "allows_unsigned",
    "beyond_loopback",
    "has_secret",
    "read_secret",
]

logger = logging.getLogger(__name__)

SECRET = "DL4J_SECRET"
SECRET_FILE = "DL4J_SECRET_FILE"
ALLOW_UNSIGNED = "DL4J_ALLOW_UNSIGNED"
LEAST_NBYTES, MOST_NBYTES = 16, 4096
MAKE_SECRET = (
    f"make a file with `(umask 077; set -C; head -c 32 /dev/urandom | base64 > ~/dl4j.secret)`, copy it to every "
    f"machine (scp -p), and type `export {SECRET_FILE}=~/dl4j.secret` in every terminal"
)
"""How to make a secret if no machine has one yet; never overwrites one. Ends without a full stop."""
GET_SECRET = (
    "copy the file of the run's secret from a machine that has it (scp -p THAT_MACHINE:dl4j.secret ~/), and type "
    f"`export {SECRET_FILE}=~/dl4j.secret`; only where no machine has one yet, {MAKE_SECRET}"
)
"""How to copy the existing secret of a run to a machine, since a new secret would be different. No full stop."""


def read_secret(environ: Mapping[str, str], file: Path | None = None, *, warns: bool = True) -> bytes | None:
    """Return the run's secret, or None if it has none.

    Args:
        environ: the environment; ``DL4J_SECRET_FILE`` names a file, ``DL4J_SECRET`` is the secret itself.
        file: overrides the environment. Line ends after the secret are ignored.
        warns: whether to warn of a secret that can be guessed.

    Raises:
        ConfError: the file cannot be read, or the secret or ``DL4J_SECRET_FILE`` is empty (for example because another
            variable with the file's name was never set); no message shows the secret.
    """
    if file is None and environ.get(SECRET_FILE) == "":
        raise ConfError(f"{SECRET_FILE} is empty; let it name the secret's file, or unset it")
    named = file or (Path(environ[SECRET_FILE]) if environ.get(SECRET_FILE) else None)
    if named is not None:
        return _checked(_read(named), f"the secret's file {named}", warns)
    given = environ.get(SECRET)
    return None if given is None else _checked(given.encode(errors="surrogateescape"), SECRET, warns)


def has_secret(environ: Mapping[str, str]) -> bool:
    """Return whether an environment has a secret, or the name of its file, even an invalid one."""
    return SECRET in environ or SECRET_FILE in environ


def allows_unsigned(environ: Mapping[str, str]) -> bool:
    """Return whether ``DL4J_ALLOW_UNSIGNED`` is 1: a run without a secret may then use servers beyond loopback.

    Raises:
        ConfError: the variable is neither 1 nor 0.
    """
    given = environ.get(ALLOW_UNSIGNED, "0")
    if given not in ("0", "1"):
        raise ConfError(
            f"{ALLOW_UNSIGNED} is {given!r}; 1 lets runs without a secret use servers of a network in which everybody "
            "is trusted, 0 does not"
        )
    return given == "1"


def beyond_loopback(addresses: str) -> list[str]:
    """Return those comma-separated ``host:port`` whose host is no literal loopback address."""
    named = addresses.removeprefix("hazelcast://").split(",")
    return [address for address in named if address and not _is_loopback(address.rpartition(":")[0].strip("[]"))]


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a host name may resolve to any address


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            if os.fstat(stream.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                logger.warning("the secret's file %s is open to other users; 'chmod 600' it", file)
            secret = stream.read(MOST_NBYTES + 1)
    except OSError as exc:
        raise ConfError(f"the secret's file {file} cannot be read: {exc.strerror or exc}") from exc
    if len(secret) > MOST_NBYTES:
        raise ConfError(f"the secret's file {file} is longer than {MOST_NBYTES} bytes; is it the right one?")
    return secret


def _checked(secret: bytes, where: str, warns: bool) -> bytes:
    secret = secret.rstrip(b"\r\n")
    if not secret:
        raise ConfError(f"{where} is empty; give it a long random value, or leave it out for a run without a secret")
    if warns and len(secret) < LEAST_NBYTES:
        logger.warning(
            "%s has %d bytes: whoever reads what it signs can guess it; take %d or more, at random",
            where,
            len(secret),
            LEAST_NBYTES,
        )
    return secret
