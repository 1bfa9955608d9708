"""Local copies of files on the Web, ``https://host/name``: downloaded once, and again when they have changed.

They are stored below ``$DL4J_WEB_CACHE``, or ``~/.deeplearning4j/web``, by host and a digest of the address.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import re
import urllib.request
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, BinaryIO
from urllib.error import HTTPError
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from dl4jlegacy.errors import DataError, DownloadError
from dl4jlegacy.system import files
from dl4jlegacy.system.clock import RUNNING, read_often
from dl4jlegacy.system.decoding import decodable

__all__ = ["fetch_file", "is_web", "spoken"]

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 20.0  # maximum silence of a server
_PATIENCE_SECONDS = 60.0
_SLOWEST = 1024  # bytes per second: a slower download would hardly ever end
_BLOCK = 1 << 20
_OWNER = re.compile("//[^/]*@")
_NOT_MODIFIED = 304
_SERVERS_FAULT = 500


class _UnavailableError(Exception):
    """The server is unavailable now; the message says why."""


class _StaysEncrypted(urllib.request.HTTPRedirectHandler):
    """Follows redirections to http and https only, and from https to https only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """See the parent class; raises ``DataError`` if the new address is not allowed."""
        scheme = urlsplit(newurl).scheme.lower()
        if scheme != "https" and (scheme != "http" or req.full_url.lower().startswith("https:")):
            raise DataError(f"{spoken(req.full_url)} leads to {spoken(newurl)}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_SIGNATURES = frozenset(
    {
        *("x-amz-signature", "x-amz-security-token", "x-goog-signature", "signature", "sig", "hmac", "x-oss-signature"),
        *("token", "access_token", "auth_token", "api_key", "apikey", "password", "secret", "client_secret"),
    }
)
"""Query parameters that give anybody with the address access to a file, in lower case."""


class _Copy(msgspec.Struct, frozen=True):
    """The server's identification of the copied version, to ask whether there is another one."""

    etag: str = ""
    last_modified: str = ""


def is_web(path: str) -> bool:
    """Return whether a path is an address on the Web."""
    return path.lower().startswith(("https://", "http://"))


def fetch_file(url: str) -> Path:
    """Return a copy of the file at ``url``; if the server cannot be reached, the existing copy, with a warning.

    Raises:
        DataError: there is no such file, the address gives no access, or the copy cannot be written.
        DownloadError: the server cannot be reached, stops too early or is too slow, and there is no copy.
    """
    path = _copy_path(url)
    note = path.with_name(f".{path.name}.json")
    with files.errors_as(DataError, f"{path} cannot be written", "name another folder in DL4J_WEB_CACHE"):
        path.parent.mkdir(parents=True, exist_ok=True)
        copied = _read_note(note) if files.is_file(path) else None
        try:
            _fetch(url, path, note, copied)
        except _UnavailableError as exc:
            if copied is None:
                raise DownloadError(
                    f"{spoken(url)} cannot be downloaded now: {exc}; try again, or download it yourself and give "
                    "the file"
                ) from exc
            logger.warning("%s cannot be asked for: %s; the copy in %s is used", spoken(url), exc, path.parent)
    return path


def spoken(url: str) -> str:
    """Return an address for messages, without user name and password, and without the query, which may hold a key."""
    bare, question, _ = _OWNER.sub("//", url).partition("?")
    return f"{bare}?..." if question else bare


