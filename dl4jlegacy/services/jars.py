"""The servers' jars: pinned in ``jars.json`` with their digests, downloaded once, and stored per user.

They are stored in ``$XDG_CACHE_HOME/dl4jlegacy/jars`` (``~/.cache`` without it). ``mvn`` downloads them if installed,
with its own settings (mirrors, credentials), otherwise ``jgo``, a resolver of Maven coordinates in Python. A file is
used only if its SHA-256 is the pinned one. Processes that download at the same time wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from xml.sax.saxutils import escape

import msgspec

from dl4jlegacy.errors import TrackerError, how_to_install
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.system.decoding import decodable
from dl4jlegacy.system.files import open_lock, put_in_place
from dl4jlegacy.system.subprocesses import run_command

__all__ = ["Jar", "cache_folder", "fetch_jars", "locked", "missing_jars", "pinned_jars"]

_MAVEN_SECONDS = 300.0
_MAVEN_PLUGIN = "3.8.1"
_DOWNLOAD_SECONDS = 60
_POLL_SECONDS = 0.1


class Jar(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a Maven repository: ``group:artifact:version``, optional ``:classifier``, and its SHA-256 in hex."""

    coordinates: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Maven's name of the file: ``artifact-version.jar``, or ``artifact-version-classifier.jar``."""
        _, *parts = self.coordinates.split(":")
        return f"{'-'.join(parts)}.jar"


def pinned_jars(server: str) -> tuple[Jar, ...]:
    """Return the jars of ``"hazelcast"`` or ``"zookeeper"``, in the order of the class path."""
    text = files("dl4jlegacy.services").joinpath("jars.json").read_bytes()
    return msgspec.json.decode(text, type=decodable(dict[str, tuple[Jar, ...]]))[server]


def cache_folder() -> Path:
    """Return this package's folder in the user's cache folder."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if given.startswith("/") else Path.home() / ".cache") / "dl4jlegacy"


def missing_jars(jars: Sequence[Jar], folder: Path | None = None) -> list[Jar]:
    """Return the jars that ``fetch_jars`` would download: those that are missing in the folder, or damaged."""
    kept = folder or cache_folder() / "jars"
    return [jar for jar in jars if not _has_pinned_digest(kept / jar.file_name, jar)]


def fetch_jars(jars: Sequence[Jar], folder: Path | None = None) -> list[Path]:
    """Return the jars' paths, after downloading those that are missing or damaged.

    Args:
        jars: usually ``pinned_jars(server)``.
        folder: where they are stored; the user's cache by default.

    Raises:
        TrackerError: a jar cannot be downloaded; the message says where it was searched, and why that failed.
    """
    folder = folder or cache_folder() / "jars"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock", _MAVEN_SECONDS * 2, "another process is fetching jars"):
            wanted = missing_jars(jars, folder)
            if wanted:
                _fetch(wanted, folder)
    except OSError as exc:
        raise TrackerError(f"the jars cannot be kept in {folder}: {exc.strerror or exc}; set XDG_CACHE_HOME") from exc
    return [folder / jar.file_name for jar in jars]


@contextlib.contextmanager
def locked(path: Path, seconds: float, why: str) -> Iterator[None]:
    """Hold a lock against other processes; it is released when this process ends in any way.

    Raises:
        TrackerError: not free within ``seconds``.
    """
    deadline = Deadline(seconds)
    handle = open_lock(path, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if deadline.passed():
                    raise TrackerError(f"{path} is still locked after {seconds:g} s: {why}; try again") from None
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(handle)


def _has_pinned_digest(path: Path, jar: Jar) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256


def _fetch(jars: Sequence[Jar], folder: Path) -> None:
    reasons: list[str] = []
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as name:
        for method in (_fetch_with_maven, _fetch_with_jgo):
            why_not = method(jars, Path(name))
            why_not = why_not or _move_verified(jars, Path(name), folder)
            if not why_not:
                return
            reasons.append(why_not)
    names = ", ".join(jar.coordinates for jar in jars)
    raise TrackerError(
        f"the servers' jars cannot be had ({names}): {'; '.join(reasons)}. Let this machine reach a Maven repository "
        f"(a mirror goes into ~/.m2/settings.xml), or copy the files to {folder}"
    )


def _move_verified(jars: Sequence[Jar], source: Path, folder: Path) -> str:
    """Move files with the pinned digests atomically to ``folder``; return the problem of the first other file."""
    for jar in jars:
        path = source / jar.file_name
        if not path.is_file():
            return f"{jar.coordinates} did not arrive"
        if not _has_pinned_digest(path, jar):
            return f"{jar.coordinates} arrived with another SHA-256 than the pinned {jar.sha256}"
        put_in_place(path, folder / jar.file_name)
    return ""


def _fetch_with_maven(jars: Sequence[Jar], target: Path) -> str:
    """Download with ``mvn``; return why that failed, ``""`` if it succeeded."""
    maven = shutil.which("mvn")
    if maven is None:
        return "no mvn on the PATH"
    project = target / "pom.xml"
    project.write_text(_maven_project(jars, target), encoding="utf-8")
    command = [maven, "-q", "-B", "-f", str(project), "dependency:copy"]
    try:
        done = run_command(command, _MAVEN_SECONDS, cwd=target)
    except TimeoutError:
        return f"mvn was not done after {_MAVEN_SECONDS:g} s"
    except OSError as exc:
        return f"{maven} cannot be run: {exc.strerror or exc}"
    if done.returncode == 0:
        return ""
    errors = [line for line in (done.stdout + done.stderr).splitlines() if "[ERROR]" in line]
    return f"mvn ended with {done.returncode}: {errors[0].partition('[ERROR]')[2].strip() if errors else 'no message'}"


def _maven_project(jars: Sequence[Jar], target: Path) -> str:
    """Return a Maven project that copies only these files: without dependencies, so that no POMs are needed either."""
    items = "".join(
        f"<artifactItem><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"<classifier>{''.join(classifier)}</classifier></artifactItem>"
        for group, artifact, version, *classifier in (jar.coordinates.split(":") for jar in jars)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>dl4jlegacy</groupId><artifactId>servers</artifactId><version>1</version><packaging>pom</packaging>"
        "<build><plugins><plugin><groupId>org.apache.maven.plugins</groupId>"
        f"<artifactId>maven-dependency-plugin</artifactId><version>{_MAVEN_PLUGIN}</version><configuration>"
        f"<outputDirectory>{escape(str(target))}</outputDirectory><artifactItems>{items}</artifactItems>"
        "</configuration></plugin></plugins></build></project>\n"
    )


def _fetch_with_jgo(jars: Sequence[Jar], target: Path) -> str:
    """Download with ``jgo`` from Maven Central; return why that failed, ``""`` if it succeeded."""
    if importlib.util.find_spec("jgo") is None:
        return f"no jgo ({how_to_install('services')})"
    from jgo.maven import MavenContext  # optional: the extra "services"

    local = [Path.home() / ".m2" / "repository"]
    context = MavenContext(repo_cache=target / "repository", local_repos=local, timeout=_DOWNLOAD_SECONDS)
    for jar in jars:
        group, artifact, version, *classifier = jar.coordinates.split(":")
        try:
            found = context.project(group, artifact).at_version(version).artifact("".join(classifier)).resolve()
            shutil.copyfile(found, target / jar.file_name)
        except (OSError, RuntimeError, AssertionError) as exc:  # requests' errors are OSErrors
            return f"jgo could not fetch {jar.coordinates}: {exc}"
    return ""
