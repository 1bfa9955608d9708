"""What others put in the way of a run's files is neither followed, nor believed, nor executed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors.numpy

from dl4jlegacy.cli import main
from dl4jlegacy.errors import CheckpointError, ConfError, Dl4jError, TrackerError
from dl4jlegacy.kernels.numba import compile as numba_compile
from dl4jlegacy.observing.tensorboard import _EventFile
from dl4jlegacy.scaleout import saved_run
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore, _signed
from dl4jlegacy.services import Services, ServicesState
from dl4jlegacy.services.jars import locked
from dl4jlegacy.services.state import Server
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.storage.folders import LOCK, LocalFolder
from dl4jlegacy.system import files, ownership

NOBODY = 65534
as_another_user = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can be another user of this machine for a test"
)


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file that must stay as it is."""
    path = tmp_path / "victim"
    path.write_bytes(b"precious\n")
    yield path
    assert path.read_bytes() == b"precious\n"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder of root's to which everybody may write, which others reach, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="dl4j-shared-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def stranger(line: str) -> None:
    """Execute a line of shell as another user of this machine."""
    subprocess.run(["/bin/sh", "-c", line], user=NOBODY, group=NOBODY, extra_groups=[], check=True, timeout=60)


# -- beneath a run's folder --------------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[LocalFolder, str], object]] = {
    "read": lambda folder, name: folder.read(name),
    "read_lines": lambda folder, name: folder.read_lines(name),
    "read_new_lines": lambda folder, name: folder.read_new_lines(name, None),
    "write": lambda folder, name: folder.write(name, b"ours"),
    "append": lambda folder, name: folder.append(name, b"ours\n"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("leads_to", ["victim", "nothing", "itself", "dev/null"])
def test_no_link_in_a_runs_folder_is_followed(operation: str, leads_to: str, victim: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    target = {"victim": victim, "nothing": tmp_path / "new", "itself": run / "name", "dev/null": Path("/dev/null")}
    (run / "name").symlink_to(target[leads_to])
    with pytest.raises(OSError, match="it is a symbolic link, and none is followed there"):
        OPERATIONS[operation](LocalFolder(run), "name")
    LocalFolder(run).delete("name")
    assert os.listdir(run) == [] and not (tmp_path / "new").exists()


def test_the_lock_of_a_runs_folder_is_no_link(victim: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / LOCK).symlink_to(victim)
    with pytest.raises(CheckpointError, match=r"run cannot be written: it is a symbolic link"):
        CheckpointStore(run).keep_conf(Conf(run="r"))
    assert LocalFolder(run).holder() == ""
    with pytest.raises(OSError, match="symbolic link"):
        files.open_lock(run / LOCK)
    with pytest.raises(OSError, match="symbolic link"), locked(run / LOCK, 1.0, ""):
        pass


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", ["../victim", "{victim}", "..", ".", "", "sub/file"])
def test_a_name_that_leads_out_of_the_folder_is_none(operation: str, name: str, victim: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "sub").mkdir(parents=True)
    (tmp_path / "run" / "sub" / "file").touch()
    with pytest.raises(OSError, match="is no name of a file in this folder"):
        OPERATIONS[operation](LocalFolder(tmp_path / "run"), name.format(victim=victim))


def test_the_folder_itself_may_be_reached_by_a_link_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    folder = LocalFolder(tmp_path / "link")
    folder.write("x", b"1")
    folder.append("x", b"2\n")
    assert folder.read("x") == b"1\n2\n" and folder.names() == ["x"] and folder.lock("")
    folder.release()


def test_a_conf_that_is_a_link_begins_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "conf.json").write_text(Conf(run="r").to_json())
    (tmp_path / "run" / "conf.json").symlink_to("../conf.json")
    with pytest.raises(CheckpointError, match="symbolic link"):
        saved_run.find_conf(str(tmp_path / "run"))
    assert saved_run.find_conf(str(tmp_path / "nothing")) is None


@pytest.mark.parametrize("kind", ["relative", "absolute"])
def test_a_manifest_names_files_of_its_folder_only(kind: str, tmp_path: Path) -> None:
    """A file elsewhere was read, and said to be the run's model."""
    tensors = safetensors.numpy.save({"params": np.zeros(3, np.float32)})
    (tmp_path / "elsewhere").write_bytes(tensors)
    name = {"relative": "../elsewhere", "absolute": str(tmp_path / "elsewhere")}[kind]
    model = {"file": name, "nbytes": len(tensors), "sha256": hashlib.sha256(tensors).hexdigest()}
    body = {"format": "dl4jlegacy-checkpoint-1", "values": {}, "arrays": ["params"], "model": model}
    LocalFolder(tmp_path / "run").write("checkpoint-00000001.json", _signed(body))
    with pytest.raises(CheckpointError, match="is no name of a file in this folder"):
        CheckpointStore(tmp_path / "run").model(1)


def test_the_events_for_tensorboard_go_into_no_link(victim: Path, tmp_path: Path) -> None:
    events = _EventFile(tmp_path / "events", type("Format", (), {"start": lambda self, step: b""})())
    (tmp_path / "events").mkdir()
    events._path = tmp_path / "events" / "file"
    events._path.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        events.append(0, b"record")


# -- as another user of the same machine -------------------------------------------------------------------------------


@as_another_user
@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        (LOCK, 8, "symbolic link"),
        ("conf.json", 8, "symbolic link"),
        ("history.jsonl", 0, "history.jsonl cannot be written"),  # only tells of the run, and is left out
    ],
)
def test_a_training_touches_nothing_that_a_strangers_link_leads_to(
    name: str, status: int, said: str, victim: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger(f"ln -s {victim} {shared}/{name}")
    train = ["train", "--dataset", "iris", "--epochs", "1", "--workers", "1", "--checkpoint-dir", str(shared)]
    with pytest.raises(SystemExit) as ended:
        main.main([*train, "--out", str(victim.parent / "model.zip")])
    assert (ended.value.code or 0) == status and said in capsys.readouterr().err


@as_another_user
@pytest.mark.parametrize("mode", ["600", "644", "666"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_strangers_file_in_a_folder_that_is_open_to_all_is_refused(mode: str, operation: str, shared: Path) -> None:
    stranger(f"echo theirs > {shared}/name; chmod {mode} {shared}/name")
    with pytest.raises(OSError, match=r"it is a file of user nobody, and everybody may write to .*remove it"):
        OPERATIONS[operation](LocalFolder(shared), "name")


@as_another_user
def test_a_strangers_folder_is_taken_unless_everybody_may_write_to_it(shared: Path) -> None:
    """A team's folder, or that of another user of a container's host, is no trap."""
    stranger(f"mkdir {shared}/theirs; echo theirs > {shared}/theirs/name; chmod 644 {shared}/theirs/name")
    folder = LocalFolder(shared / "theirs")
    folder.append("name", b"ours\n")
    assert folder.read("name") == b"theirs\nours\n"
    (shared / "theirs").chmod(0o777)
    for use in (folder.names, lambda: folder.read("name"), lambda: folder.lock("")):
        with pytest.raises(OSError, match=r"it is a folder of user nobody, and everybody may write to it; take one of"):
            use()


@as_another_user
@pytest.mark.parametrize("place", ["{}/link", "{}/folder/new"])
def test_a_model_is_written_through_no_strangers_link(place: str, victim: Path, shared: Path) -> None:
    stranger(f"ln -s {victim} {shared}/link; ln -s {victim.parent} {shared}/folder")
    path = place.format(shared)
    for write in (files.check_replaceable, lambda path: files.write(path, b"ours")):
        with pytest.raises(OSError, match="is a symbolic link of user nobody, and not followed"):
            write(path)
    with pytest.raises(Dl4jError, match=r"cannot be written.* symbolic link of user nobody"):
        storage.open_output(path)
    assert not (victim.parent / "new").exists()


@as_another_user
def test_a_runs_folder_is_reached_by_no_strangers_link(victim: Path, shared: Path) -> None:
    stranger(f"ln -s {victim.parent} {shared}/run")
    folder = LocalFolder(shared / "run")
    for use in (lambda: folder.write("x", b""), lambda: folder.append("x", b""), lambda: folder.lock("")):
        with pytest.raises(OSError, match="is a symbolic link of user nobody"):
            use()
    assert os.listdir(victim.parent) == ["victim"]


@as_another_user
def test_compiled_kernels_come_from_no_folder_of_a_stranger(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba reads pickles there."""
    stranger(f"mkdir {shared}/cache")
    for folder, words in ((shared, "everybody may write to it"), (shared / "cache", "it is of user nobody")):
        monkeypatch.setattr(numba_compile, "cache_folder", lambda folder=folder: folder)
        with pytest.raises(ConfError, match=f"{words}.*NUMBA_CACHE_DIR"):
            numba_compile._check_cache_folder.__wrapped__()
    monkeypatch.undo()
    numba_compile._check_cache_folder.__wrapped__()


# -- what local servers are started from -------------------------------------------------------------------------------


def planted(folder: Path, marker: Path) -> bytes:
    """What lets ``services up`` execute a command: a server that has ended, beside one that runs."""
    ended = {"pid": 1, "mark": "another start"}
    stat = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    lives = {"pid": os.getpid(), "mark": f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{stat}"}
    servers = [
        {"name": "zookeeper", "port": 20_001, "command": ["/bin/sh", "-c", f"touch {marker}"], "process": ended},
        {"name": "hazelcast-1", "port": 20_002, "command": ["/bin/true"], "process": lives},
    ]
    return json.dumps({"cluster_name": "c", "folder": str(folder), "servers": servers}).encode()


@pytest.fixture
def refused(tmp_path: Path) -> Iterator[Callable[[Path, str], None]]:
    """Check that nothing is read, started or ended in a folder, and that the message says why."""

    def check(folder: Path, words: str) -> None:
        for use in (Services.status, Services.last, Services.up, Services.down, Services.start_stopped):
            with pytest.raises(TrackerError, match=words):
                use(folder=folder)
        with pytest.raises(TrackerError, match=words):
            Services.restart("zookeeper", folder)

    yield check
    assert not (tmp_path / "marker").exists()


@as_another_user
def test_a_strangers_list_of_servers_is_left_alone(refused, shared: Path, tmp_path: Path) -> None:
    content = planted(shared / "s", tmp_path / "marker").decode()
    stranger(f"mkdir -m 755 {shared}/s; cat > {shared}/s/services.json <<'END'\n{content}\nEND")
    refused(shared / "s", r"it is of user nobody, and this is user root; nothing is executed from there")


@as_another_user
def test_a_strangers_list_of_servers_in_ones_own_folder_is_left_alone(refused, shared: Path, tmp_path: Path) -> None:
    content = planted(shared, tmp_path / "marker").decode()
    stranger(f"cat > {shared}/services.json <<'END'\n{content}\nEND")
    shared.chmod(0o755)
    refused(shared, r"services.json: it is (of|a file of) user nobody|cannot be used")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_of_servers_to_which_others_may_write_is_left_alone(refused, tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "services.json").write_bytes(planted(folder, tmp_path / "marker"))
    folder.chmod(mode)
    refused(folder, r"others may write to it, and what it says is executed; 'chmod go-w' it")


def test_a_list_of_servers_that_is_a_link_is_left_alone(refused, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    (tmp_path / "list").write_bytes(planted(folder, tmp_path / "marker"))
    (folder / "services.json").symlink_to("../list")
    refused(folder, "symbolic link")


def test_ones_own_list_of_servers_is_read(tmp_path: Path) -> None:
    state = ServicesState(cluster_name="c", folder=str(tmp_path), servers=(Server(name="z", port=1, command=()),))
    (tmp_path / "services.json").write_bytes(msgspec.json.encode(state))
    assert Services.last(tmp_path) == state


def test_links_of_ones_own_lead_anywhere_even_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    ownership.check_links(tmp_path / "a" / "x")
    assert ownership.user(0) == "user root" and ownership.user(4_000_000_000) == "user 4000000000"
