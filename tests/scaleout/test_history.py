"""The history of a run: every version of its model once, whoever led the run, and as it came to be at last."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import msgspec
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, DigitsDataSetIterator, HistoryEntry, IrisDataSetIterator, read_history
from dl4jlegacy.errors import CheckpointError
from dl4jlegacy.nn import AutoEncoder, NeuralNetConfiguration, OutputLayer, zoo
from dl4jlegacy.nn.networks import learning_rate_at
from dl4jlegacy.nn.optimization.schedules import StepSchedule
from dl4jlegacy.nn.optimization.updaters import AdaDelta, NoOp, Sgd
from dl4jlegacy.scaleout.monitoring.outcome import TrainingResult
from dl4jlegacy.scaleout.persistence.history import FollowedHistory, History, HistoryFile, versions_that_count
from dl4jlegacy.scaleout.scoring import ValidationConf
from dl4jlegacy.storage.folders import Lines, LocalFolder, Mark
from dl4jlegacy.system.clock import RUNNING
from tests.support.command_line import exit_status as dl4j


def trained(
    folder: Path, *, data=None, network=None, classes: int = 3, features: int = 4, resume: bool = False, **conf
) -> TrainingResult:
    network = network or zoo.mlp(features, classes)
    given = Conf(multi_layer_conf=network, checkpoint_dir=str(folder), workers=2, jobs_per_round=2, **conf)
    with ActorNetworkRunner("master", data or IrisDataSetIterator(16)) as runner:
        runner.setup(given, resume=resume)
        return runner.train()


def entry(began: float, version: int, score: float = 0.5) -> HistoryEntry:
    counts = {"round": version, "batches": version, "examples": 16 * version, "seconds": 1.0, "staleness": 0.0}
    return HistoryEntry(began=began, time=began, version=version, score=score, workers={"w": 16.0}, **counts)


def write(folder: Path, *entries: HistoryEntry) -> None:
    folder.mkdir(exist_ok=True)
    (folder / HistoryFile.NAME).write_bytes(b"\n".join(msgspec.json.encode(entry) for entry in entries))


def test_every_version_of_a_run_is_in_its_history_once(tmp_path: Path) -> None:
    result = trained(tmp_path / "run", epochs=3)
    history = read_history(tmp_path / "run")
    assert [entry.version for entry in history] == list(range(1, result.head.version + 1))
    assert [entry.round for entry in history] == list(range(1, result.plan.total_rounds + 1))
    assert (history[-1].examples, history[-1].batches) == (result.head.examples, result.head.batches)
    assert history[-1].score == result.head.score
    assert all(entry.staleness == 0 and entry.seconds > 0 and min(entry.workers.values()) > 0 for entry in history)


def test_the_jobs_of_an_asynchronous_run_are_as_stale_as_their_models(tmp_path: Path) -> None:
    result = trained(
        tmp_path / "run", data=DigitsDataSetIterator(16), classes=10, features=64, epochs=2, router="hogwild", window=4
    )
    history = read_history(tmp_path / "run")
    assert [entry.version for entry in history] == list(range(1, result.head.version + 1))
    assert max(entry.staleness for entry in history) > 0
    jobs = [after.batches - before.batches for before, after in itertools.pairwise(history)]
    assert sum(jobs) + history[0].batches == result.plan.total_batches


def test_a_run_that_resumes_goes_on_with_its_history(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt), ActorNetworkRunner("master", IrisDataSetIterator(16)) as runner:
        runner.setup(
            Conf(multi_layer_conf=zoo.mlp(4, 3), checkpoint_dir=str(folder), workers=2, jobs_per_round=2, epochs=25)
        )

        def interrupt(status) -> None:
            if status.head is not None and status.head.round > 3:
                raise KeyboardInterrupt

        runner.train(interrupt)
    before = read_history(folder)
    result = trained(folder, epochs=25, resume=True)
    history = read_history(folder)
    assert [entry.version for entry in history] == list(range(1, result.head.version + 1))
    assert len({entry.began for entry in history}) == 2
    assert history[: len(before)] == before
    assert result.course == trained(tmp_path / "whole", epochs=25).course is not None


def test_without_the_versions_of_another_process_the_course_of_the_score_is_unknown(tmp_path: Path) -> None:
    history = History(None, trained(tmp_path / "run").plan, RUNNING)
    history.first_version = 5
    assert history.course() is None


def test_versions_that_a_run_made_anew_take_the_place_of_those_before(tmp_path: Path) -> None:
    first = [entry(1.0, version) for version in range(1, 8)]
    second = [entry(2.0, version, score=0.25) for version in (5, 6)]
    late = entry(1.0, 8)  # of a master that was frozen, and wrote what it still had
    write(tmp_path / "run", *first, *second, late)
    assert read_history(tmp_path / "run") == [*first[:4], *second]


def test_a_line_that_a_crash_has_cut_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "run", entry(1.0, 1), entry(1.0, 2))
    file = tmp_path / "run" / HistoryFile.NAME
    file.write_bytes(file.read_bytes()[:-20])
    assert read_history(tmp_path / "run") == [entry(1.0, 1)]


def test_a_history_that_is_followed_is_the_same_and_only_its_new_lines_are_read(tmp_path: Path) -> None:
    counts = list[int]()

    class Counted(LocalFolder):
        def read_new_lines(self, name: str, mark: Mark | None) -> Lines:
            found = super().read_new_lines(name, mark)
            counts.append(len(found.lines))
            return found

    folder = Counted(tmp_path)
    file, followed = HistoryFile(folder), FollowedHistory(folder)
    sessions = [
        [entry(1.0, 1), entry(1.0, 2)],
        [],
        [entry(1.0, 3)],
        [entry(2.0, 3), entry(2.0, 4)],  # went on from a checkpoint
        [entry(1.0, 4)],  # what the process before had still to write
        [entry(2.0, 5)],
        [entry(3.0, 2)],
    ]
    for lines in sessions:
        file.append(lines)
        assert followed.read() == HistoryFile(folder).read()
    assert counts == [len(lines) for lines in sessions]
    (tmp_path / HistoryFile.NAME).unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        followed.read()
    file.append([entry(9.0, 1)])
    assert followed.read() == [entry(9.0, 1)]


def test_the_command_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "run", entry(1.0, 1), entry(1.0, 2, score=0.25))
    assert dl4j("logs", str(tmp_path / "run"), "--history") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "version 2, round 2: score 0.2500, 32 examples, 16/s, w 16/s" in lines[1]
    assert dl4j("logs", str(tmp_path / "run"), "--history", "--format", "json") == 0
    shown = json.loads(capsys.readouterr().out)["history"]
    assert [(one["version"], one["score"]) for one in shown] == [(1, 0.5), (2, 0.25)]


def test_a_validation_is_a_version_with_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = trained(tmp_path / "run", epochs=2, validation=ValidationConf(fraction=0.2))
    found = [entry for entry in read_history(tmp_path / "run") if entry.validation is not None]
    assert [entry.version for entry in found][-1] == result.head.version and len(found) == 2
    assert found[-1].validation == result.validation and found[-1].workers == {}
    assert dl4j("logs", str(tmp_path / "run"), "--history") == 0
    loss, accuracy = result.validation.loss, result.validation.accuracy
    assert f", validation loss {loss:.4f}, accuracy {accuracy:.4f}, " in capsys.readouterr().out.splitlines()[-1]


def test_a_version_has_the_learning_rate_that_it_was_trained_with(tmp_path: Path) -> None:
    network = zoo.mlp(4, 3)
    schedule = StepSchedule(decay_rate=0.5, steps=4)
    updater = Sgd(learning_rate=0.1, schedule=schedule)
    network = msgspec.structs.replace(network, conf=msgspec.structs.replace(network.conf, updater=updater))
    trained(tmp_path / "run", network=network, epochs=2, validation=ValidationConf(fraction=0.2))
    history = [entry for entry in read_history(tmp_path / "run") if entry.validation is None]
    assert [entry.learning_rate for entry in history] == [0.1 * 0.5 ** (done // 4) for done in range(len(history))]
    assert len(history) > 6
    validated = [entry for entry in read_history(tmp_path / "run") if entry.validation is not None]
    assert validated and all(entry.learning_rate is None for entry in validated)


def test_pretraining_has_the_rate_of_its_layer(tmp_path: Path) -> None:
    network = NeuralNetConfiguration.builder().learning_rate(0.2).list()
    network = network.layer(AutoEncoder(n_in=4, n_out=3, pretrain_learning_rate=0.01)).layer(OutputLayer(n_out=3))
    trained(tmp_path / "run", network=network.pretrain(True).build(), epochs=1, pretrain_epochs=1)
    history = read_history(tmp_path / "run")
    assert {entry.learning_rate for entry in history} == {0.01, 0.2}
    assert [entry.learning_rate for entry in history] == sorted(entry.learning_rate for entry in history)


@pytest.mark.parametrize("updater", [AdaDelta(), NoOp()])
def test_an_updater_without_a_rate_has_none(updater: AdaDelta | NoOp) -> None:
    network = zoo.mlp(4, 3)
    conf = msgspec.structs.replace(network.conf, updater=updater)
    assert learning_rate_at(msgspec.structs.replace(network, conf=conf), 3) is None


def test_a_schedule_over_segments_of_sequences_has_no_known_rate() -> None:
    network = msgspec.structs.replace(zoo.mlp(4, 3), backprop_type="truncated_bptt")
    assert learning_rate_at(network, 3) == network.conf.updater.rate(3)
    updater = Sgd(learning_rate=0.1, schedule=StepSchedule(decay_rate=0.5, steps=4))
    conf = msgspec.structs.replace(network.conf, updater=updater)
    assert learning_rate_at(msgspec.structs.replace(network, conf=conf), 3) is None


def test_a_history_of_before_there_was_a_rate_is_read(tmp_path: Path) -> None:
    fields = msgspec.to_builtins(entry(1.0, 1))
    del fields["learning_rate"]
    (tmp_path / HistoryFile.NAME).write_text(json.dumps(fields))
    assert read_history(tmp_path) == [entry(1.0, 1)]


def test_a_history_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckpointError, match=r"history\.jsonl cannot be read: .*--checkpoint-dir"):
        read_history(tmp_path)
    assert dl4j("logs", "--history", "--zookeeper", "127.0.0.1:1") == 2
    assert "dl4j logs DIR --history" in capsys.readouterr().err
    assert dl4j("logs", str(tmp_path)) == 8
    assert "dl4j logs DIR --history" in capsys.readouterr().err


def versions(lines: list[HistoryEntry]) -> list[tuple[float, int]]:
    return [(each.began, each.version) for each in versions_that_count(lines)]


@pytest.mark.parametrize("clocks", [(100.0, 50.0, 75.0), (100.0, 200.0, 300.0), (3.0, 2.0, 1.0)])
@pytest.mark.parametrize("is_late", [False, True], ids=["in order", "the first one writes last"])
def test_a_take_over_by_a_machine_whose_clock_is_behind_loses_no_version(
    clocks: tuple[float, float, float], is_late: bool
) -> None:
    """The second master goes on behind the first one's last version, the third from a checkpoint of the second."""
    a, b, c = clocks
    first = [entry(a, version) for version in (1, 2, 3)]
    others = [entry(b, 4), entry(b, 5), entry(b, 6), entry(c, 6), entry(c, 7)]
    lines = [*others, *first] if is_late else [*first, *others]
    assert versions(lines) == [(a, 1), (a, 2), (a, 3), (b, 4), (b, 5), (c, 6), (c, 7)]


def test_a_master_that_was_frozen_adds_no_version_to_those_made_anew() -> None:
    lines = [entry(9.0, 1), entry(9.0, 2), entry(1.0, 2), entry(1.0, 3), entry(9.0, 3), entry(9.0, 4)]
    assert versions(lines) == [(9.0, 1), (1.0, 2), (1.0, 3)]
