"""Lock files: exact versions with hashes of all that ``setup.cfg`` asks for, and one version everywhere."""

from __future__ import annotations

import configparser
import re

import pytest
from packaging.requirements import Requirement

from tests.support import REPOSITORY

BASE = "docker/requirements.txt"
INSTANCES = "dl4jlegacy/aws/requirements.txt"
EXTRAS = {
    BASE: (),
    "docker/requirements-aws.txt": ("aws",),
    "docker/requirements-dev.txt": ("dev",),
    INSTANCES: ("aws", "services"),
}
OTHERS = ["docker/requirements-build.txt", "docker/requirements-gpu.txt"]  # of files that end with .in


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


def test_every_lock_file_is_known_here() -> None:
    found = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "docker").glob("requirements*.txt")}
    assert found | {INSTANCES} == {*EXTRAS, *OTHERS}
    written = (REPOSITORY / "docker" / "lock.sh").read_text(encoding="utf-8")
    assert set(re.findall(r"^lock (\S+)", written, flags=re.M)) == {*EXTRAS, *OTHERS}


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
    assert not {name for name, version in locked(BASE).items() if versions[name] != version}, (
        "an extra would replace what the image has"
    )


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_lock_files_have_hashes_too(name: str) -> None:
    base = locked(BASE)
    assert all(base[name] == versions for name, versions in locked(name).items() if name in base)


def test_instances_get_what_the_laptop_gets() -> None:
    assert locked("docker/requirements-aws.txt").items() <= locked(INSTANCES).items()
