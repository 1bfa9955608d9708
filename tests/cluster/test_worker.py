"""What a worker makes of what it finds in Zookeeper while it works: no server is needed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from dl4jlegacy.cluster import worker
from dl4jlegacy.cluster.address import ClusterAddress, NotDefinedError
from dl4jlegacy.cluster.worker import _MasterWatch
from dl4jlegacy.errors import ConfError, NotAuthorisedError, TrackerError, VersionError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.state.records import HEAD, Head, Manifest, encode_record
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker


def watching(tracker: InMemoryStateTracker, find: Callable[[], object], *, state: str, holder: object) -> _MasterWatch:
    registered: Any = SimpleNamespace(find=find)
    election: Any = SimpleNamespace(holder=lambda: holder)
    link: Any = SimpleNamespace(state=state)
    place: Any = SimpleNamespace()  # nobody asks for the end of a run that is there
    return _MasterWatch(Conf(run="r"), place, tracker, registered, election, link)


def put_head(tracker: InMemoryStateTracker, version: int) -> None:
    tracker.store.put(HEAD, encode_record(Head(run="r", version=version, round=1, model=Manifest("m", 1, 1))))


def look(watch: _MasterWatch) -> bool:
    watch._looked = -math.inf
    return watch.look()


def test_a_head_that_goes_back_is_named_once_and_is_no_sign_of_a_master(caplog: pytest.LogCaptureFixture) -> None:
    tracker = InMemoryStateTracker()
    watch = watching(tracker, lambda: Conf(run="r"), state="dead", holder=None)
    for version in (7, 9):
        put_head(tracker, version)
        assert look(watch) and not caplog.text
    put_head(tracker, 8)
    watch._master_seen = seen = watch._clock.now() - 10.0
    assert look(watch) and look(watch)
    assert caplog.text.count("the head of run r went back from version 9 to 8") == 1
    assert watch._master_seen == seen
    put_head(tracker, 9)
    assert look(watch) and watch._master_seen > seen
    assert caplog.text.count("went back") == 1


def test_a_worker_that_is_left_with_an_old_head_alone_leaves_as_without_a_master(caplog) -> None:
    tracker = InMemoryStateTracker()
    watch = watching(tracker, lambda: Conf(run="r"), state="dead", holder=None)
    put_head(tracker, 9)
    assert look(watch)
    put_head(tracker, 8)
    watch._master_seen -= Conf().worker_wait_seconds + 1.0
    with pytest.raises(TrackerError, match="has had no master"):
        look(watch)


@pytest.mark.parametrize("raised", [ConfError, NotAuthorisedError, VersionError, TrackerError])
def test_a_running_worker_ignores_a_conf_that_cannot_be_read(raised: type[Exception]) -> None:
    def find() -> NoReturn:
        raise raised("somebody else was there")

    tracker = InMemoryStateTracker()
    put_head(tracker, 1)
    assert look(watching(tracker, find, state="alive", holder={"host": "h"}))


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Head | None]], Iterator[Head | None]]:
    """Let a worker meet a run in which it finds nothing as often as there is None, and then comes to the head."""

    def meets(outcomes: list[Head | None]) -> Iterator[Head | None]:
        left = iter(outcomes)

        def work(conf: Conf, *given: object, **more: object) -> Head:
            head = next(left)
            if head is None:
                raise NotDefinedError(f"run {conf.run} has no versions in the tracker")
            return head

        nothing: Any = SimpleNamespace(shutdown=lambda: None)
        monkeypatch.setattr(worker, "is_search", lambda *given: False)
        monkeypatch.setattr(worker, "find_conf", lambda *given, **more: Conf(run="r"))
        monkeypatch.setattr(worker, "ZooKeeperSession", lambda *given, **more: contextlib.nullcontext())
        monkeypatch.setattr(worker, "open_tracker", lambda *given, **more: nothing)
        monkeypatch.setattr(worker, "_goes_on", lambda *given: True)
        monkeypatch.setattr(worker, "_work", work)
        return left

    return meets


def test_a_worker_looks_again_where_a_run_has_nothing_in_the_tracker_and_says_so_once(meeting, caplog) -> None:
    """Another run takes its place just now: the Conf was read a moment too early."""
    done = Head(run="r", version=1, round=1, model=Manifest("m", 1, 1), status="done")
    meeting([None, None, done])
    assert worker.run_worker(ClusterAddress("127.0.0.1:1")) == done
    assert caplog.text.count("run r has no versions in the tracker; this worker waits for that") == 1
    assert caplog.text.count("run r is not signed") == 1


def test_a_worker_gives_up_a_run_that_has_nothing_in_the_tracker(meeting) -> None:
    left = meeting([None, None])
    with pytest.raises(NotDefinedError, match="has no versions"):
        worker.run_worker(ClusterAddress("127.0.0.1:1"), wait_seconds=0.0)
    assert list(left) == [None]
