"""A wheel of this package: built from its source, or repacked from the installed files."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import shutil
import sys
import tempfile
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path

from dl4jlegacy.errors import ConfError, how_to_install
from dl4jlegacy.system.subprocesses import run_command

__all__ = ["make_wheel", "pack_wheel"]

_ROOT = Path(__file__).parents[2]
_BUILD = "from setuptools import build_meta; import sys; print(build_meta.build_wheel(sys.argv[1]))"
_BUILD_SECONDS = 300.0
_OTHERWISE = f"{how_to_install('aws')}, or give --wheel"
_SOURCES = ("setup.py", "setup.cfg", "README.md", "LICENSE", "MANIFEST.in")
_OF_INSTALLERS = frozenset(
    {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "provenance_url.json", "uv_build.json", "uv_cache.json"}
)
"""Files that installers add to a wheel's own metadata; RECORD is written anew."""
_REMEDY = "so no wheel can be made of it: install it again with pip, or give its wheel with --wheel"


def make_wheel() -> tuple[str, bytes]:
    """Return the file name and the content of a wheel of this package.

    Raises:
        ConfError: the wheel cannot be built, or the installed files are unknown.
    """
    if (_ROOT / "setup.py").is_file():
        return _build_wheel()
    try:
        dist = distribution("dl4jlegacy")
    except PackageNotFoundError:
        raise ConfError(f"{_ROOT / 'dl4jlegacy'} was not installed, {_REMEDY}") from None
    if Path(str(dist.locate_file("dl4jlegacy"))).resolve() != _ROOT.resolve() / "dl4jlegacy":
        raise ConfError(f"{_ROOT / 'dl4jlegacy'} is not what is installed as dl4jlegacy {dist.version}, {_REMEDY}")
    return pack_wheel(dist)


def pack_wheel(dist: Distribution) -> tuple[str, bytes]:
    """Return the file name and the content of the installed pure-Python wheel; the content is reproducible.

    Raises:
        ConfError: its RECORD, or one of the files listed there, is missing.
    """
    files = [path for path in dist.files or () if _is_of_wheel(path)]
    info = next((path.parts[0] for path in files if path.parts[0].endswith(".dist-info")), "")
    if not info:
        raise ConfError(f"what was installed as dl4jlegacy {dist.version} is not written down, {_REMEDY}")
    try:
        contents = {path.as_posix(): Path(str(path.locate())).read_bytes() for path in sorted(files)}
    except OSError as exc:
        raise ConfError(f"{exc.filename}, which was installed, cannot be read: {exc.strerror}, {_REMEDY}") from exc
    contents[f"{info}/RECORD"] = _record(contents, f"{info}/RECORD")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as wheel:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name)  # of 1980
            entry.external_attr = 0o100644 << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return f"{info.removesuffix('.dist-info')}-py3-none-any.whl", packed.getvalue()


def _is_of_wheel(path: PackagePath) -> bool:
    """Return whether a file belongs to the wheel, and is no script, compiled module or file of the installer."""
    if path.parts[0].endswith(".dist-info"):
        return path.name not in _OF_INSTALLERS
    return path.parts[0] == "dl4jlegacy" and "__pycache__" not in path.parts


def _record(contents: dict[str, bytes], own_name: str) -> bytes:
    """Return the list of a wheel's files, with their digests and sizes."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    for name, content in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        lines.writerow((name, f"sha256={digest}", len(content)))
    lines.writerow((own_name, "", ""))
    return text.getvalue().encode()


def _build_wheel() -> tuple[str, bytes]:
    """Build a wheel from a copy of the source."""
    with tempfile.TemporaryDirectory(prefix="dl4j-wheel-") as folder:
        source, target = Path(folder, "source"), Path(folder, "wheel")
        source.mkdir()
        target.mkdir()
        for name in _SOURCES:
            if (_ROOT / name).is_file():
                shutil.copy2(_ROOT / name, source / name)
        shutil.copytree(_ROOT / "dl4jlegacy", source / "dl4jlegacy", ignore=shutil.ignore_patterns("__pycache__"))
        command = [sys.executable, "-c", _BUILD, str(target)]
        try:
            done = run_command(command, _BUILD_SECONDS, cwd=source)
        except OSError as exc:
            raise ConfError(f"the wheel could not be built: {exc}; {_OTHERWISE}") from exc
        wheels = list(target.glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise ConfError(f"the wheel could not be built: {last}; {_OTHERWISE}")
        return wheels[0].name, wheels[0].read_bytes()
