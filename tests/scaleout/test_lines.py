"""Records of a run are written by a thread of their own, a few times a second."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from dl4jlegacy.scaleout.persistence.jsonl import JsonlFile, JsonlWriter
from dl4jlegacy.storage.folders import LocalFolder


class Record(msgspec.Struct, frozen=True):
    number: int


class Rests(threading.Event):
    """Writes down for how long somebody would wait for it, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.begun = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        self.begun.set()
        return super().wait(0)


def test_between_two_writes_it_rests_however_fast_they_are_and_every_record_is_kept(tmp_path: Path) -> None:
    file = JsonlFile(LocalFolder(tmp_path), "records.jsonl", Record, "the records")
    keeper = JsonlWriter(file)
    keeper._closed = rests = Rests()
    for number in range(3):
        rests.begun.clear()
        keeper.add([Record(number)])
        assert rests.begun.wait(60)
    keeper.close()
    assert [record.number for record in file.lines()] == [0, 1, 2]
    assert len(rests.seconds) >= 3 and all(1 <= seconds <= 5 for seconds in rests.seconds)
