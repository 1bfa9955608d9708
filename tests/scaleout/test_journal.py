"""The journal: what the processes of a run write is there for all to read, in order, and never too much of it."""

from __future__ import annotations

import logging
import resource
import threading

import msgspec
import pytest

from dl4jlegacy.errors import CheckpointError, TrackerError
from dl4jlegacy.scaleout.persistence import journal
from dl4jlegacy.scaleout.persistence.journal import FollowedJournal, Journal, JournalEntry, JournalFile, JournalReader
from dl4jlegacy.scaleout.state.records import encode_record
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
from dl4jlegacy.storage.folders import LocalFolder


@pytest.fixture
def tracker() -> InMemoryStateTracker:
    return InMemoryStateTracker()


def events(entries: list[JournalEntry]) -> list[str]:
    return [entry.event for entry in entries]


def test_an_entry_says_who_wrote_it_and_what_happened(tracker):
    Journal(tracker, "host-1").write("worker_joined", worker="host-1-0", threads=2)
    (entry,) = Journal.read(tracker)
    assert (entry.source, entry.event) == ("host-1", "worker_joined")
    assert entry.fields == {"worker": "host-1-0", "threads": 2}
    assert entry.pid > 0 and entry.host and entry.time > 1e9
    assert entry.line() == "worker joined: worker host-1-0, threads 2"


def test_entries_come_in_the_order_in_which_they_were_written_whatever_the_clocks_say(tracker, monkeypatch):
    now, nanoseconds = iter([50.0, 9e9, 40.0, 40.0]), iter([50, 40, 60, 30])
    monkeypatch.setattr(journal.time, "time", lambda: next(now))
    monkeypatch.setattr(journal.time, "time_ns", lambda: next(nanoseconds))
    one, other = Journal(tracker, "b"), Journal(tracker, "a")
    for writer, event in ((one, "run_began"), (other, "master_leads"), (one, "paused"), (other, "went_on")):
        writer.write(event)
    assert events(Journal.read(tracker)) == ["run_began", "master_leads", "paused", "went_on"]


@pytest.mark.parametrize("left", [None, b"9223372036854775807", b"-5", b"no count"])
def test_whoever_has_read_entries_writes_after_them_though_the_counter_is_lost_or_foreign(tracker, left):
    first, master, worker = Journal(tracker, "c"), Journal(tracker, "b"), Journal(tracker, "a")
    for event in ("run_began", "master_leads"):
        first.write(event)
    before = Journal.read(tracker)
    for key in tracker.store.keys(""):  # the grid was started anew
        tracker.store.delete(key)
    if left is not None:
        tracker.store.put("counter/dl4j.journal", left)
    master.came_after(before)
    master.restore(tracker.store.keys(""))
    master.write("paused")
    worker.write("worker_joined")
    after = [*before, *Journal.read(tracker)]
    assert events(sorted(after, key=lambda entry: entry.key)) == [
        "run_began",
        "master_leads",
        "paused",
        "worker_joined",
    ]


def test_a_worker_that_is_new_in_an_emptied_grid_counts_on_from_what_the_master_knows(tracker):
    master, worker = Journal(tracker, "b"), Journal(tracker, "a")
    for event in ("run_began", "paused"):
        master.write(event)
    before = Journal.read(tracker)
    for key in tracker.store.keys(""):
        tracker.store.delete(key)
    master.restore(tracker.store.keys(""))
    worker.write("worker_joined")
    assert all(entry.key < Journal.read(tracker)[0].key for entry in before)


def test_entries_that_older_versions_numbered_by_their_clocks_come_before(tracker):
    master = Journal(tracker, "a")
    old = JournalEntry(key="log/01795970546178123456/z", time=1.0, source="z", host="h", pid=1, event="run_began")
    master.came_after([old, msgspec.structs.replace(old, key="log/99999999999999999999/z")])  # no number of a counter
    master.write("paused")
    assert old.key < Journal.read(tracker)[0].key < "log/1"


def test_reading_goes_on_after_an_entry(tracker):
    writer = Journal(tracker, "a")
    writer.write("run_began")
    (first,) = Journal.read(tracker)
    writer.write("run_ended")
    assert events(Journal.read(tracker, after=first.key)) == ["run_ended"]


def test_a_reader_gives_each_entry_once_and_those_too_that_come_after_later_ones(tracker):
    reader, late = JournalReader(tracker), Journal(tracker, "late")
    put = tracker.store.put
    tracker.store.put = lambda key, value: None  # it has its number, and is stopped
    late.write("worker_joined")
    tracker.store.put = put
    Journal(tracker, "b").write("run_began")
    assert events(reader.read()) == ["run_began"]
    entry = JournalEntry(
        key="log/00000000000000000001/late", time=1.0, source="late", host="h", pid=1, event="worker_joined"
    )
    put(entry.key, encode_record(entry))
    assert events(reader.read()) == ["worker_joined"]
    assert reader.read() == []


