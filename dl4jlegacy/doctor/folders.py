"""Checks of the folders that a run reads and writes: existing, writable, and not full."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from dl4jlegacy.arrays.devices import memory_text
from dl4jlegacy.datasets.mnist import data_directory, missing_mnist_files
from dl4jlegacy.doctor.check import Check, Finding, Settings, compared, failed, of_error, ok, skipped, warning
from dl4jlegacy.errors import DataError
from dl4jlegacy.services import jars
from dl4jlegacy.system import files

__all__ = ["CHECKS"]

_LEAST_SPACE, _SCARCE_SPACE = 64 << 20, 1 << 30


def _folder(folder: Path, otherwise: str) -> Finding:
    """Check that a folder exists, is writable and has free space; ``otherwise``: another remedy, in words.

    It writes an empty file and removes it: permission bits alone are not sufficient.
    """
    try:
        kind = files.kind_of(folder)
        if kind is None:
            parent = next(each for each in folder.parents if files.kind_of(each) is not None)
            if files.kind_of(parent) != "folder" or not os.access(parent, os.W_OK | os.X_OK):
                found = f"{folder} does not exist, and {parent} is no folder that can be written to"
                return failed(found, f"create it as root, or {otherwise}")
            remedy = f"dl4j doctor --fix creates it, or {otherwise}"
            return warning(f"{folder} does not exist", remedy, creates=(folder,))
        if kind != "folder":
            return failed(f"{folder} is a {kind}", f"move it away, or {otherwise}")
        files.check_replaceable(folder / "doctor")
        state = os.statvfs(folder)
    except OSError as exc:
        return failed(f"{folder} cannot be written to: {exc.strerror or exc}", f"chown or chmod it, or {otherwise}")
    free = state.f_bavail * state.f_frsize
    found = f"{folder}, {memory_text(free)} free"
    return compared(found, free, _LEAST_SPACE, _SCARCE_SPACE, f"make room there, or {otherwise}")


def current_folder(settings: Settings) -> Finding:
    """Check the current folder, where models and checkpoints go by default."""
    try:
        return _folder(Path.cwd(), "go to another folder")
    except FileNotFoundError:
        return failed("the current folder has been removed", "go to another folder: cd")


def cache_folder(settings: Settings) -> Finding:
    """Check this package's folder in the user's cache, which has the jars and the local services."""
    try:
        return _folder(jars.cache_folder(), "set XDG_CACHE_HOME to another folder")
    except RuntimeError as exc:  # there is no home folder
        return failed(f"there is no folder for caches: {exc}", "set XDG_CACHE_HOME, or HOME")


def temporary_folder(settings: Settings) -> Finding:
    """Check the folder for temporary files."""
    try:
        return _folder(Path(tempfile.gettempdir()), "set TMPDIR to another folder")
    except FileNotFoundError as exc:
        return failed(f"there is none that can be written to: {exc.strerror or exc}", "set TMPDIR to a folder of yours")


def file_locks(settings: Settings) -> Finding:
    """Lock a file in the current folder: on a network file system without locks no checkpoints can be kept."""
    try:
        with tempfile.TemporaryFile(dir=".") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        found = f"files in {Path.cwd()} cannot be locked: {exc.strerror or exc}"
        return warning(found, "keep checkpoints in a folder of a local disk, or in s3://")
    return ok(f"files in {Path.cwd()} can be locked")


def data_folder(settings: Settings) -> Finding:
    """Check the data directory, into which MNIST is downloaded."""
    return _folder(data_directory(settings.data_dir).absolute(), "give --data-dir, or set DL4J_DATA_DIR")


def mnist(settings: Settings) -> Finding:
    """Compare MNIST's four files with their published checksums; downloads nothing."""
    folder = data_directory(settings.data_dir)
    try:
        missing = missing_mnist_files(settings.data_dir)
    except DataError as exc:
        return of_error(exc, "warning")
    if missing:
        return skipped(f"{', '.join(missing)}: not in {folder}", "a run that asks for them downloads them (12 MB)")
    return ok(f"all four files are in {folder}, and whole")


CHECKS = (
    Check("current folder", "Files", current_folder),
    Check("cache folder", "Files", cache_folder),
    Check("temporary folder", "Files", temporary_folder),
    Check("file locks", "Files", file_locks, need="current folder"),
    Check("data folder", "Files", data_folder, is_needed=lambda settings: settings.data_dir is not None),
    Check("MNIST", "Files", mnist, need="data folder"),
)
