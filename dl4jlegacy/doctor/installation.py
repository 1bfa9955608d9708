"""Checks that the requirements of ``setup.cfg`` are installed: Python, this package, libraries and optional extras."""

from __future__ import annotations

import importlib.util
import itertools
import platform
import shutil
import sys
import sysconfig
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import dl4jlegacy
from dl4jlegacy.doctor.check import Check, Finding, Settings, always, failed, ok, one_line, skipped, warning
from dl4jlegacy.errors import how_to_install
from dl4jlegacy.system.subprocesses import run_command
from dl4jlegacy.version import __version__

__all__ = ["CHECKS"]

_NAME = "dl4jlegacy"
_INSTALL = "type ./install in the clone of dl4jlegacy"
_MODULES = {"hazelcast-python-client": "hazelcast", "pyyaml": "yaml"}
_FOR_DEVELOPERS = ("bench", "dev")
_IMPORT = """
import sys
for name in sys.argv[1:]:
    print(name, flush=True)
    try:
        __import__(name)
    except BaseException as exc:
        print("!", type(exc).__name__, exc, flush=True)
"""
_IMPORT_SECONDS = 60.0


def python(settings: Settings) -> Finding:
    """Check the interpreter: CPython on Linux, in a version that this package supports."""
    version, kind = platform.python_version(), platform.python_implementation()
    found = f"{kind} {version}, {sys.executable}, on {platform.platform()}"
    needed = SpecifierSet("".join(metadata.metadata(_NAME).get_all("Requires-Python") or []))
    if kind != "CPython" or not needed.contains(version, prereleases=True):
        return failed(f"{found}: CPython {needed} is needed", f"make the environment anew: {_INSTALL}")
    if sys.platform != "linux":
        return warning(f"{found}: the tests run on Linux only", "use Linux, or docker/README.md's containers")
    return ok(found)


def package(settings: Settings) -> Finding:
    """Compare the version of this package with that of its installation."""
    folder = Path(dl4jlegacy.__file__).parent
    try:
        installed = metadata.version(_NAME)
    except metadata.PackageNotFoundError:
        return failed(f"{folder} is not installed, so that the libraries that it needs are unknown", _INSTALL)
    if installed != __version__:
        return warning(f"version {__version__} in {folder}, but the installation says {installed}", _INSTALL)
    return ok(f"version {__version__} in {folder}")


def command(settings: Settings) -> Finding:
    """Check whether a shell finds this environment's ``dl4j``."""
    own = Path(sysconfig.get_path("scripts"), "dl4j")
    found = shutil.which("dl4j", path=settings.environ.get("PATH"))
    if not own.exists():
        return warning(f"{own} does not exist", _INSTALL)
    if found is None or Path(found).resolve() != own.resolve():
        return warning(f"the shell finds {found or 'no dl4j'}, not {own}", f"type: source {own.parent / 'activate'}")
    return ok(found)


def _requirements(extra: str = "") -> list[Requirement]:
    """Return the libraries that an extra needs; "": those that every installation needs."""
    every = [Requirement(line) for line in metadata.requires(_NAME) or []]
    if not extra:
        return [each for each in every if each.marker is None]
    return [each for each in every if each.marker is not None and each.marker.evaluate({"extra": extra})]


def _fault(need: Requirement) -> str:
    """Return why a library does not fit; "": it fits."""
    try:
        version = metadata.version(need.name)
    except metadata.PackageNotFoundError:
        return f"{need.name} is not installed"
    fits = need.specifier.contains(version, prereleases=True)
    return "" if fits else f"{need.name} {version} is installed, and {need.specifier} is needed"


def libraries(settings: Settings) -> Finding:
    """Compare the versions of the libraries with those that this package needs."""
    needs = _requirements()
    if faults := [fault for each in needs if (fault := _fault(each))]:
        return failed("; ".join(faults), _INSTALL)
    return ok(", ".join(f"{each.name} {metadata.version(each.name)}" for each in needs))


