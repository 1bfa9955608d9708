"""Whatever becomes of a run's folder, a take-over bears what a master in office bears; see ``test_run_folder.py``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.cluster.leadership import MasterOptions
from dl4jlegacy.cluster.master import resume_from_checkpoints, resume_run
from dl4jlegacy.cluster.standby import take_over
from dl4jlegacy.errors import CheckpointError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.zookeeper import MasterElection
from dl4jlegacy.training import prepare as training
from tests.support.places import Place, interrupted
from tests.support.storage_faults import FAULTS, StorageFault

pytestmark = pytest.mark.cluster

TakeOver = Callable[[Place, Conf, MasterElection], training.Report]


def by_standby(place: Place, conf: Conf, election: MasterElection) -> training.Report:
    """With workers of its own; ``stand_by`` has none."""
    stands_by = threading.Event()

    def lead() -> training.Report:
        data, address = training.reload(conf), place.address("a")
        given, options = training.training_data(conf, data), MasterOptions()
        with take_over(conf, given, address, options, workers=2, on_stand_by=stands_by.set) as led:
            assert led is not None
            report = training.train(led.run, data, tracker=led.tracker, monitor=led.monitor, tick=led.tick)
            led.is_finished = True
            return report

    with ThreadPoolExecutor(1) as pool:
        standby = pool.submit(lead)
        try:
            assert stands_by.wait(60)
        finally:
            election.resign()
        return standby.result(120)


def by_resume(place: Place, conf: Conf, election: MasterElection) -> training.Report:
    election.resign()
    return resume_run(conf, place.address("a"), MasterOptions())


def ways(often: set[tuple[TakeOver, str]], *kinds: str) -> pytest.MarkDecorator:
    """Return every kind of fault with both ways to take over; but for a few, those are of the longer suite."""
    every = [(way, kind) for way in (by_standby, by_resume) for kind in kinds]
    marks = {each: () if each in often else pytest.mark.long for each in every}
    return pytest.mark.parametrize(("take_over", "kind"), [pytest.param(*each, marks=marks[each]) for each in every])


@ways({(by_standby, "away"), (by_resume, "another run's")}, *FAULTS)
def test_who_takes_over_what_the_grid_has_bears_that_the_folder_is_gone_and_writes_there_again(
    place: Place,
    stopped: tuple[Conf, training.Report],
    take_over: TakeOver,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog,
) -> None:
    conf, election = interrupted(place, stopped[0], in_grid=True, in_folder=True)
    folder = Path(conf.checkpoint_dir)
    fault, save, calls = StorageFault(kind, folder, monkeypatch), CheckpointStore.save, list[int]()

    def counted(self: CheckpointStore, *args: Any, **more: Any) -> None:
        calls.append(args[0].version)
        if len(calls) == 2:
            fault.end()
        save(self, *args, **more)

    monkeypatch.setattr(CheckpointStore, "save", counted)
    fault.begin()
    with caplog.at_level(logging.WARNING):
        report = take_over(place, conf, election)
    assert report.fields["params_sha256"] == stopped[1].fields["params_sha256"]
    said = [each for each in caplog.messages if "goes on, and tries it again with each checkpoint" in each]
    assert len(said) == (0 if kind == "deleted" else 1), said
    assert "could not be written to" not in caplog.text and len(calls) > 2
    assert CheckpointStore(folder).newest()[0].version == calls[-1]
    assert CheckpointStore(folder).kept("incarnation") == conf.incarnation


@ways({(by_standby, "away")}, "away", "a file", "another run's")
def test_who_takes_over_what_the_grid_has_lost_does_not_begin_it_anew_while_the_folder_is_gone(
    place: Place,
    stopped: tuple[Conf, training.Report],
    take_over: TakeOver,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conf, election = interrupted(place, stopped[0], in_grid=False, in_folder=True, wait_seconds=1.0)
    before = place.tracker(conf).head()
    fault = StorageFault(kind, Path(conf.checkpoint_dir), monkeypatch)
    fault.begin()
    with pytest.raises(CheckpointError, match=rf"run {conf.run} cannot go on.*{conf.checkpoint_dir}") as said:
        take_over(place, conf, election)
    assert said.value.exit_status == 8
    assert place.tracker(conf).head() == before and place.registered("a") == conf
    fault.end()


@pytest.mark.long
def test_who_takes_over_what_the_grid_has_lost_waits_for_its_checkpoints(
    place: Place, stopped: tuple[Conf, training.Report], monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    conf, election = interrupted(place, stopped[0], in_grid=False, in_folder=True)
    fault = StorageFault("away", Path(conf.checkpoint_dir), monkeypatch)
    newest = CheckpointStore.newest

    def returns(self: CheckpointStore) -> Any:
        try:
            return newest(self)
        except CheckpointError:
            fault.end()
            raise

    monkeypatch.setattr(CheckpointStore, "newest", returns)
    fault.begin()
    with caplog.at_level(logging.WARNING):
        report = by_resume(place, conf, election)
    assert report.fields["params_sha256"] == stopped[1].fields["params_sha256"]
    assert "needs its checkpoints, and waits for them, up to 10 s" in caplog.text


@pytest.mark.long
def test_a_run_is_resumed_from_a_folder_that_can_only_be_read(
    place: Place, stopped: tuple[Conf, training.Report], monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    conf, expected = stopped
    members = {"state_tracker_connection_string": place.servers.hazelcast, "cluster_name": place.servers.cluster_name}
    fault = StorageFault("read-only", Path(conf.checkpoint_dir), monkeypatch)
    fault.begin()
    report = resume_from_checkpoints(conf.replace(**members), place.address("a"), MasterOptions())
    assert report.fields["params_sha256"] == expected.fields["params_sha256"]
    assert len([each for each in caplog.messages if "tries it again with each checkpoint" in each]) == 1
