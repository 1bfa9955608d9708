"""A run's folder in S3: one process has it at a time, and whoever lost it changes nothing there any more."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.aws import on_instance
from dl4jlegacy.errors import CheckpointError, CloudError, ConfError
from dl4jlegacy.scaleout import saved_run
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore, RunIdentity
from dl4jlegacy.scaleout.persistence.history import HistoryFile
from dl4jlegacy.scaleout.persistence.journal import Journal, JournalFile
from dl4jlegacy.scaleout.persistence.jsonl import JsonlWriter
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
from dl4jlegacy.storage.folders import LOCK, Folder, LocalFolder
from dl4jlegacy.storage.s3 import folder as s3_folder
from dl4jlegacy.storage.s3.folder import Claim, S3Folder
from dl4jlegacy.storage.s3.locations import Location
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.ui.run_sources import RunFiles
from tests.aws.test_s3 import run
from tests.scaleout.test_checkpoint import frame, head
from tests.support.aws_fixtures import Fault, FaultProxy, impatient
from tests.support.dashboards import history

BUCKET, PREFIX = "run-bucket", "runs/one"
OURS, THEIRS = Conf(run="ours", incarnation="1" * 16), Conf(run="theirs", incarnation="2" * 16)

Make = Callable[..., S3Folder]


@pytest.fixture
def folder(aws: Aws) -> Iterator[Make]:
    """Return the folder as another process has it, with ``wait`` for its waits; all are released at the end."""
    made: list[S3Folder] = []

    def make(wait: Callable[[float], None] | None = None, **arguments: Any) -> S3Folder:
        made.append(S3Folder(Location(BUCKET, PREFIX), aws=impatient(wait, **arguments)))
        return made[-1]

    yield make
    for each in made:
        each.release()


def written(aws: Aws) -> dict[str, bytes]:
    """Return what is below the prefix, but for the lock."""
    s3 = aws.client("s3")
    keys = [found["Key"] for found in s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{PREFIX}/").get("Contents", [])]
    found = {key: s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}
    return {key.rpartition("/")[2]: body for key, body in found.items() if not key.endswith(LOCK)}


def claim(aws: Aws) -> dict[str, Any]:
    body = aws.client("s3").get_object(Bucket=BUCKET, Key=f"{PREFIX}/{LOCK}")["Body"].read()
    return dict(json.loads(body))


def store(folder: Folder, conf: Conf, **changes: Any) -> CheckpointStore:
    return CheckpointStore(folder, owner=RunIdentity.of(conf), **changes)


# --- what every folder does -------------------------------------------------------------------------------------------


@pytest.fixture(params=["here", "in S3"])
def any_folder(request: pytest.FixtureRequest, tmp_path: Path, folder: Make) -> Folder:
    return LocalFolder(tmp_path / "run") if request.param == "here" else folder()


def test_a_folder_keeps_contents_and_lines(any_folder: Folder) -> None:
    assert any_folder.names() == []
    for read in (any_folder.read, any_folder.read_lines):
        with pytest.raises(FileNotFoundError):
            read("a")
    any_folder.write("b", b"first")
    any_folder.write("b", b"second")
    any_folder.write("a", b"")
    assert (any_folder.names(), any_folder.read("a"), any_folder.read("b")) == (["a", "b"], b"", b"second")
    any_folder.delete("a")
    any_folder.delete("a")
    assert any_folder.names() == ["b"]
    for line in (b"one\n", b"two\nthree\n"):
        any_folder.append("j.jsonl", line)
    assert any_folder.read_lines("j.jsonl") == [b"one", b"two", b"three"]
    assert any_folder.lock("1" * 16) and any_folder.lock("1" * 16)
    assert f"pid {os.getpid()}" in any_folder.holder()
    any_folder.release()
    any_folder.release()
    assert any_folder.lock("2" * 16)
    assert isinstance(any_folder, Folder)


def test_of_lines_only_those_that_are_new_are_read(any_folder: Folder, folder: Make) -> None:
    with pytest.raises(FileNotFoundError):
        any_folder.read_new_lines("j.jsonl", None)
    any_folder.append("j.jsonl", b"one\ntwo\n")
    found = any_folder.read_new_lines("j.jsonl", None)
    assert (found.lines, found.is_all) == ([b"one", b"two"], True)
    assert any_folder.read_new_lines("j.jsonl", found.mark).lines == []
    long = b"x" * 70_000  # in S3 the next line begins another part
    for line in (long, b"three", b"four"):
        any_folder.append("j.jsonl", line + b"\n")
    found = any_folder.read_new_lines("j.jsonl", found.mark)
    assert (found.lines, found.is_all) == ([long, b"three", b"four"], False)
    other = LocalFolder(any_folder.path) if isinstance(any_folder, LocalFolder) else folder()
    other.append("j.jsonl", b"of another process\n")
    found = any_folder.read_new_lines("j.jsonl", found.mark)
    assert (found.lines, found.is_all) == ([b"of another process"], False)
    other.append("j.jsonl", b"more\ncut sho")
    found = any_folder.read_new_lines("j.jsonl", found.mark)
    assert found.lines == [b"more"]
    other.append("j.jsonl", b"rt\n")
    assert any_folder.read_new_lines("j.jsonl", found.mark).lines[-1:] in ([b"rt"], [b"cut short"])


def test_lines_that_take_the_place_of_others_are_read_from_the_beginning(any_folder: Folder) -> None:
    any_folder.append("j.jsonl", b"one\ntwo\n")
    mark = any_folder.read_new_lines("j.jsonl", None).mark
    for name in any_folder.names():
        any_folder.delete(name)
    any_folder.write("j.jsonl" if isinstance(any_folder, LocalFolder) else "j-other-000001.jsonl", b"new\n")
    found = any_folder.read_new_lines("j.jsonl", mark)
    assert (found.lines, found.is_all) == ([b"new"], True)


def test_what_a_run_keeps_in_s3_is_seen_by_the_dashboard(folder: Make) -> None:
    kept, files = folder(), RunFiles(folder())
    kept.write("conf.json", OURS.to_json().encode())
    assert (files.history(), files.events(), files.head()) == ([], [], None)
    HistoryFile(kept).append(history(3))
    assert [entry.version for entry in RunFiles(folder()).read().history or ()] == [1, 2, 3]


# --- one process at a time --------------------------------------------------------------------------------------------


def test_of_many_processes_that_want_a_folder_exactly_one_gets_it(folder: Make) -> None:
    patient = {"AWS_MAX_ATTEMPTS": "5"}  # moto fails now and then while somebody writes
    holders: list[S3Folder] = []

    def winner() -> S3Folder:
        return next(each for each in holders if each._lock is not None)

    def wait(seconds: float) -> None:  # for the winner, who gives a sign of life
        with contextlib.suppress(StopIteration):
            winner()._lock.confirm()

    holders += [folder(wait, environ=patient) for _ in range(6)]
    together = threading.Barrier(len(holders))

    def take(each: S3Folder) -> bool:
        together.wait()
        return each.lock(f"{id(each):016x}")

    with ThreadPoolExecutor(len(holders)) as pool:
        assert sum(pool.map(take, holders)) == 1
    assert claim_of(winner()).owner == f"{id(winner()):016x}"


def claim_of(each: S3Folder) -> Claim:
    assert each._lock is not None and each._lock._held is not None
    return each._lock._held[0]


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_live_process_of_another_run_keeps_its_folder(folder: Make, aws: Aws, takes_over: bool, caplog) -> None:
    first = folder()
    store(first, OURS).keep_conf(OURS)
    second = folder(lambda seconds: first._lock.confirm())
    before = written(aws)
    with pytest.raises(CheckpointError, match=rf"s3://{BUCKET}/{PREFIX} is in use by .* on .*, pid \d+; wait for"):
        store(second, THEIRS).keep_conf(THEIRS, takes_over=takes_over)
    assert written(aws) == before and claim(aws)["owner"] == OURS.incarnation
    assert "counts as killed after 90 s" in caplog.text
    first.release()
    store(second, THEIRS).keep_conf(THEIRS)  # nothing was saved, and nobody is there any more
    assert claim(aws)["owner"] == THEIRS.incarnation


def test_a_folder_with_another_runs_checkpoints_is_never_taken(folder: Make, aws: Aws) -> None:
    first, second = store(folder(), OURS), store(folder(), THEIRS)
    first.keep_conf(OURS)
    first.save(head(1), frame(1))
    first.release()
    before = written(aws)
    for takes_over in (False, True):
        with pytest.raises(CheckpointError, match="holds checkpoints of another run, ours "):
            second.keep_conf(THEIRS, takes_over=takes_over)
    assert written(aws) == before and not claim(aws)["holder"]


def test_who_was_killed_loses_the_folder_when_it_has_been_silent_for_long(
    folder: Make, fault_proxy: FaultProxy
) -> None:
    killed, waits = folder(), iter(range(5))
    assert killed.lock(OURS.incarnation)

    def wait(seconds: float) -> None:
        if next(waits) == 3:
            fault_proxy.judge = lambda request: Fault("old") if request.path.endswith(LOCK) else None

    assert folder(wait).lock(OURS.incarnation)
    assert next(waits) == 4  # it had to wait
    with pytest.raises(OSError, match=r"another process has taken it meanwhile, on .*, pid"):
        killed.write("a", b"content")


def test_a_standby_of_the_same_run_takes_over_at_once_and_the_old_master_writes_nothing_more(
    folder: Make, aws: Aws
) -> None:
    def never(seconds: float) -> None:
        pytest.fail("it waits")

    frozen, new = store(folder(), OURS), store(folder(never), OURS)
    frozen.keep_conf(OURS)
    frozen.save(head(1), frame(1))
    new.keep_conf(OURS, takes_over=True)
    new.save(head(2), frame(2))
    before = written(aws)
    for version in (2, 3):
        with pytest.raises(CheckpointError, match="another process has taken it meanwhile"):
            frozen.save(head(version), frame(9))
    frozen.release()
    assert written(aws) == before
    assert claim(aws)["holder"]  # the new master's, still
    new.save(head(3), frame(3))
    assert new.newest()[0].version == 3


@pytest.mark.parametrize("name", ["model-00000004.safetensors", "checkpoint-00000004.json"])
def test_the_one_object_that_was_on_its_way_when_the_old_master_froze_damages_no_other(
    folder: Make, aws: Aws, name: str
) -> None:
    """It may spoil one version, which is passed over for the one before; the next one is whole again."""
    old, new = store(folder(), OURS), store(folder(), OURS)
    old.keep_conf(OURS)
    for version in (1, 2, 3):
        old.save(head(version), frame(version))
    new.keep_conf(OURS, takes_over=True)
    new.save(head(4), frame(4))
    aws.client("s3").put_object(Bucket=BUCKET, Key=f"{PREFIX}/{name}", Body=b"of the old master")
    assert new.newest()[0].version == 3
    new.save(head(5), frame(5))
    assert new.newest()[0].version == 5


@pytest.mark.parametrize("fault", ["reset-after", "reset-before"])
def test_a_lock_whose_writing_was_not_answered_is_still_held(folder: Make, fault_proxy: FaultProxy, fault: str) -> None:
    holder = folder()
    assert holder.lock(OURS.incarnation)
    fault_proxy.judge = lambda request: Fault(fault) if "if-match" in request.headers else None
    for _ in range(2):
        with pytest.raises(CloudError, match="the lock s3://"):
            holder.write("a", b"content")
    fault_proxy.reset()
    holder.write("a", b"content")
    assert holder.read("a") == b"content"


def test_a_lock_that_somebody_deleted_is_written_again(folder: Make, aws: Aws) -> None:
    holder = folder()
    assert holder.lock(OURS.incarnation)
    aws.client("s3").delete_object(Bucket=BUCKET, Key=f"{PREFIX}/{LOCK}")
    holder.write("a", b"content")
    assert claim(aws)["owner"] == OURS.incarnation


def test_a_lock_is_renewed_by_itself(folder: Make, aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_folder, "RENEW_SECONDS", 0.01)
    holder, renewed = folder(), threading.Event()
    confirm = s3_folder._Lock.confirm

    def watched(self: Any) -> None:
        confirm(self)
        renewed.set()

    monkeypatch.setattr(s3_folder._Lock, "confirm", watched)
    assert holder.lock(OURS.incarnation)
    assert renewed.wait(60)
    holder.release()
    assert claim(aws)["writes"] >= 3


def test_a_lock_that_says_nothing_known_is_somebodys(folder: Make, aws: Aws, fault_proxy: FaultProxy) -> None:
    folder().write("a", b"")
    aws.client("s3").put_object(Bucket=BUCKET, Key=f"{PREFIX}/{LOCK}", Body=b"\xff nonsense")
    other = folder(lambda seconds: aws.client("s3").put_object(Bucket=BUCKET, Key=f"{PREFIX}/{LOCK}", Body=b"alive"))
    assert not other.lock(OURS.incarnation, takes_over=True)


# --- S3 does not answer -----------------------------------------------------------------------------------------------


def test_while_s3_is_away_a_checkpoint_fails_with_the_reason_and_the_older_ones_stay(
    folder: Make, fault_proxy: FaultProxy
) -> None:
    saver = store(folder(), OURS)
    saver.keep_conf(OURS)
    saver.save(head(1), frame(1))
    fault_proxy.judge = lambda request: Fault("reset-before")
    with pytest.raises(CheckpointError, match=r"checkpoint 2 could not be written to s3://.*could not be reached"):
        saver.save(head(2), frame(2))
    with pytest.raises(CloudError, match="could not be reached"):  # away is not damaged: no older one is taken
        saver.newest()
    fault_proxy.reset()
    saver.save(head(3), frame(3))
    assert saver.versions() == [3, 1]


def test_an_s3_that_hangs_is_given_up(aws_environment: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SILENT_CONNECTION_SECONDS", "_LOCK_CONNECTION_SECONDS"):
        monkeypatch.setattr(s3_folder, name, 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        hanging = saved_run.open_checkpoints(f"s3://{BUCKET}/{PREFIX}")
        with pytest.raises(CheckpointError, match=r"AWS could not be reached: .*[Tt]imeout"):
            hanging.save(head(1), frame(1))
        with pytest.raises(CloudError, match=r"AWS could not be reached: .*[Tt]imeout"):
            hanging.keep_conf(OURS)


# --- the journal ------------------------------------------------------------------------------------------------------


def test_two_masters_journals_are_one_and_parts_are_bounded(folder: Make, aws: Aws, monkeypatch) -> None:
    monkeypatch.setattr(s3_folder, "_PART_OF_LINES_NBYTES", 500)
    tracker = InMemoryStateTracker()
    writer, replaced, other = Journal(tracker, "a"), JournalFile(folder()), JournalFile(folder())
    for number in range(12):
        writer.write("paused", workers=number)
        for copy in (replaced, other) if number > 6 else (replaced,):
            copy.append(Journal.read(tracker))
    assert [entry.fields["workers"] for entry in JournalFile(folder()).read()] == list(range(12))
    parts = {name: body for name, body in written(aws).items() if name.startswith("journal-")}
    assert len(parts) == 4 and max(map(len, parts.values())) < 1000


def test_parts_are_named_by_turn_and_not_by_the_clocks_of_their_machines(folder: Make, aws: Aws) -> None:
    old = folder()
    old._writers["notes.jsonl"] = "20991231T235959-0a0b0c0d"  # as older versions named them
    for number, writer in enumerate((old, folder(), folder(), folder())):
        writer.append("notes.jsonl", b"%d\n" % number)
        writer.append("notes.jsonl", b"and %d\n" % number)
    lines = [line for number in range(4) for line in (b"%d" % number, b"and %d" % number)]
    assert folder().read_lines("notes.jsonl") == lines
    parts = sorted(name for name in written(aws) if name.startswith("notes-"))
    assert [re.sub("[0-9a-f]{8}", "ID", name) for name in parts[1:]] == [
        f"notes-p00000{turn}-ID-000001.jsonl" for turn in (1, 2, 3)
    ]


def test_a_folder_that_hangs_delays_nobody_who_writes_the_journal(tmp_path: Path, caplog) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    class Hanging(LocalFolder):
        def append(self, name: str, lines: bytes) -> None:
            hangs.set()
            assert goes_on.wait(60)
            super().append(name, lines)

    tracker, keeper = InMemoryStateTracker(), JsonlWriter(JournalFile(Hanging(tmp_path)))
    writer = Journal(tracker, "a")
    for event in ("run_began", "paused"):
        writer.write(event)
        keeper.add(Journal.read(tracker))
        assert hangs.wait(60)
    keeper.close(seconds=0.01)
    assert "was not written within" in caplog.text
    goes_on.set()
    keeper.close()
    assert [entry.event for entry in JournalFile(LocalFolder(tmp_path)).read()] == ["run_began", "paused"]


def test_an_instance_is_told_whether_a_run_is_kept(folder: Make, fault_proxy: FaultProxy, capsys) -> None:
    def says() -> tuple[int, str]:
        with pytest.raises(SystemExit) as leave:
            on_instance.main(["is-kept", f"s3://{BUCKET}/{PREFIX}/"])
        return int(leave.value.code or 0), capsys.readouterr().out.strip()

    assert says() == (0, "")
    folder().write("model-00000001.safetensors", b"")
    assert says() == (0, "")
    store(folder(), OURS).keep_conf(OURS)
    assert says() == (0, "yes")
    fault_proxy.judge = lambda request: Fault("reset-before")
    assert says() == (4, "")


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["s3:", "s3:/x", "S3://bucket/x", Path("s3://bucket/x")])
def test_no_folder_here_is_called_as_one_in_s3(path: str | Path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfError, match=r"places in S3 are written s3://bucket/key"):
        CheckpointStore(path)
    assert list(tmp_path.iterdir()) == []
    for url in ("s3://", "s3:///x", "s3://A_B/x", "s3://ab/x", f"s3://bucket/{'x' * 1025}"):
        with pytest.raises(ConfError, match=r"is no place in S3|S3 takes 1024"):
            saved_run.open_checkpoints(url)


def test_rights_that_are_missing_are_named(aws: Aws, fault_proxy: FaultProxy, capsys) -> None:
    fault_proxy.judge = lambda request: Fault("error", "AccessDenied", 403)
    for command in (("resume",), ("logs",), ("train", "--dataset", "iris", "--checkpoint-dir")):
        assert run(*command, f"s3://{BUCKET}/{PREFIX}") == 6
        assert "AWS denies" in capsys.readouterr().err
