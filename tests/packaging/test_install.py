"""``./install`` on machines that lack something: every program that it calls is a script that notes the call."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PYTHON = """#!/bin/sh
# a Python: ENSUREPIP says whether it has ensurepip; there is pip where the file `pip` lies beside its environment;
# what FAILS begins with what it does and ends with status 1, saying SAYS
case "$*" in
    "-c "*) ;;
    *) echo "python $*" | sed "s,$TMPDIR/tmp[^/ ]*,ASIDE,g" >> "$NOTES" ;;
esac
case "$*" in
    "-c "*"version_info"*) [ "$FAILS" != old ]; exit ;;
    "-c "*"platform"*) echo 3.9.2; exit ;;
    "-c "*) exec "$REAL" "$@" ;;
    "-m venv "*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m pip --version") [ -e .venv/pip ] ;;
    "-m ensurepip --default-pip") [ "$ENSUREPIP" = yes ] && touch .venv/pip ;;
    */pip-1.whl/pip" install "*) touch .venv/pip ;;
esac || exit 1
case "$*" in
    "-m $FAILS "*) echo "$SAYS" >&2; exit 1 ;;
    "-m pip install "*--require-hashes*) echo "Collecting a"; echo "  Downloading a-1.whl (700.1 MB)"
        echo "  Using cached b-2.whl (1 kB)"; echo "Installing collected packages: a, b" ;;
