"""``dl4j aws`` from an installation of every Python that the package supports: instances get the same from each."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from dl4jlegacy.aws.payload import Payload, load_payload
from tests.support import REPOSITORY

pytestmark = pytest.mark.long

SETUP = configparser.ConfigParser()
SETUP.read(REPOSITORY / "setup.cfg", encoding="utf-8")
VERSIONS = re.findall(r":: Python :: (3\.\d+)$", SETUP["metadata"]["classifiers"], flags=re.M)
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
DRY_RUN = ("aws", "up", "digits", "--out", "s3://models-of-mine/m.zip", "--allow", "203.0.113.7", "--dry-run")
MADE = """
import sys
from pathlib import Path
from dl4jlegacy.aws.payload import load_payload
payload = load_payload()
Path(sys.argv[1], "of_it.whl").write_bytes(payload.wheel)
Path(sys.argv[1], "requirements.txt").write_bytes(payload.requirements)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Payload]:
    """The wheel that the source makes."""
    payload = load_payload()
    path = tmp_path_factory.mktemp("wheel") / payload.name
    path.write_bytes(payload.wheel)
    return path, payload


def find_python(version: str) -> Path:
    """A Python of a version: on the path, or one of pyenv's."""
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    folders += sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin"))
    for folder in folders:
        python = folder / f"python{version}"
        if python.exists() and not subprocess.run([python, "-c", "import ensurepip"], capture_output=True).returncode:
            return python
    pytest.skip(f"not run: there is no Python {version} with pip here")


def link_what_is_installed_here(venv: Path) -> None:
    """Give an environment this one's packages: of the lock file, too, which made this one; but not this checkout."""
    mine, own = (Path(sysconfig.get_path("purelib", vars={"base": base})) for base in (sys.prefix, venv))
    for package in mine.iterdir():
        if "dl4jlegacy" not in package.name and package.suffix != ".pth":
            (own / package.name).symlink_to(package)


def said(*command: object, env: dict[str, str] | None = None, folder: Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=folder, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def contents(path: Path) -> dict[str, bytes]:
    wheel = zipfile.ZipFile(path)
    return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith(".dist-info/RECORD")}


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(version, marks=() if version in (VERSIONS[-1], THIS) else pytest.mark.release)
        for version in VERSIONS
    ],
)
def test_every_python_here_gives_instances_the_same(
    version: str, built: tuple[Path, Payload], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, payload = built
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python = tmp_path / "venv/bin/python"
    options = ("install", "--quiet", "--disable-pip-version-check", "--no-compile")
    if is_this := version == THIS:
        said(sys.executable, "-m", "venv", "--without-pip", "venv", folder=tmp_path)
        link_what_is_installed_here(tmp_path / "venv")
        pip: tuple[object, ...] = (sys.executable, "-m", "pip", "--python", python, *options, "--ignore-installed")
    else:
        said(find_python(version), "-m", "venv", "venv", folder=tmp_path)
        pip = (python, "-m", "pip", *options)
        locked = REPOSITORY / "docker" / "requirements-aws.txt"
        said(*pip, "--require-hashes", "--only-binary", ":all:", "--requirement", locked, folder=tmp_path)
    said(*pip, "--no-deps", "--no-index", wheel, folder=tmp_path)
    said(tmp_path / "venv/bin/python", "-c", MADE, tmp_path, folder=tmp_path)
    assert (tmp_path / "requirements.txt").read_bytes() == payload.requirements
    assert contents(tmp_path / "of_it.whl") == contents(wheel)
    keys = {
        "AWS_ACCESS_KEY_ID": "nobodys",
        "AWS_SECRET_ACCESS_KEY": "nobodys",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    }
    text = said(tmp_path / "venv/bin/dl4j", *DRY_RUN, env={**os.environ, **keys}, folder=tmp_path)
    assert "workers  1 x m5.large: 0.0960 $/h" in text
    if not is_this:
        said(*pip[:3], "check", folder=tmp_path)
