"""The secret of a run, read from the environment or a file, never from a command line or from the tracker.

A process that knows the secret can take part in the run: the tracker's values are signed with it, and the run's nodes
in Zookeeper are protected by it.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from dl4jlegacy.errors import ConfError

__all__ = ["SECRET", "SECRET_FILE", "read_secret"]

logger = logging.getLogger(__name__)

SECRET = "DL4J_SECRET"
SECRET_FILE = "DL4J_SECRET_FILE"
LEAST_NBYTES, MOST_NBYTES = 16, 4096


def read_secret(environ: Mapping[str, str], file: Path | None = None) -> bytes | None:
    """Return the run's secret, or None if it has none.

    Args:
        environ: the environment; ``DL4J_SECRET_FILE`` names a file, ``DL4J_SECRET`` is the secret itself.
        file: overrides the environment. Line ends after the secret are ignored.

    Raises:
        ConfError: the file cannot be read, or the secret is empty, or ``DL4J_SECRET_FILE`` is, as when a variable that
            should name the file was never set; no message shows the secret.
    """
    if file is None and environ.get(SECRET_FILE) == "":
        raise ConfError(f"{SECRET_FILE} is empty; let it name the secret's file, or unset it")
    named = file or (Path(environ[SECRET_FILE]) if environ.get(SECRET_FILE) else None)
    if named is not None:
        return _checked(_read(named), f"the secret's file {named}")
    given = environ.get(SECRET)
    return None if given is None else _checked(given.encode(errors="surrogateescape"), SECRET)


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


def _checked(secret: bytes, where: str) -> bytes:
    secret = secret.rstrip(b"\r\n")
    if not secret:
        raise ConfError(f"{where} is empty; give it a long random value, or leave it out for a run without a secret")
    if len(secret) < LEAST_NBYTES:
        logger.warning(
            "%s has %d bytes: whoever reads what it signs can guess it; take %d or more, at random",
            where,
            len(secret),
            LEAST_NBYTES,
        )
    return secret
