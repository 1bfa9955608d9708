"""Data that a cluster's workers read themselves: what a run's Conf says of them, and what a worker makes of that."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import Conf, DataSet, ListDataSetIterator, ValidationConf
from dl4jlegacy.cluster.program import ClusterProgram
from dl4jlegacy.cluster.reached_data import jobs_by_reference
from dl4jlegacy.datasets import export
from dl4jlegacy.errors import ConfError, DataError
from dl4jlegacy.nn import zoo
from dl4jlegacy.scaleout.state.job import encode_work
from dl4jlegacy.training.prepare import batches, prepare
from dl4jlegacy.training.run import Run, job_iterator, resolve
from dl4jlegacy.training.run_data import load_data
from tests.support.aws_fixtures import FaultProxy

HERE = re.escape(socket.gethostname())


def parts(count: int = 6) -> list[DataSet]:
    generator = np.random.default_rng(5)
    given = generator.random((8 * count, 6), dtype=np.float32), generator.integers(0, 3, 8 * count)
    return list(DataSet.of_classes(*given, 3).batch_by(8))


def exported(folder: Path, **changes: Any) -> Run:
    conf = Conf(multi_layer_conf=zoo.mlp(6, 3, hidden=(5,)), run="x", jobs_per_round=2, export_directory=str(folder))
    return resolve(conf.replace(**changes), export(parts(), folder), local_workers=0, on_cluster=True)


def by_name(**changes: Any) -> Run:
    conf = Conf(dataset="digits", run="x", workers=2, data_by_reference=True).replace(**changes)
    return prepare(conf, frozenset({*changes, "validation"}), local_workers=0, on_cluster=True)[0]


def test_jobs_carry_their_data_on_a_cluster_unless_their_place_is_named(tmp_path: Path) -> None:
    assert exported(tmp_path / "a").conf.data_by_reference is True
    assert exported(tmp_path / "b", data_by_reference=False).conf.data_by_reference is False
    assert by_name(data_by_reference=None).conf.data_by_reference is False
    assert jobs_by_reference(by_name(data_by_reference=None).conf, by_name().plan) is None
    alone = prepare(Conf(dataset="digits"), frozenset())[0].conf
    assert alone.data_by_reference is None  # so that a cluster that goes on with the run decides for itself


def test_a_worker_that_reads_its_data_splits_off_what_the_master_does() -> None:
    run = by_name(validation=ValidationConf(fraction=0.25))
    jobs = jobs_by_reference(run.conf, run.plan)
    assert jobs is not None and run.plan.validation is not None
    theirs = job_iterator(run.conf, batches(run.conf, load_data("digits")))
    rounds = [0, next(filter(run.plan.is_validation, range(run.plan.total_rounds)))]
    for slot in (run.plan.slot(round_, 0) for round_ in rounds):
        assert bytes(encode_work(jobs.work(slot))) == bytes(encode_work(theirs.work(slot)))


def test_validation_data_that_no_worker_would_find_are_refused() -> None:
    with pytest.raises(ConfError, match="workers would not find those to validate on"):
        by_name(validation=ValidationConf(dataset="digits"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({}, "needs data that all processes reach"), ({"export_directory": "/shared"}, "are ListDataSetIterator, which")],
    ids=["no place", "not exported"],
)
def test_data_that_no_worker_would_find_are_refused(changes: dict[str, Any], words: str) -> None:
    conf = Conf(multi_layer_conf=zoo.mlp(6, 3), data_by_reference=True, **changes)
    data = ListDataSetIterator(DataSet.merge(parts()), 8)
    with pytest.raises(ConfError, match=words):
        resolve(conf, data, local_workers=0, on_cluster=True)


def test_a_programs_own_batches_are_not_taken_for_those_of_a_data_set_with_a_name() -> None:
    program = ClusterProgram.at("127.0.0.1:1", "master", "hazelcast://127.0.0.1:1", "", bind="", workers=None)
    conf = Conf(multi_layer_conf=zoo.mlp(6, 3), dataset="digits", data_by_reference=True)
    data = ListDataSetIterator(DataSet.merge(parts()), 8)
    with pytest.raises(ConfError, match=r"needs Conf\.export_directory for a program's own data"):
        program.leading(conf, data, lambda status: None, resume=False)


def test_a_worker_reads_the_batches_that_the_master_would_have_sent(tmp_path: Path) -> None:
    runs = {"exported": exported(tmp_path), "named": by_name(), "MNIST's model": by_name(model="dbn", seed=9)}
    for kind, run in runs.items():
        jobs = jobs_by_reference(run.conf, run.plan)
        assert jobs is not None and jobs.plan == run.plan, kind
        slots = [run.plan.slot(round_, slot) for round_ in (0, 2) for slot in range(run.plan.slots(round_))]
        sent = [_work(run, tmp_path, slot) for slot in slots]
        assert [bytes(encode_work(jobs.work(slot))) for slot in slots] == sent, kind


def _work(run: Run, folder: Path, slot: Any) -> bytes:
    if run.conf.export_directory:
        return bytes(encode_work([parts()[index] for index in range(slot.first, slot.last)]))
    from dl4jlegacy.training.prepare import batches
    from dl4jlegacy.training.run_data import load_data

    iterator = batches(run.conf, load_data("digits"))
    return bytes(encode_work([iterator.batch(slot.epoch, index) for index in range(slot.first, slot.last)]))


def test_a_worker_without_the_folder_says_which_where_and_what_to_do(tmp_path: Path) -> None:
    run = exported(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    words = rf"run x has its data in {tmp_path}/a, .* {HERE} cannot: .*no batches.json; share that folder.*S3; or begin"
    with pytest.raises(DataError, match=words):
        jobs_by_reference(run.conf, run.plan)


def test_a_worker_takes_no_other_data_for_the_runs(tmp_path: Path) -> None:
    run = exported(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    there = export(parts(5), tmp_path / "a").digest
    with pytest.raises(DataError, match=f"a on {HERE} has data of fingerprint {there}, .*{run.conf.data_fingerprint}"):
        jobs_by_reference(run.conf, run.plan)
    named = by_name()
    with pytest.raises(DataError, match=f"iris on {HERE} has data of fingerprint"):
        jobs_by_reference(named.conf.replace(dataset="iris"), named.plan)
    with pytest.raises(DataError, match="and those of run x have none"):
        jobs_by_reference(named.conf.replace(data_fingerprint=""), named.plan)
    with pytest.raises(DataError, match="but in other batches"):
        jobs_by_reference(named.conf.replace(batch_size=7), named.plan)


def test_a_batch_that_was_changed_after_the_worker_came_is_not_trained_on(tmp_path: Path) -> None:
    run = exported(tmp_path)
    jobs = jobs_by_reference(run.conf, run.plan)
    assert jobs is not None
    shutil.copy(tmp_path / "batch-00000001", tmp_path / "batch-00000000")
    with pytest.raises(DataError, match=f"batch 0 is not what was exported: .*batch-00000000 on {HERE} has SHA-256 "):
        jobs.work(run.plan.slot(0, 0))
    assert len(jobs.work(run.plan.slot(0, 1))) == 1


@pytest.mark.long
def test_mnist_is_looked_for_where_the_worker_has_it(
    mnist_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    """The master's folder, which its Conf names, need not be there."""
    monkeypatch.delenv("DL4J_DATA_DIR", raising=False)
    run = by_name(dataset="mnist", data_dir=mnist_dir)
    conf = run.conf.replace(data_dir=str(tmp_path / "the master's"))
    with pytest.raises(DataError, match=rf"run x has its data in mnist, .*{HERE} cannot.*DL4J_DATA_DIR or --data-dir"):
        jobs_by_reference(conf, run.plan)
    assert jobs_by_reference(conf, run.plan, mnist_dir) is not None
    monkeypatch.setenv("DL4J_DATA_DIR", mnist_dir)
    assert jobs_by_reference(conf, run.plan) is not None


@pytest.mark.long
def test_batches_in_s3_are_read_by_several_threads(aws_environment: FaultProxy) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from dl4jlegacy.datasets.exported import open_batches
    from dl4jlegacy.storage.paths import open_folder

    place = "s3://data-bucket/rings"
    export(parts(), open_folder(place))
    there = open_batches(place)
    assert there.place == place
    run = resolve(
        Conf(multi_layer_conf=zoo.mlp(6, 3, hidden=(5,)), run="x", workers=2, export_directory=place),
        there,
        local_workers=0,
        on_cluster=True,
    )
    assert run.conf.export_directory == place
    assert jobs_by_reference(run.conf, run.plan) is not None
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda index: there.batch(1, index), range(6)))
    assert all(np.array_equal(one.features, other.features) for one, other in zip(read, parts(), strict=True))
    with pytest.raises(DataError, match="no exported batches in s3://data-bucket/nothing on"):
        open_batches("s3://data-bucket/nothing")
