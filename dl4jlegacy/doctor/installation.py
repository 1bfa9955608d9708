"""Is what ``setup.cfg`` asks for here: Python, the libraries with their versions, the optional extras."""

from __future__ import annotations

import importlib.util
import itertools
import platform
import shutil
import sys
import sysconfig
from functools import partial
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

import dl4jlegacy
from dl4jlegacy.doctor.check import Check, Finding, Settings, failed, ok, one_line, skipped, warning
from dl4jlegacy.errors import how_to_install
from dl4jlegacy.system.subprocesses import run_command
from dl4jlegacy.version import __version__

__all__ = ["checks", "extra_requirements", "requirements"]

NAME = "dl4jlegacy"
_MODULES = {"hazelcast-python-client": "hazelcast", "pyyaml": "yaml"}
_FOR_DEVELOPERS = ("dev", "bench")
_PURPOSES = {
    "aws": "dl4j aws, and paths in s3://",
    "gpu": "workers on NVIDIA GPUs, CUDA 12",
    "gpu13": "workers on NVIDIA GPUs, CUDA 13",
    "images": "images as data",
    "services": "dl4j services, where there is no Java",
    "sklearn": "the estimators for scikit-learn",
    "tune": "dl4j tune",
}
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


def requirements() -> tuple[Requirement, ...]:
    """Return what every installation needs, as ``setup.cfg`` has it; empty where the package is not installed."""
    return tuple(each for each in _all_requirements() if each.marker is None or each.marker.evaluate({"extra": ""}))


def extra_requirements() -> dict[str, tuple[Requirement, ...]]:
    """Return what each extra for users needs, in the order of their names."""
    found = _all_requirements()
    try:
        extras = metadata.metadata(NAME).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        extras = []
    return {
        extra: tuple(each for each in found if each.marker is not None and _is_of(each, extra))
        for extra in sorted(extras)
        if extra not in _FOR_DEVELOPERS
    }


def _all_requirements() -> list[Requirement]:
    try:
        return [Requirement(line) for line in metadata.requires(NAME) or []]
    except metadata.PackageNotFoundError:
        return []


def _is_of(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


# -- Python and this package -------------------------------------------------------------------------------------------


def python(settings: Settings) -> Finding:
    """Look at the interpreter: CPython, of a version that this package is for, and has been tested with."""
    version, kind = platform.python_version(), platform.python_implementation()
    found = f"{kind} {version}, {sys.executable}"
    remedy = "make the environment anew with another Python: ./install in the clone of dl4jlegacy"
    if kind != "CPython":
        return failed(f"{found}: Numba and Hazelcast's client are made for CPython", remedy)
    needed, tested = _python_versions()
    if not needed.contains(version, prereleases=True):
        return failed(f"{found}: Python {needed} is needed", remedy)
    if tested and Version(version).release[:2] > max(tested):
        newest = ".".join(map(str, max(tested)))
        return warning(f"{found}: newer than {newest}, the newest that this version was tested with", remedy)
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return warning(f"{found}: a free-threaded build, which this version was not tested with", remedy)
    return ok(found)


def _python_versions() -> tuple[SpecifierSet, list[tuple[int, ...]]]:
    """Return which versions of Python this package is for, and those that it was tested with."""
    try:
        about = metadata.metadata(NAME)
    except metadata.PackageNotFoundError:
        return SpecifierSet(), []
    classifiers = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or [] if "Python ::" in line]
    tested = [tuple(map(int, each.split("."))) for each in classifiers if each.replace(".", "").isdigit()]
    return SpecifierSet("".join(about.get_all("Requires-Python") or [])), [each for each in tested if len(each) == 2]


def system(settings: Settings) -> Finding:
    """Look at the operating system: Linux with glibc, 64 bits, is what the tests run on."""
    library, version = platform.libc_ver()
    found = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if sys.maxsize < 2**32:
        return failed(f"{found}, with a Python of 32 bits: NumPy and Numba have none for it", "install one of 64 bits")
    if sys.platform != "linux":
        return warning(f"{found}: the tests run on Linux only", "use Linux, or docker/README.md's containers")
    if library != "glibc":
        found = f"{found}, {library or 'a C library that is not glibc'} {version}".rstrip()
        return warning(f"{found}: the libraries' wheels are for glibc", "use Debian, Ubuntu, Fedora or the like")
    return ok(f"{found}, glibc {version}")


def package(settings: Settings) -> Finding:
    """Look at this package: installed, and of the version that the installation says."""
    folder = Path(dl4jlegacy.__file__).parent
    remedy = "type ./install in the clone of dl4jlegacy"
    try:
        installed = metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return failed(f"{folder} is used without being installed, so that what it needs is not known", remedy)
    if installed != __version__:
        return warning(f"version {__version__} in {folder}, but the installation says {installed}", remedy)
    return ok(f"version {__version__} in {folder}")


def command(settings: Settings) -> Finding:
    """Look at which ``dl4j`` a shell finds: that of this environment, and not one from before."""
    own = Path(sysconfig.get_path("scripts"), "dl4j")
    found = shutil.which("dl4j", path=settings.environ.get("PATH"))
    activate = f"type: source {own.parent / 'activate'}" if (own.parent / "activate").exists() else "extend PATH"
    if not own.exists():
        return warning(f"{own} does not exist", "type ./install in the clone of dl4jlegacy")
    if found is None:
        return warning(f"the shell does not find dl4j, which is {own}", activate)
    if Path(found).resolve() != own.resolve():
        return warning(f"the shell takes {found} for dl4j, and not {own}", activate)
    return ok(found)