def test_many_writers_lose_nothing(tracker):
    writers = [Journal(tracker, f"process-{n}") for n in range(8)]
    threads = [
        threading.Thread(target=lambda w=w: [w.write("worker_joined", number=n) for n in range(50)]) for w in writers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = {(entry.source, entry.fields["number"]) for entry in Journal.read(tracker)}
    assert len(found) == 8 * 50


def test_the_oldest_entries_are_dropped(tracker):
    writer = Journal(tracker, "a")
    for number in range(30):
        writer.write("worker_joined", number=number)
    Journal.prune(tracker, most=10)
    assert [entry.fields["number"] for entry in Journal.read(tracker)] == list(range(20, 30))
    Journal.prune(tracker, most=10)
    assert len(Journal.read(tracker)) == 10


def test_a_hint_tells_those_who_listen(tracker):
    heard = threading.Event()
    tracker.store.listen(journal.JOURNAL_TOPIC, heard.set)
    Journal(tracker, "a").write("run_began")
    assert heard.is_set()


def test_writing_never_raises_and_what_could_not_be_written_is_logged(tracker, caplog):
    caplog.set_level(logging.INFO, logger="dl4jlegacy.scaleout.persistence.journal")
    writer = Journal(tracker, "a")
    writer.write("run_began", what=object())
    tracker.shutdown()
    writer.write("run_ended")
    failed = [text.partition(" could not be written: ")[0] for text in caplog.messages if "could not" in text]
    assert failed == ["the journal's entry run_began", "the journal's entry run_ended"]
    with pytest.raises(TrackerError):
        Journal.read(tracker)


def test_a_value_that_is_refused_is_told_once_for_a_key(tracker):
    tracker.store.on_refused = lambda key, reason: None
    Journal(tracker, "a").watch_refusals()
    for _ in range(3):
        tracker.store.on_refused("head", "it is not signed")
    (entry,) = Journal.read(tracker)
    assert (entry.event, entry.fields) == ("frame_refused", {"key": "head", "reason": "it is not signed"})


def test_a_long_text_keeps_its_ends(tracker):
    Journal(tracker, "a").write("job_failed", traceback="first line" + "x" * 100_000 + "the error itself")
    text = Journal.read(tracker)[0].fields["traceback"]
    assert text.startswith("first line") and text.endswith("the error itself")
    assert len(text) < 17_000


def test_what_is_no_entry_is_left_out_and_reported(tracker, caplog):
    tracker.store.put("log/00000000000000000001/foreign", b"\xff nonsense")
    Journal(tracker, "a").write("run_began")
    assert events(Journal.read(tracker)) == ["run_began"]
    assert "left out" in caplog.text


def test_the_copy_in_a_folder_takes_each_entry_once_and_survives_a_line_that_was_cut_off(tracker, tmp_path):
    writer = Journal(tracker, "a")
    writer.write("run_began")
    copy = JournalFile(LocalFolder(tmp_path))
    copy.append(Journal.read(tracker))
    with (tmp_path / JournalFile.NAME).open("ab") as file:
        file.write(b'{"key": "log/9')  # killed while writing
    writer.write("run_ended", status="done")
    JournalFile(LocalFolder(tmp_path)).append(Journal.read(tracker))
    assert events(JournalFile(LocalFolder(tmp_path)).read()) == ["run_began", "run_ended"]


def test_what_two_masters_have_written_into_the_copy_is_read_once(tracker, tmp_path):
    writer, replaced, other = (
        Journal(tracker, "a"),
        JournalFile(LocalFolder(tmp_path)),
        JournalFile(LocalFolder(tmp_path)),
    )
    followed = FollowedJournal(LocalFolder(tmp_path))
    for event in ("run_began", "master_took_over"):
        writer.write(event)
        for copy in (replaced, other):  # each knows what it found at first, not what the other one has added since
            copy.append(Journal.read(tracker))
            assert followed.read() == other.read()
    assert len((tmp_path / JournalFile.NAME).read_bytes().splitlines()) == 3
    assert events(other.read()) == ["run_began", "master_took_over"]


def test_a_copy_that_cannot_be_written_is_told_once(tracker, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    copy = JournalFile(LocalFolder(tmp_path / "file" / "folder"))
    Journal(tracker, "a").write("run_began")
    copy.append(Journal.read(tracker))
    copy.append(Journal.read(tracker))
    assert caplog.text.count("cannot be written") == 1


def test_what_a_full_disk_kept_out_of_the_copy_is_written_when_there_is_room(tracker, tmp_path, caplog):
    writer, copy, reader = Journal(tracker, "a"), JournalFile(LocalFolder(tmp_path)), JournalReader(tracker)
    writer.write("run_began")
    copy.append(reader.read())
    before = (tmp_path / JournalFile.NAME).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer.write("checkpoint_failed", message="no space")
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        copy.append(reader.read())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot be written" in caplog.text
    assert (tmp_path / JournalFile.NAME).read_bytes() == before  # not the half of a line
    copy.append(reader.read())
    assert events(JournalFile(LocalFolder(tmp_path)).read()) == ["run_began", "checkpoint_failed"]


def test_a_folder_without_a_journal_says_so(tmp_path):
    with pytest.raises(CheckpointError, match=r"journal\.jsonl cannot be read.*--checkpoint-dir"):
        JournalFile(LocalFolder(tmp_path)).read()
