"""The check of MNIST's files, with the real ones: whole, and with one byte changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dl4jlegacy.datasets.mnist import find_idx_files
from dl4jlegacy.doctor import Settings
from dl4jlegacy.doctor.folders import mnist

pytestmark = [pytest.mark.mnist, pytest.mark.long]


def test_whole_files_are_whole_and_a_changed_byte_is_seen(mnist_dir: str, tmp_path: Path) -> None:
    folder = Path(mnist_dir or Path.home() / ".deeplearning4j")
    found = mnist(Settings(data_dir=str(folder)))
    assert (found.status, found.found) == ("ok", f"all four files are in {folder}, and whole")
    for name, path in find_idx_files(folder).items():
        (tmp_path / path.name).symlink_to(path)
        if name == "t10k-labels-idx1-ubyte":
            content = bytearray(path.read_bytes())
            content[-5] ^= 1
            (tmp_path / path.name).unlink()
            (tmp_path / path.name).write_bytes(content)
    found = mnist(Settings(data_dir=str(tmp_path)))
    assert found.status == "warning" and "t10k-labels" in found.found