def imports(settings: Settings) -> Finding:
    """Import every library in a process of its own: a library built for another processor kills the process."""
    names = [_module_of(each) for each in _requirements()]
    done = run_command([sys.executable, "-P", "-W", "ignore", "-c", _IMPORT, *names], _IMPORT_SECONDS)
    lines = done.stdout.splitlines()
    if done.returncode:
        last = next((line for line in reversed(lines) if not line.startswith("! ")), "the first")
        found = f"a process that imports {last} ends with status {done.returncode}: {one_line(done.stderr)}"
        return failed(found, f"{_INSTALL}; a library built for another processor ends so, too")
    if errors := [f"{name}: {one_line(line[2:])}" for name, line in itertools.pairwise(lines) if line[:2] == "! "]:
        return failed("; ".join(errors), _INSTALL)
    return ok(f"{len(names)} libraries can be imported")


def _module_of(need: Requirement) -> str:
    """Return the name by which a library is imported."""
    return _MODULES.get(need.name.lower(), need.name.replace("-", "_"))


def shadows(settings: Settings) -> Finding:
    """Look for files that are imported in place of a library, such as a ``numpy.py`` in the current folder."""
    wrong = []
    for need in _requirements():
        spec = importlib.util.find_spec(_module_of(need))
        for installed in itertools.islice(metadata.distributions(name=need.name), 1):
            folder = Path(str(installed.locate_file(""))).resolve()
            if spec is not None and spec.origin is not None and not Path(spec.origin).resolve().is_relative_to(folder):
                wrong.append(f"{spec.origin} is in the way of {need.name}")
    if wrong:
        return failed("; ".join(wrong), "rename it, leave that folder, or take it out of PYTHONPATH")
    return ok("no file is in the way of a library")


def extras(settings: Settings) -> Finding:
    """Check the optional extras: which are installed (by their first library), and whether they are complete."""
    names = metadata.metadata(_NAME).get_all("Provides-Extra") or []
    every = {name: _requirements(name) for name in names if name not in _FOR_DEVELOPERS}
    used = {name: needs for name, needs in every.items() if not _fault(needs[0]).endswith("is not installed")}
    faults = {name: fault for name, needs in used.items() for each in needs if (fault := _fault(each))}
    if faults:
        return warning("; ".join(f"{name}: {fault}" for name, fault in faults.items()), how_to_install(*faults))
    others = ", ".join(name for name in every if name not in used)
    return ok(f"installed: {', '.join(used) or 'none'}; not installed: {others or 'none'}")


def variables(settings: Settings) -> Finding:
    """Find variables that are never read: a misspelt ``DL4J_WORKRES`` causes no error, and has no effect."""
    if not settings.variables:
        return skipped("it is not known which variables are read")
    given = sorted(name for name in settings.environ if name.startswith("DL4J_"))
    faults = {name: _misspelt(name, settings.variables) for name in given if name not in settings.variables}
    faults |= {name: f"{name} is empty" for name in given if not settings.environ[name].strip()}
    if faults:
        return warning("; ".join(faults.values()), f"unset {' '.join(faults)}")
    return ok(f"{', '.join(given)}: all are read" if given else "none is set")


def _misspelt(name: str, known: frozenset[str]) -> str:
    close = get_close_matches(name, sorted(known), n=1, cutoff=0.7)
    return f"{name} is not read{f' (is {close[0]} meant?)' if close else ''}"


CHECKS = (
    Check("package", "Installation", package, is_needed=always),
    Check("python", "Installation", python, is_needed=always, need="package"),
    Check("libraries", "Installation", libraries, is_needed=always, need="package"),
    Check(
        "imports",
        "Installation",
        imports,
        is_needed=always,
        seconds=_IMPORT_SECONDS + 5,
        need="package",
    ),
    Check("shadows", "Installation", shadows, is_needed=always, need="package"),
    Check("extras", "Installation", extras, need="package"),
    Check("command", "Installation", command),
    Check("variables", "Installation", variables),
)