esac
"""
APT_GET = """#!/bin/sh
for word; do case "$word" in update|download) echo "apt-get $word" >> "$NOTES"; verb=$word ;; esac; done
[ "$ARCHIVE" = there ] || { echo "$SAYS" >&2; exit 100; }
[ "$verb" = update ] || touch python3-pip-whl_1_all.deb
"""
DPKG_DEB = """#!/bin/sh
mkdir -p "$3/usr/share/python-wheels" && touch "$3/usr/share/python-wheels/pip-1.whl"
"""
NEEDED = ("sh", "dirname", "rm", "mkdir", "touch", "cp", "id", "mktemp", "sed", "tee", "grep", "tr", "cat", "sort")

Install = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def install(tmp_path: Path, repository: Path) -> Install:
    """Run ``./install dev``; return its exit status, the calls that it made, and what it said."""
    for name in ("install", "setup.cfg"):
        shutil.copy(repository / name, tmp_path)
    (tmp_path / "docker").mkdir()
    for path in (repository / "docker").glob("requirements*.txt"):
        shutil.copy(path, tmp_path / "docker")
    programs, notes = tmp_path / "programs", tmp_path / "notes"
    programs.mkdir()
    (tmp_path / "temporary").mkdir()
    for name in NEEDED:
        (programs / name).symlink_to(str(shutil.which(name)))
    for name, text in (("python3", PYTHON), ("apt-get", APT_GET), ("dpkg-deb", DPKG_DEB)):
        (programs / name).write_text(text, encoding="ascii")
        (programs / name).chmod(0o755)

    def run(
        *extras: str, ensurepip: str = "no", archive: str = "there", fails: str = "nothing", says: str = ""
    ) -> tuple[int, list[str], str]:
        notes.write_text("", encoding="ascii")
        temporary = str(tmp_path / "temporary")
        env = {"PATH": str(programs), "NOTES": str(notes), "TMPDIR": temporary, "ENSUREPIP": ensurepip}
        env |= {"ARCHIVE": archive, "FAILS": fails, "SAYS": says, "REAL": sys.executable}
        command = [str(tmp_path / "install"), *(extras or ("dev",))]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert not list((tmp_path / "temporary").iterdir()), "something was left behind"
        return done.returncode, notes.read_text(encoding="utf-8").splitlines(), done.stderr

    return run


VENV = "python -m venv --clear --without-pip .venv"
HAS_PIP = "python -m pip --version"
UNPACKED = "python ASIDE/usr/share/python-wheels/pip-1.whl/pip install --quiet --no-index --no-deps --ignore-installed"
PIP_INSTALL = "python -m pip install --disable-pip-version-check"
AS_IT_IS = "--config-settings editable_mode=compat --editable"
PROJECT = f"{PIP_INSTALL} --no-deps --no-build-isolation --use-pep517 {AS_IT_IS} ."
HASHES = f"{PIP_INSTALL} --require-hashes --only-binary :all:"


def locked(*extras: str) -> str:
    """The call that installs all that the package and some extras need, held against its hashes."""
    files = (f"--requirement docker/requirements{extra}.txt" for extra in ("", "-build", *(f"-{e}" for e in extras)))
    return " ".join((HASHES, *files))


LOCKED = locked("dev")
KERNELS = "python -m dl4jlegacy warm-up"


def test_a_python_with_ensurepip_needs_nothing_else(install: Install) -> None:
    status, calls, said = install(ensurepip="yes")
    assert (status, calls) == (
        0,
        [VENV, HAS_PIP, "python -m ensurepip --default-pip", HAS_PIP, LOCKED, PROJECT, KERNELS],
    )
    lines = said.splitlines()
    count = lines[3].partition(" of ")[2].partition(" ")[0]
    assert 150 < int(count) < 300, "packages of dev, each once"
    assert lines[3:6] == [
        f"install:   file 1 of {count} at most: Downloading a-1.whl (700.1 MB)",
        f"install:   file 2 of {count} at most: Using cached b-2.whl (1 kB)",
        "install:   unpacking all of them",
    ]
    assert [line[:22] for line in lines[:3] + lines[6:]] == [
        *(f"install: step {n} of 4: " for n in "1234"),
        "install: done: type '.",
    ]
    status, calls, said = install()
    assert (status, calls) == (0, [HAS_PIP, LOCKED, PROJECT, KERNELS]), "the environment is kept"
    assert [line[:22] for line in said.splitlines() if not line.startswith("install:   ")] == [
        "install: step 3 of 4: ",
        "install: step 4 of 4: ",
        "install: done: type '.",
    ]


def test_nothing_is_installed_without_a_hash_and_several_extras_may_be_words_of_their_own(install: Install) -> None:
    for words in (("dev", "aws"), ("dev,aws",)):
        status, calls, said = install(*words, ensurepip="yes")
        assert (status, calls[-3:]) == (0, [locked("dev", "aws"), PROJECT, KERNELS]), said


def test_the_newest_versions_are_taken_where_that_is_asked_for(install: Install) -> None:
    for words in (("--newest", "dev", "aws"), ("dev,aws", "--newest")):
        assert install(*words, ensurepip="yes")[1][-2:] == [f"{PIP_INSTALL} {AS_IT_IS} .[dev,aws]", KERNELS]


@pytest.mark.parametrize(
    "says", ["ERROR: No matching distribution found for x==1", "THESE PACKAGES DO NOT MATCH THE HASHES"]
)
def test_where_the_index_has_not_what_is_locked_the_newest_can_be_had(says: str, install: Install) -> None:
    status, calls, said = install("dev", ensurepip="yes", fails="pip install", says=says)
    assert status == 1 and calls[-1] == LOCKED
    assert "/install --newest dev'" in said.splitlines()[-1]


def test_debians_python_gets_debians_pip_without_root(install: Install) -> None:
    status, calls, said = install()
    wheel = f"{UNPACKED} ASIDE/usr/share/python-wheels/pip-1.whl"
    assert calls[2:] == [
        "python -m ensurepip --default-pip",
        "apt-get update",
        "apt-get download",
        wheel,
        HAS_PIP,
        LOCKED,
        PROJECT,
        KERNELS,
    ]
    assert (status, calls[:2]) == (0, [VENV, HAS_PIP])
    assert "install: this Python comes without pip; unpacking the package python3-pip-whl into .venv\n" in said


def test_an_environment_that_lost_its_pip_is_mended(install: Install, tmp_path: Path) -> None:
    assert install()[0] == 0
    (tmp_path / ".venv" / "pip").unlink()
    (tmp_path / ".venv" / "mine").touch()
    status, calls, _ = install()
    assert (status, calls[-2:]) == (0, [PROJECT, KERNELS])
    assert VENV not in calls and (tmp_path / ".venv" / "mine").exists()


def test_what_only_an_administrator_can_do_is_said_word_for_word(install: Install, tmp_path: Path) -> None:
    status, calls, said = install(archive="away")
    assert (status, calls[-1]) == (1, "apt-get update")
    assert "let an administrator type 'apt-get install python3-venv'" in said
    assert not (tmp_path / ".venv").exists()


FULL = "OSError: [Errno 28] No space left on device: '/x'"
CASES = {  # what fails, what it says, and what is to be typed then
    "no network": (
        "pip install",
        "NewConnectionError: Failed to establish a new connection",
        "https_proxy=",
        "and type '{}'",
    ),
    "no index": (
        "pip install",
        "ERROR: No x>=1 (from versions: none)",
        "https_proxy=",
        "and type '{}'",
        "--newest dev'",
    ),
    "no space for the environment": ("venv", FULL, "'df -h . ", "and type '{}'"),
    "no space for pip": ("pip install", FULL, "'df -h . ", "and type '{}'"),
    "folder of somebody else": ("venv", "[Errno 13] Permission denied: '.venv'", "type 'cp -R ", "/install dev'"),
    "read-only folder": ("venv", "[Errno 30] Read-only file system: '.venv'", "type 'cp -R ", "/install dev'"),
    "something else": ("pip install", "ERROR: Failed to build it", "for the reason above", "and type '{}'"),
    "old Python": ("old", "", "python3 is 3.9.2", "'apt-get install python3.11'", "and type '{}'"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_failure_says_what_to_type_leaves_nothing_and_can_be_repeated(
    case: str, install: Install, tmp_path: Path
) -> None:
    fails, says, *words = CASES[case]
    status, _, said = install(ensurepip="yes", fails=fails, says=says)
    assert status == 1 and says in said
    last = said.splitlines()[-1]
    for word in words:
        assert word.format(f"{tmp_path}/install dev") in last
    assert not (tmp_path / ".venv").exists(), "an environment that this run began"
    assert install(ensurepip="yes")[0] == 0


def test_kernels_that_cannot_be_compiled_are_left_to_the_first_run(install: Install, tmp_path: Path) -> None:
    status, calls, said = install(ensurepip="yes", fails="dl4jlegacy", says="no compiler for this processor")
    assert (status, calls[-1]) == (0, KERNELS) and (tmp_path / ".venv").exists()
    cause, remedy, done = said.splitlines()[-3:]
    assert cause == "no compiler for this processor" and done.startswith("install: done: type '")
    assert "a model's first run compiles what it needs" in remedy and "dl4j doctor'" in remedy


def test_a_failure_leaves_the_environment_that_was_there(install: Install, tmp_path: Path) -> None:
    assert install()[0] == 0
    (tmp_path / ".venv" / "mine").touch()
    assert install(fails="pip install", says=FULL)[0] == 1
    assert (tmp_path / ".venv" / "mine").exists()
    assert install()[0] == 0


def test_debians_archive_that_cannot_be_reached_is_a_matter_of_the_network(install: Install, tmp_path: Path) -> None:
    status, _, said = install(archive="away", says="E: Failed to fetch http://deb.debian.org/x  Temporary failure")
    assert status == 1 and "https_proxy=" in said.splitlines()[-1] and not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        (("devel",), "no extra 'devel'; there are aws, dev"),
        (("dev", "aw"), "no extra 'aw'; there are aws, dev"),
        (("--lock", "dev"), "--newest for the newest versions"),
    ],
)
def test_extras_that_there_are_not_are_refused_before_anything_is_made(
    extras: tuple[str, ...], words: str, install: Install, tmp_path: Path
) -> None:
    status, calls, said = install(*extras)
    assert status == 1 and words in said and said.count("\n") == 1
    assert not calls and not (tmp_path / ".venv").exists()


def test_help_lists_every_extra_and_makes_nothing(install: Install, tmp_path: Path) -> None:
    setup = configparser.ConfigParser()
    setup.read(tmp_path / "setup.cfg", encoding="utf-8")
    for word in ("--help", "-h", "help"):
        status, calls, _ = install(word)
        assert (status, calls) == (0, []) and not (tmp_path / ".venv").exists()
    done = subprocess.run([str(tmp_path / "install"), "--help"], capture_output=True, text=True, timeout=60)
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith("  ")]
    assert [name for name, *_ in lines] == sorted(setup["options.extras_require"]) and all(
        len(line) == 2 for line in lines
    )
