"""What instances install: nothing without a hash, and the same package that runs here."""

from __future__ import annotations

from pathlib import Path

import pytest

from dl4jlegacy.aws.payload import load_payload
from dl4jlegacy.errors import ConfError
from tests.support import REPOSITORY

HASH = f"--hash=sha256:{'0' * 64}"
LOCKED = f"""\
# written by a program

numpy==2.4.6 ; python_full_version < '3.12' \\
    {HASH} \\
    --hash=sha256:{"1" * 64}
    # via dl4jlegacy
six==1.17.0 {HASH}
"""


@pytest.fixture
def wheel(tmp_path: Path) -> str:
    path = tmp_path / "dl4jlegacy-0.1.0-py3-none-any.whl"
    path.write_bytes(b"a wheel")
    return str(path)


def test_the_lock_file_is_this_packages_own_unless_another_is_given(wheel: str, tmp_path: Path) -> None:
    own = (REPOSITORY / "dl4jlegacy" / "aws" / "requirements.txt").read_bytes()
    assert load_payload(wheel).requirements == own
    (tmp_path / "own.txt").write_bytes(own)
    assert load_payload(wheel, str(tmp_path / "own.txt")).requirements == own
    for text in (LOCKED, LOCKED.replace("\n", "\r\n")):
        (tmp_path / "locked.txt").write_bytes(text.encode())
        assert load_payload(wheel, str(tmp_path / "locked.txt")).requirements == text.encode()


@pytest.mark.parametrize(
    "line",
    [
        "numpy==2.4.6",
        f"numpy>=2.4.6 {HASH}",
        f"numpy {HASH}",
        f"numpy==2.4.6 {HASH[:-1]}",
        f"numpy==2.4.6 --hash=md5:{'0' * 32}",
        f"numpy==2.4.6 # {HASH}",
        f"numpy==2.4.6 ; python_version < '3.12' # {HASH}",
        "--index-url https://example.com/simple",
        "--requirement other.txt",
        f"numpy @ https://example.com/numpy.whl {HASH}",
        "./numpy.whl",
        "n\udcffmpy==1",
    ],
)
def test_a_line_without_version_or_hash_is_refused_by_its_number(line: str, wheel: str, tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_bytes(f"{LOCKED}{line}\n".encode(errors="surrogateescape"))
    with pytest.raises(ConfError, match=r"requirements\.txt: line 8, .* is not NAME==VERSION --hash=sha256:"):
        load_payload(wheel, str(path))


def test_a_file_that_locks_nothing_is_refused(wheel: str, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(ConfError, match="it has no line like NAME==VERSION"):
        load_payload(wheel, str(tmp_path / "empty.txt"))
    with pytest.raises(ConfError, match=r"no-such\.txt cannot be read"):
        load_payload(wheel, str(tmp_path / "no-such.txt"))
