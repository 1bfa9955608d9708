"""``./install`` on machines that lack something: every program that it calls is a script that notes the call."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PYTHON = """#!/bin/sh
# a Python: ENSUREPIP says whether it has ensurepip; there is pip where the file `pip` lies beside its environment
echo "python $*" | sed "s,$TMPDIR/tmp[^/ ]*,ASIDE,g" >> "$NOTES"
case "$*" in
    "-c "*) exit 0 ;;
    "-m venv "*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m pip --version") [ -e .venv/pip ] ;;
    "-m ensurepip") [ "$ENSUREPIP" = yes ] && touch .venv/pip ;;
    */pip-1.whl/pip" install "*) touch .venv/pip ;;
esac
"""
APT_GET = """#!/bin/sh
for word; do case "$word" in update|download) echo "apt-get $word" >> "$NOTES"; verb=$word ;; esac; done
[ "$ARCHIVE" = there ] || exit 100
[ "$verb" = update ] || touch python3-pip-whl_1_all.deb
"""
DPKG_DEB = """#!/bin/sh
mkdir -p "$3/usr/share/python-wheels" && touch "$3/usr/share/python-wheels/pip-1.whl"
"""
NEEDED = ("sh", "dirname", "rm", "mkdir", "touch", "cp", "id", "mktemp", "sed")

Install = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def install(tmp_path: Path, repository: Path) -> Install:
    """Run ``./install dev``; return its exit status, the calls that it made, and what it complained of."""
    shutil.copy(repository / "install", tmp_path)
    programs, notes = tmp_path / "programs", tmp_path / "notes"
    programs.mkdir()
    (tmp_path / "temporary").mkdir()
    for name in NEEDED:
        (programs / name).symlink_to(str(shutil.which(name)))
    for name, text in (("python3", PYTHON), ("apt-get", APT_GET), ("dpkg-deb", DPKG_DEB)):
        (programs / name).write_text(text, encoding="ascii")
        (programs / name).chmod(0o755)

    def run(ensurepip: str = "no", archive: str = "there") -> tuple[int, list[str], str]:
        notes.write_text("", encoding="ascii")
        temporary = str(tmp_path / "temporary")
        env = {"PATH": str(programs), "NOTES": str(notes), "TMPDIR": temporary, "ENSUREPIP": ensurepip}
        command = [str(tmp_path / "install"), "dev"]
        done = subprocess.run(command, env={**env, "ARCHIVE": archive}, capture_output=True, text=True, timeout=60)
        assert not list((tmp_path / "temporary").iterdir()), "something was left behind"
        said = [line for line in notes.read_text(encoding="utf-8").splitlines() if not line.startswith("python -c")]
        return done.returncode, said, done.stderr

    return run


VENV = "python -m venv --clear --without-pip .venv"
HAS_PIP = "python -m pip --version"
UNPACKED = "python ASIDE/usr/share/python-wheels/pip-1.whl/pip install --quiet --no-index --no-deps --ignore-installed"
PROJECT = "python -m pip install --quiet --disable-pip-version-check --editable .[dev]"


def test_a_python_with_ensurepip_needs_nothing_else(install: Install) -> None:
    assert install(ensurepip="yes") == (0, [VENV, HAS_PIP, "python -m ensurepip", HAS_PIP, PROJECT], "")
    assert install() == (0, [HAS_PIP, PROJECT], ""), "the environment is kept"


def test_debians_python_gets_debians_pip_without_root(install: Install) -> None:
    status, calls, said = install()
    wheel = f"{UNPACKED} ASIDE/usr/share/python-wheels/pip-1.whl"
    assert calls[2:] == ["python -m ensurepip", "apt-get update", "apt-get download", wheel, HAS_PIP, PROJECT]
    assert (status, calls[:2]) == (0, [VENV, HAS_PIP])
    assert said == "install: this Python comes without pip; unpacking the package python3-pip-whl into .venv\n"


def test_an_environment_that_lost_its_pip_is_mended(install: Install, tmp_path: Path) -> None:
    assert install()[0] == 0
    (tmp_path / ".venv" / "pip").unlink()
    (tmp_path / ".venv" / "mine").touch()
    status, calls, _ = install()
    assert (status, calls[-1]) == (0, PROJECT)
    assert VENV not in calls and (tmp_path / ".venv" / "mine").exists()


def test_what_only_an_administrator_can_do_is_said_word_for_word(install: Install) -> None:
    status, calls, said = install(archive="away")
    assert (status, calls[-1]) == (1, "apt-get update")
    assert "let an administrator type 'apt-get install python3-venv'" in said
