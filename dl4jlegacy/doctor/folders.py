"""The folders that a run reads and writes: are they there, may they be written to, is there room."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from dl4jlegacy.arrays.devices import memory_text
from dl4jlegacy.datasets.mnist import data_directory, missing_mnist_files
from dl4jlegacy.doctor.check import Check, Finding, Mend, Settings, failed, of_error, ok, skipped, warning
from dl4jlegacy.errors import DataError, counted
from dl4jlegacy.services.jars import cache_folder
from dl4jlegacy.system import files

__all__ = ["checks", "folder_finding"]

_LEAST_SPACE, _SCARCE_SPACE = 64 << 20, 1 << 30
_SCARCE_NAMES = 1000


def folder_finding(folder: Path, otherwise: str) -> Finding:
    """Look at a folder: there, writable, with room for files; ``otherwise``: what to do instead, in words.

    It writes an empty file, which it removes: permission bits alone do not tell. What is missing can be created.
    """
    try:
        kind = files.kind_of(folder)
        if kind is None:
            return _missing(folder, otherwise)
        if kind != "folder":
            return failed(f"{folder} is a {kind}", f"move it away, or {otherwise}")
        files.check_replaceable(folder / "doctor")
        state = os.statvfs(folder)
    except OSError as exc:
        remedy = "chown or chmod it" if isinstance(exc, PermissionError) else "see what is the matter with it"
        return failed(f"{folder} cannot be written to: {exc.strerror or exc}", f"{remedy}, or {otherwise}")
    free = state.f_bavail * state.f_frsize
    found = f"{folder}, {memory_text(free)} free"
    if free < _LEAST_SPACE:
        return failed(f"{found}: the disk is full", f"make room there, or {otherwise}")
    if state.f_files and state.f_favail < _SCARCE_NAMES:
        names = counted(state.f_favail, "file")
        return failed(f"{found}, and room for no more than {names}", f"remove small files there, or {otherwise}")
    if free < _SCARCE_SPACE:
        return warning(f"{found}: little for data sets and checkpoints", f"make room there, or {otherwise}")
    return ok(found)


def _missing(folder: Path, otherwise: str) -> Finding:
    parent = next(each for each in folder.parents if files.kind_of(each) is not None)
    if files.kind_of(parent) != "folder":
        return failed(f"{folder} cannot be there: {parent} is no folder", f"move that away, or {otherwise}")
    if not os.access(parent, os.W_OK | os.X_OK):
        return failed(
            f"{folder} does not exist, and {parent} cannot be written to", f"create it as root, or {otherwise}"
        )
    return warning(f"{folder} does not exist", f"dl4j doctor --fix creates it, or {otherwise}", Mend(folders=(folder,)))


def current_folder(settings: Settings) -> Finding:
    """Look at the current folder, where models and checkpoints go unless told otherwise."""
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        return failed("the current folder has been removed", "go to another folder: cd")
    return folder_finding(folder, "go to another folder")


def home_folder(settings: Settings) -> Finding:
    """Look at the user's home folder, below which the caches are."""
    try:
        home = files.expand("~")
    except OSError as exc:
        return failed(f"{exc.strerror}", "set HOME; in a container: docker run -e HOME=/tmp")
    return folder_finding(home, "set HOME to another folder")


def cache(settings: Settings) -> Finding:
    """Look at this package's folder in the user's cache: jars, local services, tables, files of the Web."""
    try:
        return folder_finding(cache_folder(), "set XDG_CACHE_HOME to another folder")
    except RuntimeError as exc:  # there is no home folder
        return failed(f"there is no folder for caches: {exc}", "set XDG_CACHE_HOME, or HOME")


def temporary_folder(settings: Settings) -> Finding:
    """Look at the folder for temporary files: the one that TMPDIR names, and not another that Python takes instead."""
    named = settings.environ.get("TMPDIR", "")
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as exc:
        return failed(f"there is none that can be written to: {exc.strerror or exc}", "set TMPDIR to a folder of yours")
    if named and Path(named).absolute() != folder.absolute():
        return warning(f"TMPDIR is {named}, which cannot be used, and {folder} is taken", "set it to a folder of yours")
    return folder_finding(folder, "set TMPDIR to another folder")


def locks(settings: Settings) -> Finding:
    """Lock a file in the current folder: a file system without locks, as of some networks, keeps no checkpoints."""
    try:
        with tempfile.TemporaryFile(dir=".") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        found = f"files in {Path.cwd()} cannot be locked: {exc.strerror or exc}"
        return warning(found, "keep checkpoints in a folder of a local disk, or in s3://")
    return ok(f"files in {Path.cwd()} can be locked")


def data_folder(settings: Settings) -> Finding:
    """Look at the data directory, into which MNIST is downloaded."""
    try:
        folder = data_directory(settings.data_dir)
    except DataError as exc:
        return of_error(exc)
    return folder_finding(folder.absolute(), "give --data-dir, or set DL4J_DATA_DIR")


def mnist(settings: Settings) -> Finding:
    """Look at MNIST's four files, each against its published checksum; downloads nothing."""
    folder = data_directory(settings.data_dir)
    try:
        missing = missing_mnist_files(settings.data_dir)
    except DataError as exc:
        return of_error(exc, "warning")
    except OSError as exc:
        return warning(f"the files in {folder} cannot be read: {exc.strerror or exc}", "chown or chmod them")
    if len(missing) == 4:
        return skipped(f"not in {folder}", "it is downloaded (12 MB) when a run asks for it first")
    if missing:
        return warning(f"{', '.join(missing)}: not in {folder}", "what is missing is downloaded when a run asks for it")
    return ok(f"all four files are in {folder}, and whole")


def _given_data_dir(settings: Settings) -> bool:
    return settings.data_dir is not None


def checks() -> tuple[Check, ...]:
    """Return the checks of folders, and of what lies in them."""
    return (
        Check(name="current folder", area="Files", look=current_folder),
        Check(name="home folder", area="Files", look=home_folder),
        Check(name="cache folder", area="Files", look=cache),
        Check(name="temporary folder", area="Files", look=temporary_folder),
        Check(name="data folder", area="Files", look=data_folder, is_needed=_given_data_dir),
        Check(name="file locks", area="Files", look=locks, needs=("current folder",)),
        Check(name="MNIST", area="Files", look=mnist, needs=("data folder",), seconds=30.0),
    )
