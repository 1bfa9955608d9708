"""A wheel made where no source is: the one that was installed, made again."""

from __future__ import annotations

import base64
import csv
import hashlib
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from dl4jlegacy.aws import wheel
from dl4jlegacy.aws.payload import load_payload
from dl4jlegacy.aws.wheel import pack_wheel
from dl4jlegacy.errors import ConfError
from dl4jlegacy.version import __version__

INFO = f"dl4jlegacy-{__version__}.dist-info"
OF_THE_WHEEL = {
    "dl4jlegacy/__init__.py": b"",
    "dl4jlegacy/data/a,b.csv": b"1,2\n",
    f"{INFO}/METADATA": f"Metadata-Version: 2.4\nName: dl4jlegacy\nVersion: {__version__}\n".encode(),
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/entry_points.txt": b"[console_scripts]\n",
    f"{INFO}/licenses/LICENSE": b"A licence\n",
}
OF_THE_INSTALLER = {
    "dl4jlegacy/__pycache__/__init__.cpython-311.pyc": b"\0",
    f"{INFO}/INSTALLER": b"pip\n",
    f"{INFO}/REQUESTED": b"",
    f"{INFO}/direct_url.json": b'{"url": "file:///home/somebody"}',
    f"{INFO}/uv_cache.json": b"{}",
    "../../bin/dl4j": b"#!/home/somebody/bin/python\n",
}


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    """What an installer leaves."""
    folder = tmp_path / "lib" / "site-packages"
    for name, content in (OF_THE_WHEEL | OF_THE_INSTALLER).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    with (folder / INFO / "RECORD").open("w", newline="", encoding="utf-8") as record:
        names = [*OF_THE_WHEEL, *OF_THE_INSTALLER, f"{INFO}/RECORD"]
        csv.writer(record).writerows((name, "", "") for name in reversed(names))
    return folder


def members(path: Path) -> dict[str, bytes]:
    """A wheel's files by name, after a look at its RECORD, which is the last of them."""
    wheel = zipfile.ZipFile(path)
    found = {name: wheel.read(name) for name in wheel.namelist()}
    assert wheel.testzip() is None and len(found) == len(wheel.infolist())
    name, record = next((name, content) for name, content in found.items() if name.endswith(".dist-info/RECORD"))
    for listed, digest, size in csv.reader(record.decode().splitlines()):
        if listed != name:
            right = base64.urlsafe_b64encode(hashlib.sha256(found[listed]).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (f"sha256={right}", len(found[listed]))
    assert {line[0] for line in csv.reader(record.decode().splitlines())} == set(found)
    return {each: content for each, content in found.items() if each != name}


def test_a_wheel_is_made_of_what_was_installed_and_of_nothing_else(site_packages: Path, tmp_path: Path) -> None:
    (site_packages / "dl4jlegacy" / "mine.py").touch()
    (site_packages / "other.py").touch()
    name, content = pack_wheel(Distribution.at(site_packages / INFO))
    assert name == f"dl4jlegacy-{__version__}-py3-none-any.whl"
    (tmp_path / name).write_bytes(content)
    assert members(tmp_path / name) == OF_THE_WHEEL
    for path in site_packages.rglob("*"):
        path.touch()
    assert pack_wheel(Distribution.at(site_packages / INFO)) == (name, content), "another digest on every start"


def test_a_build_that_does_not_end_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "_BUILD", "import time; time.sleep(60)")
    monkeypatch.setattr(wheel, "_BUILD_SECONDS", 0.1)
    with pytest.raises(ConfError, match=r"the wheel could not be built: .* was not done after 0\.1 s; .* give --wheel"):
        wheel.make_wheel()


def test_no_wheel_is_made_of_half_of_it(site_packages: Path) -> None:
    (site_packages / "dl4jlegacy" / "data" / "a,b.csv").unlink()
    with pytest.raises(ConfError, match=r"a,b\.csv, which was installed, cannot be read: .* --wheel"):
        pack_wheel(Distribution.at(site_packages / INFO))
    (site_packages / INFO / "RECORD").unlink()
    with pytest.raises(ConfError, match=r"installed as dl4jlegacy \S+ is not written down, .* --wheel"):
        pack_wheel(Distribution.at(site_packages / INFO))


MADE = """
import sys
from pathlib import Path
import dl4jlegacy
from dl4jlegacy.aws.payload import load_payload
assert Path(dl4jlegacy.__file__).is_relative_to(sys.argv[1]), dl4jlegacy.__file__
payload = load_payload()
Path(sys.argv[1], payload.name).write_bytes(payload.wheel)
"""


def install(wheel: Path, folder: Path) -> None:
    words = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--target", str(folder), str(wheel)]
    done = subprocess.run([sys.executable, "-m", "pip", "install", *words], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_an_installed_package_makes_the_wheel_that_the_source_makes(tmp_path: Path) -> None:
    built = load_payload()  # of the source
    first, folder, again = tmp_path / built.name, tmp_path / "installed", tmp_path / "again"
    first.write_bytes(built.wheel)
    install(first, folder)
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", MADE, str(folder)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert members(folder / built.name) == members(first)
    install(folder / built.name, again)
    assert {path.name for path in again.iterdir()} == {"bin", "dl4jlegacy", INFO}
    version = subprocess.run(
        [sys.executable, str(again / "bin" / "dl4j"), "--version"],
        env=env | {"PYTHONPATH": str(again)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (version.returncode, version.stdout) == (0, f"{__version__}\n"), version.stderr
