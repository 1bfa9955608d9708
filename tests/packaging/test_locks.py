"""Lock files: exact versions with hashes of all that ``setup.cfg`` asks for, and one version everywhere."""

from __future__ import annotations

import configparser
import itertools
import re

import pytest
from packaging.requirements import Requirement

from tests.support import REPOSITORY

BASE = "docker/requirements.txt"
INSTANCES = "dl4jlegacy/aws/requirements.txt"
BUILD = "docker/requirements-build.txt"  # of a file that ends with .in
APART = "gpu", "gpu13", "bench"
"""No two of these can be installed together: each needs another CUDA."""


def extras() -> dict[str, tuple[str, ...]]:
    """The extras that each lock file is of."""
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg")
    each = {f"docker/requirements-{name}.txt": (name,) for name in config["options.extras_require"]}
    return {BASE: (), **each, INSTANCES: ("aws", "services")}


EXTRAS = extras()


def locked(name: str) -> dict[str, list[str]]:
    """The lock file's versions by name; fails for one without a hash, and for anything else."""
    text, found = (REPOSITORY / name).read_text(encoding="ascii"), dict[str, list[str]]()
    assert "://" not in text, f"{name} names the package index that it was made with"
    for entry in re.sub(r"\\\n\s*", "", text).splitlines():
        if entry and not entry.startswith("#"):
            match = re.fullmatch(
                r"([a-z0-9-]+)==(\S+)( ; [^-]+(?:-[^-]+)*?)?((?: ?--hash=sha256:[0-9a-f]{64})+)", entry
            )
            assert match, f"{name}: {entry[:80]} is not locked"
            found.setdefault(match[1], []).append(match[2])
    return found


def test_every_extra_has_a_lock_file() -> None:
    found = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "docker").glob("requirements*.txt")}
    assert found | {INSTANCES} == {*EXTRAS, BUILD}


@pytest.mark.parametrize("name", EXTRAS)
def test_what_the_project_needs_is_locked(name: str) -> None:
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg")
    wanted = [config["options"]["install_requires"], *(config["options.extras_require"][e] for e in EXTRAS[name])]
    versions = locked(name)
    for line in "\n".join(wanted).split():
        requirement = Requirement(line)
        have = versions[requirement.name.lower().replace("_", "-")]
        assert all(requirement.specifier.contains(version) for version in have), f"{line}: {have}; docker/lock.sh"
    assert locked(BASE).keys() <= versions.keys(), "an extra would leave out what the package needs"


def test_no_two_lock_files_name_different_versions() -> None:
    """So that they can be installed together, and instances run what the tests pass with."""
    files = {name: locked(name) for name in (*EXTRAS, BUILD)}
    apart = {f"docker/requirements-{name}.txt" for name in APART}
    for (first, of_first), (second, of_second) in itertools.combinations(files.items(), 2):
        both = {name: (of_first[name], of_second[name]) for name in of_first.keys() & of_second.keys()}
        differ = {name: pair for name, pair in both.items() if pair[0] != pair[1]}
        assert not differ or {first, second} <= apart, f"{first} and {second}"
