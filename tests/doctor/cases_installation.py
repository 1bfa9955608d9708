"""An installation that is not as it should be: another Python, libraries of other versions, half an extra."""

from __future__ import annotations

import importlib
import signal
import sys
from importlib import metadata
from typing import Any

from dl4jlegacy.doctor import Settings
from tests.doctor.broken_things import Thing, breaks, script

# -- Python and this package -------------------------------------------------------------------------------------------


@breaks("python", "failed", "3.9.2", ">=3.11", "./install")
def an_old_python(thing: Thing) -> Settings:
    thing.returns("platform.python_version", "3.9.2")
    return thing.settings()


@breaks("python", "warning", "3.99.0", "newer than")
def a_python_that_nobody_has_tested(thing: Thing) -> Settings:
    thing.returns("platform.python_version", "3.99.0")
    return thing.settings()


@breaks("python", "failed", "PyPy", "CPython")
def another_python(thing: Thing) -> Settings:
    thing.returns("platform.python_implementation", "PyPy")
    return thing.settings()


@breaks("python", "warning", "free-threaded")
def a_free_threaded_python(thing: Thing) -> Settings:
    thing.returns("sysconfig.get_config_var", 1)
    return thing.settings()


@breaks("system", "failed", "32 bits")
def a_python_of_32_bits(thing: Thing) -> Settings:
    thing.patch.setattr(sys, "maxsize", 2**31 - 1)
    return thing.settings()


@breaks("system", "warning", "musl", "glibc")
def musl(thing: Thing) -> Settings:
    thing.returns("platform.libc_ver", ("musl", "1.2"))
    return thing.settings()


@breaks("system", "warning", "Linux only")
def another_system(thing: Thing) -> Settings:
    thing.patch.setattr(sys, "platform", "darwin")
    return thing.settings()


@breaks("package", "failed", "without being installed", "./install")
def a_folder_that_is_not_installed(thing: Thing) -> Settings:
    thing.returns("importlib.metadata.version", metadata.PackageNotFoundError("dl4jlegacy"))
    return thing.settings()


@breaks("package", "warning", "0.0.7", "./install")
def an_installation_of_another_version(thing: Thing) -> Settings:
    thing.returns("importlib.metadata.version", "0.0.7")
    return thing.settings()


@breaks("command", "warning", "/bin/dl4j for dl4j, and not", "PATH")
def another_environment_s_command(thing: Thing) -> Settings:
    script(thing.folder / "scripts/dl4j", "true")
    script(thing.folder / "bin/dl4j", "true")
    thing.returns("sysconfig.get_path", str(thing.folder / "scripts"))
    thing.patch.setenv("PATH", str(thing.folder / "bin"))
    return thing.settings()


@breaks("command", "warning", "does not find dl4j", "activate")
def an_environment_that_is_not_activated(thing: Thing) -> Settings:
    script(thing.folder / "scripts/dl4j", "true")
    script(thing.folder / "scripts/activate", "true")
    thing.returns("sysconfig.get_path", str(thing.folder / "scripts"))
    thing.patch.setenv("PATH", "/nowhere")
    return thing.settings()


# -- libraries ---------------------------------------------------------------------------------------------------------


def installed(thing: Thing, name: str, *versions: str) -> None:
    """Let so many versions of a package be installed, in a folder before all others."""
    thing.patch.syspath_prepend(thing.folder)
    for version in versions:
        info = thing.folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    importlib.invalidate_caches()


@breaks("numpy", "failed", "1.19.5 is installed, and >=1.26", "pip install", "'numpy>=1.26'")
def an_old_library(thing: Thing) -> Settings:
    installed(thing, "numpy", "1.19.5")
    return thing.settings()


@breaks("kazoo", "failed", "2.10.0 and 2.11.0", "uninstall")
def a_library_installed_twice(thing: Thing) -> Settings:
    installed(thing, "kazoo", "2.10.0", "2.11.0")
    return thing.settings()


@breaks("pykka", "failed", "not installed", "pip install")
def a_library_that_is_missing(thing: Thing) -> Settings:
    missing(thing, "pykka")
    return thing.settings()


@breaks("rich", "failed", "no-version is installed")
def a_version_that_is_none(thing: Thing) -> Settings:
    installed(thing, "rich", "no-version")
    return thing.settings()


@breaks("imports", "failed", "kazoo: ImportError", "half of it", "./install")
def a_library_that_cannot_be_imported(thing: Thing) -> Settings:
    (thing.folder / "kazoo.py").write_text("raise ImportError('half of it is missing')")
    thing.patch.setenv("PYTHONPATH", str(thing.folder))
    return thing.settings()


@breaks("imports", "failed", "imports pykka ends with signal 4", "processor")
def a_library_for_another_processor(thing: Thing) -> Settings:
    (thing.folder / "pykka.py").write_text(f"import os; os.kill(os.getpid(), {signal.SIGILL})")
    thing.patch.setenv("PYTHONPATH", str(thing.folder))
    return thing.settings()


@breaks("shadows", "failed", "numpy.py is in the way of numpy", "rename")
def a_file_called_like_a_library(thing: Thing) -> Settings:
    (thing.folder / "numpy.py").write_text("")
    thing.patch.syspath_prepend(thing.folder)
    thing.patch.delitem(sys.modules, "numpy")
    importlib.invalidate_caches()
    return thing.settings()


@breaks("extra aws", "warning", "boto3 1.2.3 is not >=1.36", "./install aws")
def an_old_library_of_an_extra(thing: Thing) -> Settings:
    installed(thing, "boto3", "1.2.3")
    return thing.settings()


def missing(thing: Thing, *names: str) -> None:
    """Let packages not be installed."""
    found = metadata.distribution

    def look(name: str) -> Any:
        if name in names:
            raise metadata.PackageNotFoundError(name)
        return found(name)

    thing.patch.setattr(metadata, "distribution", look)


@breaks("extra tune", "warning", "optuna is missing", "./install tune", "dl4j tune")
def half_an_extra(thing: Thing) -> Settings:
    missing(thing, "optuna")
    return thing.settings()


@breaks("extra tune", "skipped", "not installed", "./install tune")
def no_extra(thing: Thing) -> Settings:
    missing(thing, "optuna", "plotly")
    return thing.settings()
