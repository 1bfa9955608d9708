"""MultiDataSets in files: the bits of the same in memory, of any rank and with masks; what is damaged is named."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf
from dl4jlegacy.arrays import wire
from dl4jlegacy.cluster.reached_data import jobs_by_reference
from dl4jlegacy.datasets import DataSet, ExportedDataSetIterator, ListMultiDataSetIterator, MultiDataSet, export
from dl4jlegacy.datasets.exported import ExportedMultiDataSetIterator
from dl4jlegacy.datasets.fingerprint import fingerprint
from dl4jlegacy.errors import DataError
from dl4jlegacy.scaleout.state.job import encode_work
from dl4jlegacy.training.prepare import params_sha256
from dl4jlegacy.training.run import resolve
from tests.nn.test_given_batches import SEVERAL, iterator, parts, two_of_each

RANDOM = np.random.default_rng(7)
"""Two images, a sequence with gaps and float64 rows far from 0; labels of rank 2 and 3, one array of them masked."""
WIDE = MultiDataSet(
    [
        RANDOM.normal(size=(6, 2, 4, 4)),
        RANDOM.normal(size=(6, 3, 5)),
        1.7e12 + RANDOM.normal(size=(6, 2)),
    ],
    [np.eye(6), RANDOM.normal(size=(6, 2, 5)), RANDOM.normal(size=(6, 1))],
    [None, np.tri(6, 5), None],
    [np.array([1.0, 0, 1, 1, 1, 1]), np.tri(6, 5), None],
)


def conf(**changes: Any) -> Conf:
    return Conf(**{"computation_graph_conf": two_of_each(), "workers": 2, "epochs": 3, **changes})


def trained(given: Any, **changes: Any) -> str:
    with ActorNetworkRunner("master", given) as runner:
        runner.setup(conf(**changes))
        result = runner.train(deadline=60)
        assert result is not None and (result.batches_lost, result.batches_duplicated) == (0, 0)
        return params_sha256(runner.network(result).params)


def same(one: MultiDataSet, other: MultiDataSet) -> None:
    a, b = one.arrays(), other.arrays()
    assert a.keys() == b.keys()
    for name, array in a.items():
        assert (array.dtype, array.shape, array.tobytes()) == (b[name].dtype, b[name].shape, b[name].tobytes()), name


def test_arrays_of_any_rank_and_their_masks_come_back_as_they_were(tmp_path: Path) -> None:
    exported = export([WIDE.rows(0, 4), WIDE.rows(4, 6)], tmp_path)
    assert isinstance(exported, ExportedMultiDataSetIterator)
    opened = ExportedMultiDataSetIterator.open(tmp_path)
    assert (opened.total_batches, opened.total_examples, opened.batch_size) == (2, 6, 4)
    assert opened.digest == exported.digest == fingerprint(opened)
    for start, found in zip((0, 4), opened, strict=True):
        same(WIDE.rows(start, min(start + 4, 6)), found)


def test_exported_batches_train_to_the_bits_of_those_in_memory(tmp_path: Path) -> None:
    in_memory, folder = trained(iterator(SEVERAL)), tmp_path / "a"
    assert trained((part for part in parts(SEVERAL)), export_directory=str(folder)) == in_memory
    assert trained(str(folder)) == trained(ExportedMultiDataSetIterator.open(folder)) == in_memory
    assert trained(iterator(SEVERAL), export_directory=str(tmp_path / "b")) == in_memory
    assert ExportedMultiDataSetIterator.open(tmp_path / "b").digest == ExportedMultiDataSetIterator.open(folder).digest
    with (
        ActorNetworkRunner("master", ListMultiDataSetIterator(SEVERAL, 8)) as runner,
        pytest.raises(DataError, match=r"ListMultiDataSetIterator gives other batches in every epoch.*shuffle=False"),
    ):
        runner.setup(conf(export_directory=str(tmp_path / "c")))


def test_a_worker_reads_the_batches_that_the_master_would_have_sent(tmp_path: Path) -> None:
    exported = export(parts(SEVERAL), tmp_path)
    run = resolve(conf(run="x", export_directory=str(tmp_path)), exported, local_workers=0, on_cluster=True)
    assert run.conf.data_by_reference is True
    jobs = jobs_by_reference(run.conf, run.plan)
    assert jobs is not None and jobs.plan == run.plan
    for slot in (run.plan.slot(round_, slot) for round_ in (0, 1) for slot in range(run.plan.slots(round_))):
        sent = encode_work(parts(SEVERAL)[slot.first : slot.last])
        assert bytes(encode_work(jobs.work(slot))) == bytes(sent)


# -- what does not fit, is damaged or somebody else's ----------------------------------------------------------------

X, Y = np.ones((8, 4)), np.ones((8, 3))
UNLIKE: dict[str, tuple[list[Any], str]] = {
    "kind": ([MultiDataSet([X], [Y]), DataSet(X, Y)], "batch 1 is a DataSet, and those before it MultiDataSets"),
    "kind, the other way": (
        [DataSet(X, Y), MultiDataSet([X], [Y])],
        "batch 1 is a MultiDataSet, and those",
    ),
    "an array less": ([MultiDataSet([X, X], [Y]), MultiDataSet([X], [Y])], r"batch 1 is MultiDataSet\(\(8, 4\) -> "),
    "labels more": ([MultiDataSet([X], [Y]), MultiDataSet([X], [Y, Y])], r"batch 1 is .*as many arrays"),
    "columns": ([MultiDataSet([X, X], [Y]), MultiDataSet([X, Y], [Y])], r"batch 1 has features1 of shape \(3,\) an"),
    "mask": (
        [MultiDataSet([X], [Y], None, [np.ones(8)]), MultiDataSet([X], [Y])],
        "batch 1 and those before it do not all have a labels_masks0",
    ),
    "fewer before more": ([WIDE.rows(0, 2), WIDE.rows(0, 4)], "batch 1 has 4 examples, the first one 2"),
}


@pytest.mark.parametrize("what", UNLIKE)
def test_a_batch_that_is_not_like_the_first_is_named(what: str, tmp_path: Path) -> None:
    batches, words = UNLIKE[what]
    with pytest.raises(DataError, match=words):
        export(batches, tmp_path)


def rewritten(folder: Path, **changes: Any) -> Any:
    """Return the batches of a folder whose manifest says something else, and has the digests of what is there."""
    manifest = json.loads((folder / "batches.json").read_bytes()) | changes
    for number, batch in enumerate(manifest["batches"]):
        batch["sha256"] = hashlib.sha256((folder / f"batch-{number:08d}").read_bytes()).hexdigest()
    (folder / "batches.json").write_text(json.dumps(manifest))
    return ExportedMultiDataSetIterator.open(folder)


def replaced(folder: Path, content: bytes) -> Any:
    """Return the batches of a folder whose first file somebody has written."""
    (folder / "batch-00000000").write_bytes(content)
    return rewritten(folder)


FOREIGN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "more labels": (lambda folder: rewritten(folder, labels=3), "no exported MultiDataSet: it has no labels2"),
    "no frame": (lambda folder: replaced(folder, b"PK\3\4"), "no exported MultiDataSet: "),
    "not finite": (
        lambda folder: replaced(folder, bytes(wire.encode({}, {"features0": np.full((8, 4), np.nan)}))),
        "no exported MultiDataSet: ",
    ),
    "examples": (
        lambda folder: rewritten(folder, batches=[{"examples": 9, "sha256": ""}]),
        r"it has 8 examples, and batches.json says 9",
    ),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_files_of_somebody_else_are_refused_by_name(what: str, tmp_path: Path) -> None:
    export(parts(SEVERAL), tmp_path)
    make, words = FOREIGN[what]
    with pytest.raises(DataError, match=f"batch 0 cannot be read from {tmp_path}/batch-00000000 on .*{words}"):
        make(tmp_path).batch(0, 0)


NO_MANIFEST = [
    {"features": 0},
    {"features": 10**12},
    {"labels": -1},
    {"format": "dl4jlegacy-batches-1"},
    {"format": "x"},
    {"code": "x"},
]


@pytest.mark.parametrize("changes", NO_MANIFEST, ids=str)
def test_a_manifest_that_is_none_is_refused_with_its_place(changes: dict[str, Any], tmp_path: Path) -> None:
    export(parts(SEVERAL), tmp_path)
    with pytest.raises(DataError, match=f"batches.json in {tmp_path} on {socket.gethostname()} is none of exported"):
        rewritten(tmp_path, **changes)


def test_a_folder_of_the_other_kind_is_told(tmp_path: Path) -> None:
    export(parts(SEVERAL), tmp_path)
    with pytest.raises(DataError, match=f"{tmp_path} has MultiDataSets: open it by ExportedMultiDataSetIterator"):
        ExportedDataSetIterator.open(tmp_path)
    (tmp_path / "b").mkdir()
    export([DataSet(X, Y)], tmp_path / "b")
    with pytest.raises(DataError, match="has DataSets: open it by ExportedDataSetIterator"):
        ExportedMultiDataSetIterator.open(tmp_path / "b")
