"""What instances install: this package as a wheel, and the pinned versions of everything that it needs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dl4jlegacy.errors import ConfError

__all__ = ["Payload", "load_payload"]

_ROOT = Path(__file__).parents[2]
_BUILD = "from setuptools import build_meta; import sys; print(build_meta.build_wheel(sys.argv[1]))"
_BUILD_SECONDS = 300
_SOURCES = ("setup.py", "setup.cfg", "README.md", "LICENSE", "MANIFEST.in")


@dataclass(frozen=True, slots=True)
class Payload:
    """A wheel's file name and content, and a pip constraints file."""

    name: str
    wheel: bytes
    constraints: bytes

    @property
    def wheel_sha256(self) -> str:
        """The SHA-256 of the wheel, in hexadecimal."""
        return hashlib.sha256(self.wheel).hexdigest()

    @property
    def constraints_sha256(self) -> str:
        """The SHA-256 of the constraints, in hexadecimal."""
        return hashlib.sha256(self.constraints).hexdigest()


def load_payload(wheel: str = "", constraints: str = "") -> Payload:
    """Return what instances are to install.

    Args:
        wheel: a wheel's path; else one is built from the source folder that this runs from.
        constraints: a pip constraints file; else the versions installed here, so that they are the same there.

    Raises:
        ConfError: a file cannot be read, or there is no wheel and no source to build one from.
    """
    path = Path(wheel).expanduser()
    try:
        pinned = Path(constraints).expanduser().read_bytes() if constraints else _installed_versions()
        if wheel:
            if not re.fullmatch(r"dl4jlegacy-[\w.+]+-py3-none-any\.whl", path.name):
                raise ConfError(f"--wheel {wheel}: give a wheel of this package, dl4jlegacy-VERSION-py3-none-any.whl")
            return Payload(path.name, path.read_bytes(), pinned)
    except OSError as exc:
        raise ConfError(f"{exc.filename} cannot be read: {exc.strerror or exc}") from exc
    name, content = _build_wheel()
    return Payload(name, content, pinned)


def _installed_versions() -> bytes:
    """Return the versions of all that is installed here, as constraints."""
    found = {
        str(dist.metadata["Name"]).lower().replace("_", "-"): dist.version
        for dist in importlib.metadata.distributions()
        if dist.metadata["Name"]
    }
    left_out = ("dl4jlegacy", "pip", "setuptools")
    lines = [f"{name}=={version}" for name, version in sorted(found.items()) if name not in left_out]
    return "".join(f"{line}\n" for line in lines if "+" not in line).encode()


def _build_wheel() -> tuple[str, bytes]:
    """Build a wheel from the sources, in a copy of them."""
    if not (_ROOT / "setup.py").is_file():
        raise ConfError(
            "there is no source to build a wheel from: this package was installed; give the file with --wheel "
            "(made by `pip wheel --no-deps` in a clone)"
        )
    with tempfile.TemporaryDirectory(prefix="dl4j-wheel-") as folder:
        source, target = Path(folder, "source"), Path(folder, "wheel")
        source.mkdir()
        target.mkdir()
        for name in _SOURCES:
            if (_ROOT / name).is_file():
                shutil.copy2(_ROOT / name, source / name)
        shutil.copytree(_ROOT / "dl4jlegacy", source / "dl4jlegacy", ignore=shutil.ignore_patterns("__pycache__"))
        command = [sys.executable, "-c", _BUILD, str(target)]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=_BUILD_SECONDS)
        wheels = list(target.glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise ConfError(f"the wheel could not be built: {last}; pip install 'setuptools>=70.1', or give --wheel")
        return wheels[0].name, wheels[0].read_bytes()
