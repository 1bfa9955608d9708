"""What surrounds the commands: environment, locale, terminal, time, and the programs beside them."""

from __future__ import annotations

import codecs
import datetime
import locale
import os
import shutil
import sys
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import dl4jlegacy
from dl4jlegacy.doctor.check import Check, Finding, Settings, ok, one_line, skipped, warning
from dl4jlegacy.errors import counted
from dl4jlegacy.system.subprocesses import run_command

__all__ = ["checks"]

_DOCKER_SECONDS = 20.0
_NARROW = 60
_DAY_SECONDS = 86_400.0


def variables(settings: Settings) -> Finding:
    """Look for variables that nobody reads: ``DL4J_WORKRES`` is not an error, and does nothing."""
    given = sorted(name for name in settings.environ if name.startswith("DL4J_"))
    if not settings.variables:
        return skipped("it is not known which variables are read")
    unknown = [name for name in given if name not in settings.variables]
    empty = [name for name in given if name in settings.variables and not settings.environ[name].strip()]
    said = [f"{name} is read by nothing{_meant(name, settings.variables)}" for name in unknown]
    said += [f"{name} is empty" for name in empty]
    if said:
        return warning("; ".join(said), f"unset {' '.join([*unknown, *empty])}")
    return ok(f"{', '.join(given)}: all are read" if given else "none is set")


def _meant(name: str, known: frozenset[str]) -> str:
    close = get_close_matches(name, sorted(known), n=1, cutoff=0.7)
    return f" (is {close[0]} meant?)" if close else ""


def encoding(settings: Settings) -> Finding:
    """Look at the encodings of text: names of files and what is printed may have any character."""
    names = {
        "the locale's": locale.getencoding(),
        "of file names": sys.getfilesystemencoding(),
        "of standard output": getattr(sys.stdout, "encoding", None) or "none",
    }
    shown = ", ".join(f"{what} {name}" for what, name in names.items())
    if all(_is_utf8(name) for name in names.values()):
        return ok(shown)
    remedy = "export LC_ALL=C.UTF-8, or PYTHONUTF8=1: other characters are printed as \\u..., or not read"
    return warning(f"encodings: {shown}", remedy)


def _is_utf8(name: str) -> bool:
    try:
        return codecs.lookup(name).name == "utf-8"
    except LookupError:
        return False


def terminal(settings: Settings) -> Finding:
    """Look at the terminal: without one, or with a dumb one, progress is lines instead of a display."""
    if not sys.stderr.isatty():
        return skipped("standard error is no terminal: progress is shown line by line")
    name, width = settings.environ.get("TERM", ""), shutil.get_terminal_size().columns
    if name in ("", "dumb", "unknown"):
        return warning(f"TERM is {name!r}: progress is shown line by line", "export TERM=xterm-256color")
    found = f"{name}, {counted(width, 'column')}"
    if width < _NARROW:
        return warning(f"{found}: tables and progress are cut", f"make it {_NARROW} wide, or wider")
    return ok(found)


def time_of_day(settings: Settings) -> Finding:
    """Look whether the clock can be right: not before the files of this package were written."""
    written = Path(dl4jlegacy.__file__).stat().st_mtime
    now = time.time()
    shown = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    if now < written - _DAY_SECONDS:
        ago = datetime.datetime.fromtimestamp(written, datetime.UTC).strftime("%Y-%m-%d")
        found = f"it is {shown}, and this package was installed on {ago}"
        return warning(found, "set the clock (timedatectl set-ntp true): downloads and AWS need a right one")
    return ok(shown)


def user(settings: Settings) -> Finding:
    """Say as whom this runs: what root has written, nobody else can change."""
    number = os.geteuid()
    if number == 0 and settings.environ.get("SUDO_USER"):
        found = f"root, through sudo of {settings.environ['SUDO_USER']}: checkpoints and caches will be root's"
        return warning(found, "run it without sudo")
    return ok(f"uid {number}" + (", root" if number == 0 else ""))


def docker(settings: Settings) -> Finding:
    """Ask Docker's engine for its version, which docker/README.md's clusters need."""
    found = shutil.which("docker", path=settings.environ.get("PATH"))
    if found is None:
        return skipped("there is none, which only docker/README.md needs")
    said = _said([found, "version", "--format", "{{.Server.Version}}"])
    if isinstance(said, str):
        return ok(f"engine {said}")
    remedy = "start its engine (systemctl start docker), or see its log"
    if "permission denied" in said.found.lower():
        remedy = "add yourself to its group (sudo usermod -aG docker $USER), and log in again"
    return warning(said.found, remedy)


def compose(settings: Settings) -> Finding:
    """Ask for the version of Docker's compose, as of which docker/README.md's commands are."""
    found = shutil.which("docker", path=settings.environ.get("PATH")) or "docker"
    said = _said([found, "compose", "version", "--short"])
    if isinstance(said, str):
        return ok(f"compose {said}")
    return warning(said.found, "install Docker's plugin compose, version 2 or newer")


def _said(command: Sequence[str]) -> str | Finding:
    """Return what a command prints; a warning, whose remedy the caller knows, if it fails."""
    try:
        done = run_command(command, _DOCKER_SECONDS)
    except OSError as exc:  # TimeoutError as well
        return warning(f"{command[0]} cannot be run: {one_line(exc.strerror or exc)}", "see its installation")
    name = f"{os.path.basename(command[0])} {command[1]}"
    if done.returncode or not done.stdout.strip():
        said = one_line(done.stderr or done.stdout) or f"it ends with status {done.returncode}"
        return warning(f"{name}: {said}", "see its installation")
    return one_line(done.stdout)


def checks() -> tuple[Check, ...]:
    """Return the checks of the surroundings."""
    area, seconds = "Surroundings", _DOCKER_SECONDS + 5
    return (
        Check(name="variables", area=area, look=variables),
        Check(name="encoding", area=area, look=encoding),
        Check(name="terminal", area=area, look=terminal),
        Check(name="time", area=area, look=time_of_day),
        Check(name="user", area=area, look=user),
        Check(name="Docker", area=area, look=docker, is_waiting=True, seconds=seconds),
        Check(name="Docker compose", area=area, look=compose, is_waiting=True, seconds=seconds, needs=("Docker",)),
    )
