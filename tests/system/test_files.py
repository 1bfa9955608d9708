"""Files are replaced in one way: in one step, through symbolic links, with the mode they had, and only regular ones."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dl4jlegacy.cli import main
from dl4jlegacy.datasets import mnist
from dl4jlegacy.errors import DataError, ModelError
from dl4jlegacy.nn import MultiLayerNetwork, write_model, zoo
from dl4jlegacy.storage.folders import LocalFolder
from dl4jlegacy.system import files


def save_model(path: Path) -> None:
    write_model(MultiLayerNetwork(zoo.mlp(3, 2, hidden=(2,))).init(), path)


def draw(path: Path) -> None:
    with pytest.raises(SystemExit) as leave:
        main.main(["summary", "mlp", "--svg", str(path)])
    if leave.value.code:
        raise OSError


WRITERS: dict[str, Callable[[Path], None]] = {
    "model": save_model,
    "drawing": draw,
    "checkpoint": lambda path: LocalFolder(path.parent).write(path.name, b"content"),
    "download": lambda path: mnist._store(b"content", path),
    "any": lambda path: files.write(path, b"content"),
}
writers = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())


@writers
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755])
def test_a_file_that_is_replaced_keeps_its_mode(write, mode, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(mode)
    write(path)
    assert path.read_bytes() != b"old"
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("write", [w for name, w in WRITERS.items() if name != "checkpoint"])
def test_a_symbolic_link_stays_and_what_it_leads_to_is_replaced(write, tmp_path):
    (tmp_path / "there").mkdir()
    target, link, dangling = tmp_path / "there" / "file", tmp_path / "link", tmp_path / "dangling"
    target.write_bytes(b"old")
    link.symlink_to(Path("there", "file"))
    dangling.symlink_to(Path("there", "new"))
    write(link)
    write(dangling)
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert target.read_bytes() != b"old"
    assert sorted(os.listdir(tmp_path / "there")) == ["file", "new"]


@writers
@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "link to a pipe", "link to itself"])
def test_only_a_regular_file_is_replaced(write, kind, tmp_path):
    path = tmp_path / "it"
    if kind == "link to itself":
        path.symlink_to("it")
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{short}/s")
            os.rename(f"{short}/s", path)
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to("pipe") if kind.startswith("link") else os.rename(tmp_path / "pipe", path)
    before = os.lstat(path)
    names = sorted(os.listdir(tmp_path))
    with pytest.raises((OSError, ModelError)):
        write(path)
    after = os.lstat(path)
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert sorted(os.listdir(tmp_path)) == names


def test_a_device_is_neither_replaced_nor_read_and_training_says_so_before_it_begins(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "null").symlink_to("/dev/null")
    for path in ("/dev/null", "null"):
        with pytest.raises(SystemExit) as leave:
            main.main(["train", "--dataset", "iris", "--epochs", "100000", "--out", path])
        assert leave.value.code == 8
        assert "device, pipe or socket, not a regular file" in capsys.readouterr().err
        with pytest.raises(OSError, match="not a regular file"):
            files.read(path)
    assert Path("/dev/null").is_char_device()


def test_a_file_is_read_whole_or_not_at_all_whatever_its_size_is_said_to_be(tmp_path):
    path = tmp_path / "x"
    for content in (b"", b"a", bytes(range(256)) * 9000):
        path.write_bytes(content)
        assert files.read(path) == files.read(path, most=len(content)) == content
        if content:
            assert files.read(path, most=len(content) - 1) is None
    assert b"VmPeak" in files.read("/proc/self/status")  # whose size is 0


def test_a_file_that_grows_or_shrinks_while_it_is_read_is_read_to_its_end(tmp_path, monkeypatch):
    path, read = tmp_path / "x", os.read
    for begun, then in ((b"a" * 10, b"a" * (3 << 20)), (b"a" * 10, b"aaa"), (b"a" * 10, b"")):
        path.write_bytes(begun)

        def changed(descriptor, nbytes, then=then):
            monkeypatch.setattr(os, "read", read)
            path.write_bytes(then)
            return read(descriptor, nbytes)

        monkeypatch.setattr(os, "read", changed)
        assert files.read(path) == then


def test_a_private_file_is_its_owners_only_whatever_it_was(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    path.chmod(0o644)
    files.write(path, b"new", private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_longest_name_that_a_folder_takes_can_be_written(tmp_path):
    files.write(tmp_path / ("x" * 255), b"")
    files.check_replaceable(tmp_path / ("ä" * 127))
    for check in (files.check_replaceable, lambda path: files.write(path, b"")):
        with pytest.raises(OSError, match="File name too long"):
            check(tmp_path / ("x" * 256))
    assert len(os.listdir(tmp_path)) == 1


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "x"
    files.write(path, b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_what_the_file_system_says_becomes_one_error_in_words(tmp_path):
    words = "the file x cannot be read: No such file or directory; look again"
    with pytest.raises(DataError, match=words), files.errors_as(DataError, "the file x cannot be read", "look again"):
        files.read(tmp_path / "x")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("a\0b", "zero byte"),
        ("\ud800", "no text that a file system can hold"),
        ("x" * 300, "File name too long"),
        ("/".join(["x" * 200] * 30), "File name too long"),
    ],
)
def test_a_path_that_no_file_system_takes_is_an_error_in_words(path, words):
    for use in (files.read, files.kind_of, files.check_replaceable, files.names_in, lambda p: files.write(p, b"")):
        with pytest.raises(OSError) as error:
            use(path)
        assert words in str(error.value.strerror)


def test_a_user_who_does_not_exist_has_no_home():
    with pytest.raises(OSError, match="there is no home folder for ~nosuchuser"):
        files.expand("~nosuchuser/model.zip")
