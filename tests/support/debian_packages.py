"""Debian's packages for tests that need a real program: unpacked into a folder, not installed; no root needed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["missing_for", "unpack"]


def apt(arguments: Sequence[str], folder: Path, *, own_lists: bool) -> str:
    """What an apt command prints; with ``own_lists`` it keeps the archive's index below ``folder``."""
    options = ["-o", "Debug::NoLocking=1"]
    if own_lists:
        (folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (folder / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        options += ["-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"]
    command = [arguments[0], *options, *arguments[1:]]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180)
    except FileNotFoundError:
        pytest.fail(f"there is no {command[0]} here; install the program under test, or run on Debian or Ubuntu")
    if done.returncode != 0:
        raise OSError(f"{' '.join(arguments)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _with_lists(arguments: Sequence[str], folder: Path) -> str:
    """Run an apt command; where it knows no packages yet, with an index fetched now."""
    try:
        return apt(arguments, folder, own_lists=(folder / "lists").is_dir())
    except OSError:
        try:
            apt(["apt-get", "update", "-qq"], folder, own_lists=True)
            return apt(arguments, folder, own_lists=True)
        except OSError as exc:
            pytest.fail(f"Debian's archive is needed for this test: {exc}")


def missing_for(package: str, folder: Path) -> list[str]:
    """The package and what it depends on that is not installed here."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["apt-get", "install", "--no-install-recommends", "--print-uris", "--yes", "-qq", package]
    return re.findall(r"^'[^']*/([a-z0-9.+-]+)_[^']*'", _with_lists(command, folder), flags=re.M)


def unpack(packages: Sequence[str], folder: Path) -> Path:
    """Download packages and unpack them below ``folder``; return the folder that stands for ``/``."""
    folder.mkdir(parents=True, exist_ok=True)
    _with_lists(["apt-get", "download", "-qq", *packages], folder)
    root = folder / "root"
    for archive in sorted(folder.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(archive), str(root)], check=True, timeout=60)
    return root
