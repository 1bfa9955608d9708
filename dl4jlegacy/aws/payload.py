"""The files that instances install: this package as a wheel, and the lock file of its dependencies."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from dl4jlegacy.aws.wheel import make_wheel
from dl4jlegacy.errors import ConfError

__all__ = ["Payload", "load_payload"]

_ENTRY = re.compile(r"(?:.*\\\n)*.+")
_LOCKED = re.compile(r"[\w.-]+==[^\s;]+(?: *;[^#\\]+?)?(?: +--hash=sha256:[0-9a-f]{64})+(?: +#.*)?")


@dataclass(frozen=True, slots=True)
class Payload:
    """A wheel's file name and content, and a pip requirements file with exact versions and hashes."""

    name: str
    wheel: bytes
    requirements: bytes

    @property
    def wheel_sha256(self) -> str:
        """The SHA-256 of the wheel, in hexadecimal."""
        return hashlib.sha256(self.wheel).hexdigest()

    @property
    def requirements_sha256(self) -> str:
        """The SHA-256 of the requirements, in hexadecimal."""
        return hashlib.sha256(self.requirements).hexdigest()


def load_payload(wheel: str = "", requirements: str = "") -> Payload:
    """Return the files that instances install.

    Args:
        wheel: the path of a wheel; "": a wheel is made of this package.
        requirements: a pip requirements file in which every line has hashes; "": this package's own.

    Raises:
        ConfError: a file cannot be read, a line of ``requirements`` has no hash, or no wheel can be made.
    """
    path = Path(wheel).expanduser()
    try:
        locked = _read_requirements(requirements)
        if wheel:
            if not re.fullmatch(r"dl4jlegacy-[\w.+]+-py3-none-any\.whl", path.name):
                raise ConfError(f"--wheel {wheel}: give a wheel of this package, dl4jlegacy-VERSION-py3-none-any.whl")
            return Payload(path.name, path.read_bytes(), locked)
    except OSError as exc:
        raise ConfError(f"{exc.filename} cannot be read: {exc.strerror or exc}") from exc
    name, content = make_wheel()
    return Payload(name, content, locked)


def _read_requirements(path: str) -> bytes:
    """Return a requirements file ("": the package's own) after checking every line."""
    if not path:
        return files("dl4jlegacy.aws").joinpath("requirements.txt").read_bytes()
    content = Path(path).expanduser().read_bytes()
    text = content.decode("utf-8", errors="replace").replace("\r\n", "\n")
    entries = [(text.count("\n", 0, found.start()) + 1, _on_one_line(found[0])) for found in _ENTRY.finditer(text)]
    entries = [(number, entry) for number, entry in entries if entry and not entry.startswith("#")]
    wrong = next(((number, entry) for number, entry in entries if not _LOCKED.fullmatch(entry)), None)
    if wrong or not entries:
        where = f"line {wrong[0]}, {wrong[1][:80]!r}, is not" if wrong else "it has no line like"
        raise ConfError(
            f"--requirements {path}: {where} NAME==VERSION --hash=sha256:...; let `uv pip compile --universal "
            "--generate-hashes` or `pip-compile --generate-hashes` write the file"
        )
    return content


def _on_one_line(entry: str) -> str:
    return re.sub(r"\s*\\\n\s*", " ", entry).strip()