def _copy_path(url: str) -> Path:
    """Return the path for the copy of a file; raises ``DataError`` if the address names no file."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as exc:
        raise DataError(f"{spoken(url)} is no address: {exc}") from exc
    if parts.username is not None or parts.password is not None:
        raise DataError(
            f"the address at {parts.hostname} has a name or password in it, which would be kept with the run; "
            "download the file yourself and give its path"
        )
    if signed := sorted({key for key, _ in parse_qsl(parts.query) if key.lower() in _SIGNATURES}):
        raise DataError(
            f"{spoken(url)} is signed ({', '.join(signed)}): who has this address can read the file, and the run would "
            "keep it; download the file yourself and give its path"
        )
    name = unquote(parts.path.rpartition("/")[2])
    if not parts.hostname or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise DataError(f"{spoken(url)} names no file; give the address of one, such as https://host/table.csv")
    given = os.environ.get("DL4J_WEB_CACHE")
    folder = Path(given).expanduser() if given else Path.home() / ".deeplearning4j" / "web"
    digest = hashlib.sha256(url.encode(errors="replace")).hexdigest()[:16]
    return folder / parts.netloc.lower().replace(":", "_") / digest / name


def _read_note(note: Path) -> _Copy | None:
    """Return the note about the copy; None if there is none, or the copy was never complete."""
    try:
        return msgspec.json.decode(files.read(note), type=decodable(_Copy))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _fetch(url: str, path: Path, note: Path, copied: _Copy | None) -> None:
    """Download the file, unless the copy is up to date.

    Raises:
        DataError: the server says that there is no such file. _UnavailableError: no answer, or an incomplete one.
        OSError: an error of the local file system.
    """
    response = _ask(url, copied)
    if response is None:
        return
    with response:
        if not response.url.lower().startswith("https:"):
            logger.warning("%s comes unencrypted: whoever is between may have changed it", spoken(url))
        logger.info("downloading %s", spoken(url))
        length = response.headers.get("Content-Length", "")
        with files.replacing(path) as file, read_often(RUNNING):  # a server may be silent for longer than a gap counts
            _copy(response, file, int(length) if length.isdecimal() else None)
            note.unlink(missing_ok=True)  # it describes the older version
        told = _Copy(response.headers.get("ETag", ""), response.headers.get("Last-Modified", ""))
    files.write(note, msgspec.json.encode(told))


def _ask(url: str, copied: _Copy | None) -> http.client.HTTPResponse | None:
    """Return the server's answer; None if the copy is up to date. Errors as for ``_fetch``."""
    headers = {"User-Agent": "dl4jlegacy", "Accept-Encoding": "identity"}
    if copied is not None:
        known = {"If-None-Match": copied.etag, "If-Modified-Since": copied.last_modified}
        headers |= {name: value for name, value in known.items() if value}
    try:
        request = urllib.request.Request(url, headers=headers)
        answer: http.client.HTTPResponse = urllib.request.build_opener(_StaysEncrypted).open(
            request, timeout=_TIMEOUT_SECONDS
        )
    except HTTPError as exc:
        exc.close()
        if exc.code == _NOT_MODIFIED and copied is not None:
            return None
        problem = f"its server answers {exc.code} {exc.reason}"
        if exc.code < _SERVERS_FAULT:
            raise DataError(f"{spoken(url)} cannot be had: {problem}; is the address spelt right?") from exc
        raise _UnavailableError(problem) from exc
    except (OSError, http.client.HTTPException) as exc:
        raise _UnavailableError(str(getattr(exc, "reason", "") or exc)) from exc
    return answer


def _copy(response: http.client.HTTPResponse, file: BinaryIO, length: int | None) -> None:
    """Write the server's data to a file; errors as for ``_fetch``, also if the data end early or come too slowly."""
    begun, size = RUNNING.now(), 0
    while True:
        try:
            block = response.read1(_BLOCK)
        except (OSError, http.client.HTTPException) as exc:
            raise _UnavailableError(f"after {size} bytes: {exc}") from exc
        if not block:
            break
        file.write(block)
        size += len(block)
        taken = RUNNING.now() - begun
        if taken > _PATIENCE_SECONDS and size < _SLOWEST * taken:
            raise _UnavailableError(f"{size} bytes came in {taken:.0f} s")
    if length is not None and size != length:
        raise _UnavailableError(f"it ended after {size} of {length} bytes")
