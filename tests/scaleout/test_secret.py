"""Where a run's secret comes from, and that no message shows it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dl4jlegacy.errors import ConfError
from dl4jlegacy.system.secret import GET_SECRET, MAKE_SECRET, read_secret


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_bytes(b"a secret in a file\r\n")
    return path


def test_without_any_there_is_no_secret() -> None:
    assert read_secret({}) is None


def test_a_file_that_is_named_by_an_empty_variable_is_not_taken_for_no_secret() -> None:
    with pytest.raises(ConfError, match="DL4J_SECRET_FILE is empty"):
        read_secret({"DL4J_SECRET_FILE": "", "DL4J_SECRET": "in the environment"})


def test_a_secret_that_can_be_guessed_is_warned_of_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    read_secret({"DL4J_SECRET": "x" * 16})
    assert not caplog.text
    read_secret({"DL4J_SECRET": "hush" * 3})
    assert "DL4J_SECRET has 12 bytes" in caplog.text and "hush" not in caplog.text


def test_a_file_wins_over_the_environment_and_a_given_one_over_a_named_one(secret_file: Path, tmp_path: Path) -> None:
    environ = {"DL4J_SECRET": "in the environment"}
    assert read_secret(environ) == b"in the environment"
    assert read_secret({**environ, "DL4J_SECRET_FILE": str(secret_file)}) == b"a secret in a file"
    assert read_secret({**environ, "DL4J_SECRET_FILE": str(tmp_path / "missing")}, secret_file) == b"a secret in a file"


def test_a_file_that_others_can_read_is_warned_of(secret_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    read_secret({}, secret_file)
    assert not caplog.text
    secret_file.chmod(0o644)
    read_secret({}, secret_file)
    assert "chmod 600" in caplog.text


def test_an_empty_secret_is_refused(secret_file: Path) -> None:
    with pytest.raises(ConfError, match="DL4J_SECRET is empty"):
        read_secret({"DL4J_SECRET": ""})
    secret_file.write_bytes(b"\n")
    with pytest.raises(ConfError, match="secret is empty"):
        read_secret({}, secret_file)


def test_a_file_that_cannot_be_the_secret_is_refused_and_not_shown(secret_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfError, match="No such file"):
        read_secret({"DL4J_SECRET_FILE": str(tmp_path / "missing")})
    with pytest.raises(ConfError, match="Is a directory"):
        read_secret({}, tmp_path)
    secret_file.write_bytes(b"hush" * 2000)
    with pytest.raises(ConfError, match="longer than 4096 bytes") as e:
        read_secret({}, secret_file)
    assert "hush" not in str(e.value)


def test_the_command_that_makes_a_secret_never_overwrites_one(tmp_path: Path) -> None:
    command = MAKE_SECRET.split("`")[1]
    made, environ = [], {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    for is_first in (True, False):
        done = subprocess.run(["/bin/sh", "-c", command], env=environ, capture_output=True, timeout=60)
        assert (done.returncode == 0) is is_first, done.stderr
        made.append(read_secret({"DL4J_SECRET_FILE": str(tmp_path / "dl4j.secret")}))
    assert made[0] == made[1] and len(made[0] or b"") >= 32
    assert (tmp_path / "dl4j.secret").stat().st_mode & 0o777 == 0o600


def test_a_copy_is_named_before_a_new_secret() -> None:
    assert GET_SECRET.startswith("copy the file of the run's secret") and "urandom" in MAKE_SECRET
    assert GET_SECRET.endswith(f"only where no machine has one yet, {MAKE_SECRET}")