# -- libraries ---------------------------------------------------------------------------------------------------------


def library(need: Requirement, settings: Settings) -> Finding:
    """Look at a library: there, once, and of a version that this one is for."""
    remedy = f"type: {sys.executable} -m pip install --force-reinstall '{need.name}{need.specifier}'"
    found = _versions(need.name)
    if not found:
        return failed("it is not installed", remedy)
    if len(found) > 1:
        said = f"{' and '.join(found)} are both said to be installed, of which one has overwritten the other"
        return failed(said, f"remove both ({sys.executable} -m pip uninstall {need.name}, twice), then {remedy}")
    fits = _fits(need, found[0])
    if fits:
        return ok(found[0])
    return failed(f"{found[0]} is installed, and {need.specifier} is needed", remedy)


def _versions(name: str) -> list[str]:
    """Return the version of an installed package, or those of several in the same folder; "?" where there is none."""
    try:
        first = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return []
    folder = first.locate_file("")
    every = [each for each in metadata.distributions(name=name) if each.locate_file("") == folder]
    return sorted({"".join(each.metadata.get_all("Version") or ["?"]) for each in (every or [first])})


def _fits(need: Requirement, version: str) -> bool:
    try:
        return need.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def imports(settings: Settings) -> Finding:
    """Import every library, in a process of its own, which is what a wheel for another processor would end."""
    names = [module_of(each) for each in requirements()]
    began = [sys.executable, "-P", "-W", "ignore", "-c", _IMPORT, *names]
    done = run_command(began, _IMPORT_SECONDS)
    lines = done.stdout.splitlines()
    said = [(name, line[2:]) for name, line in itertools.pairwise(lines) if line.startswith("! ")]
    remedy = "install them again: ./install in the clone of dl4jlegacy"
    if done.returncode:
        last = next((line for line in reversed(lines) if not line.startswith("! ")), "the first")
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        text = f"a process that imports {last} ends with {how}: {one_line(done.stderr) or 'it says nothing'}"
        return failed(text, f"{remedy}; a library built for another processor ends so, too")
    if said:
        return failed("; ".join(f"{name}: {one_line(text)}" for name, text in said), remedy)
    return ok(f"{len(names)} libraries can be imported")


def module_of(need: Requirement) -> str:
    """Return the name by which a library is imported."""
    return _MODULES.get(need.name.lower(), need.name.replace("-", "_"))


def shadows(settings: Settings) -> Finding:
    """Look for files that are imported in place of a library: a ``numpy.py`` in the current folder, for example."""
    wrong = []
    for need in requirements():
        spec = importlib.util.find_spec(module_of(need))
        if spec is None or spec.origin is None or not (installed := _files(need.name)):
            continue
        if Path(spec.origin).resolve() not in installed:
            wrong.append(f"{spec.origin} is in the way of {need.name}")
    if wrong:
        remedy = "rename it, leave that folder, or take it out of PYTHONPATH"
        return failed("; ".join(wrong), remedy)
    return ok("no file is in the way of a library")


def _files(name: str) -> set[Path]:
    """Return the Python files of an installed package; empty where it does not say."""
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return set()
    named = [file for file in distribution.files or () if file.name == "__init__.py" or len(file.parts) == 1]
    return {Path(str(distribution.locate_file(file))).resolve() for file in named}


# -- extras ------------------------------------------------------------------------------------------------------------


def extra(name: str, extras: dict[str, tuple[Requirement, ...]], settings: Settings) -> Finding:
    """Look at an extra: all of it there, nothing of it but what others bring, too, or only a part."""
    needs = extras[name]
    versions = {need.name: _versions(need.name) for need in needs}
    there = [need for need in needs if versions[need.name]]
    others = {need.name for other, theirs in extras.items() if other != name for need in theirs}
    own = [need for need in needs if need.name not in others] or needs
    purpose = _PURPOSES.get(name, "")
    for_what = f", for {purpose}" if purpose else ""
    if not any(need in there for need in own):
        return skipped(f"not installed{for_what}", how_to_install(name))
    missing = [f"{need.name} is missing" for need in needs if need not in there]
    other = [
        f"{need.name} {versions[need.name][0]} is not {need.specifier}"
        for need in there
        if not _fits(need, versions[need.name][0])
    ]
    if missing or other:
        return warning("; ".join([*missing, *other]), f"{how_to_install(name)}{for_what}")
    return ok(", ".join(f"{need.name} {versions[need.name][0]}" for need in needs))


# -- all ---------------------------------------------------------------------------------------------------------------


def _always(settings: Settings) -> bool:
    return True


def checks() -> tuple[Check, ...]:
    """Return the checks of the installation; one for each library and each extra that ``setup.cfg`` names."""
    extras = extra_requirements()
    return (
        Check(name="python", area="Python", look=python, is_needed=_always),
        Check(name="system", area="Python", look=system, is_needed=_always),
        Check(name="package", area="Python", look=package, is_needed=_always),
        Check(name="command", area="Python", look=command),
        *(
            Check(name=each.name, area="Libraries", look=partial(library, each), is_needed=_always)
            for each in requirements()
        ),
        Check(
            name="imports",
            area="Libraries",
            look=imports,
            is_needed=_always,
            seconds=_IMPORT_SECONDS + 5,
            is_waiting=True,
            needs=("package",),
        ),
        Check(name="shadows", area="Libraries", look=shadows, is_needed=_always),
        *(Check(name=f"extra {name}", area="Extras", look=partial(extra, name, extras)) for name in extras),
    )
