"""Batches of any iterable, read once: the answer of the same in memory, bounded memory, errors that name the batch."""

from __future__ import annotations

import hashlib
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, CollectionJobIterator, Conf, DataSet
from dl4jlegacy.datasets import ExportedDataSetIterator, ListDataSetIterator, ListMultiDataSetIterator, MultiDataSet
from dl4jlegacy.datasets.batches import batches_of
from dl4jlegacy.datasets.exported import export
from dl4jlegacy.datasets.fingerprint import fingerprint
from dl4jlegacy.errors import CheckpointError, ConfError, DataError
from dl4jlegacy.nn import zoo
from dl4jlegacy.training.prepare import params_sha256
from tests.support import REPOSITORY


def data(examples: int = 44, seed: int = 5) -> DataSet:
    generator = np.random.default_rng(seed)
    return DataSet.of_classes(generator.random((examples, 6), dtype=np.float32), generator.integers(0, 3, examples), 3)


def parts() -> list[DataSet]:
    return list(data().batch_by(8))


class Classic:
    """DL4J's iterator of old: it only goes forward, and starts again when told to."""

    def __init__(self) -> None:
        self._left = parts()[3:]  # as if somebody had begun with it

    def has_next(self) -> bool:
        return bool(self._left)

    def next(self) -> DataSet:
        return self._left.pop(0)

    def reset(self) -> None:
        self._left = parts()


def conf(**changes: Any) -> Conf:
    return Conf(**{"multi_layer_conf": zoo.mlp(6, 3, hidden=(5,), seed=7), "workers": 2, "epochs": 3, **changes})


def trained(iterator: Any, **changes: Any) -> str:
    with ActorNetworkRunner("master", iterator) as runner:
        runner.setup(conf(**changes))
        result = runner.train(deadline=120)
        assert result is not None
        assert (result.batches_lost, result.batches_duplicated) == (0, 0)
        return params_sha256(runner.network(result).params)


KINDS: dict[str, Callable[[], Any]] = {
    "list": parts,
    "generator": lambda: (part for part in parts()),
    "pairs of arrays": lambda: ((part.features, part.labels) for part in parts()),
    "classic": Classic,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_reference", [True, False], ids=["by reference", "by value"])
def test_any_iterable_ends_in_the_bits_of_the_same_batches_in_memory(kind: str, by_reference: bool) -> None:
    in_memory = trained(ListDataSetIterator(data(), 8, shuffle=False))
    assert trained(KINDS[kind](), data_by_reference=by_reference) == in_memory


def test_what_has_its_batches_by_number_is_taken_as_it_is() -> None:
    assert batches_of(ListDataSetIterator(data(), 8)) is None
    several = MultiDataSet([data().features], [data().labels])
    assert batches_of(ListMultiDataSetIterator(several, 8)) is None
    assert batches_of(CollectionJobIterator([1, 2])) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (5, "are int, and no batches"),
        (b"abc", "are bytes"),
        ("abc", "there are no exported batches in abc on "),
        (data(), r"are DataSet.*ListDataSetIterator\(data, batch_size"),
    ],
    ids=["int", "bytes", "no folder", "DataSet"],
)
def test_what_is_no_batches_is_refused_with_what_to_give(given: Any, words: str) -> None:
    with ActorNetworkRunner("master", given) as runner, pytest.raises(DataError, match=words):
        runner.setup(conf())


def test_an_iterator_that_gives_other_data_the_second_time_is_refused_by_resume(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    runner = ActorNetworkRunner("master", (part for part in parts()))
    runner.setup(conf(checkpoint_dir=folder, checkpoint_every=1))

    def stop(status: Any) -> None:
        if status.head is not None and status.head.round > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.train(stop)
    other = (part for part in data(seed=6).batch_by(8))
    with ActorNetworkRunner("master", other) as again, pytest.raises(CheckpointError, match="so something in it has"):
        again.setup(conf(checkpoint_dir=folder), resume=True)
    with ActorNetworkRunner("master", parts()) as again:
        again.setup(conf(checkpoint_dir=folder), resume=True)
        again.train(deadline=120)


def test_a_set_up_that_fails_leaves_no_files_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runner = ActorNetworkRunner("master", parts())
    with pytest.raises(ConfError, match="9 inputs"):
        runner.setup(Conf(multi_layer_conf=zoo.mlp(9, 3, hidden=(5,))))
    assert not list(tmp_path.glob("dl4j-batches-*"))
    runner.setup(conf())
    assert len(list(tmp_path.glob("dl4j-batches-*"))) == 1
    runner.shutdown()
    assert not list(tmp_path.glob("dl4j-batches-*"))


def raising() -> Iterator[DataSet]:
    yield from parts()[:3]
    raise ValueError("the tape is torn")


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        (raising, "the data's iterator failed at batch 3: ValueError: the tape is torn"),
        (list, "the data have no batch"),
        (lambda: [*parts()[:2], DataSet(np.ones((8, 5)), np.ones((8, 3)))], r"batch 2 has features of shape \(5,\) an"),
        (lambda: [*parts()[:2], DataSet(np.ones((8, 6)), np.ones((8, 2)))], r"batch 2 has labels of shape \(2,\) an"),
        (lambda: [parts()[5], *parts()[:2]], "batch 1 has 8 examples, the first one 4"),
        (lambda: [*parts(), parts()[0]], "batch 5 has 4 examples, the first one 8; only the last"),
        (lambda: [*parts()[:2], "rows"], "batch 2 is str; a batch is a DataSet, a MultiDataSet, or a pair"),
        (lambda: [(np.ones((8, 6)), np.arange(8) % 3)], r"batch 0: labels have shape \(8,\).*MapDataSetIterator"),
        (lambda: [{"pixels": [1, 2], "label": 0}], r"batch 0 is a row of columns \(pixels, label\)"),
        (
            lambda: {"train": parts(), "test": parts()},
            "are dict, and no batches.*: 'train', 'test'",
        ),
        (lambda: [*parts()[:2], (np.ones((8, 6)), np.full((8, 3), np.nan))], "batch 2: labels.*nan"),
        (lambda: [*parts()[:1], parts()[0].rows(0, 0)], "batch 1 has no example"),
    ],
    ids=[
        "raises",
        "empty",
        "features",
        "labels",
        "larger",
        "smaller",
        "no-batch",
        "class-numbers",
        "row",
        "parts",
        "NaN",
        "no-example",
    ],
)
def test_a_batch_that_does_not_fit_is_named_with_the_reason(batches: Any, words: str) -> None:
    with ActorNetworkRunner("master", batches()) as runner, pytest.raises(DataError, match=words):
        runner.setup(conf())


def test_files_that_change_during_the_run_are_noticed(tmp_path: Path) -> None:
    iterator = export(parts(), tmp_path)
    assert iterator.total_batches == 6 and iterator.total_examples == 44
    assert fingerprint(iterator) == iterator.digest != fingerprint(export(parts()[:5], _new(tmp_path / "b")))
    assert [len(batch) for batch in iterator] == [8, 8, 8, 8, 8, 4]
    file = tmp_path / "batch-00000002"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    host, expected = re.escape(socket.gethostname()), iterator._batches[2].sha256
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    words = (
        f"batch 2 is not what was exported: {re.escape(str(file))} on {host} has SHA-256 {found}, and not {expected}"
    )
    with pytest.raises(DataError, match=words):
        iterator.batch(0, 2)
    file.unlink()
    with pytest.raises(DataError, match=f"batch 2 cannot be read from {re.escape(str(file))} on {host}: No such file"):
        iterator.batch(0, 2)
    with pytest.raises(DataError, match="batches run from 0 to 5"):
        iterator.batch(0, 6)


def test_exported_batches_are_opened_by_their_folder_and_train_to_the_same_bits(tmp_path: Path) -> None:
    folder, in_memory = tmp_path / "rings", trained(ListDataSetIterator(data(), 8, shuffle=False))
    assert trained((part for part in parts()), export_directory=str(folder)) == in_memory
    opened = ExportedDataSetIterator.open(folder)
    assert (opened.total_batches, opened.total_examples, opened.batch_size) == (6, 44, 8)
    assert (opened.input_columns, opened.total_outcomes, opened.place) == (6, 3, str(folder))
    assert opened.digest == export(parts(), tmp_path / "b").digest
    assert trained(opened) == trained(folder) == trained(str(folder)) == in_memory


def test_a_folder_that_has_batches_already_is_not_written_to_again(tmp_path: Path) -> None:
    before = export(parts(), tmp_path).digest
    changes = {"export_directory": str(tmp_path)}
    with (
        ActorNetworkRunner("master", list(data(seed=6).batch_by(8))) as runner,
        pytest.raises(DataError, match="has exported batches already: give ActorNetworkRunner"),
    ):
        runner.setup(conf(**changes))
    assert ExportedDataSetIterator.open(tmp_path).digest == before


def test_a_run_goes_on_with_the_batches_that_it_has_exported(tmp_path: Path) -> None:
    """The generator is used up, and the run needs nothing of it any more."""
    changes = {"export_directory": str(tmp_path / "data"), "checkpoint_dir": str(tmp_path / "run")}
    batches = (part for part in parts())
    with ActorNetworkRunner("master", batches) as runner:
        runner.setup(conf(**changes, checkpoint_every=1))
        runner.train(deadline=120)
    with ActorNetworkRunner("master", batches) as again:
        again.setup(conf(**changes).replace(epochs=4), resume=True)
        result = again.train(deadline=120)
        assert result is not None
        assert params_sha256(again.network(result).params) == trained(parts(), epochs=4)


def test_an_iterator_that_shuffles_is_not_exported_as_one_epoch(tmp_path: Path) -> None:
    changes = {"export_directory": str(tmp_path / "a")}
    with (
        ActorNetworkRunner("master", ListDataSetIterator(data(), 8)) as runner,
        pytest.raises(DataError, match=r"ListDataSetIterator gives other batches in every epoch.*shuffle=False"),
    ):
        runner.setup(conf(**changes))
    kept = ListDataSetIterator(data(), 8, shuffle=False)
    assert trained(kept, **changes) == trained(kept)
    assert ExportedDataSetIterator.open(tmp_path / "a").total_batches == 6


MANIFESTS = {
    "text": b"no JSON",
    "number": b"5",
    "no bytes": b"",
    "deep": b"[" * 100_000,
    "no batch": b'{"format": "dl4jlegacy-batches-1", "columns": 6, "outcomes": 3, "batches": []}',
    "other format": b'{"format": "x", "columns": 6, "outcomes": 3, "batches": [{"examples": 8, "sha256": "%s"}]}'
    % (b"0" * 64),
    "short digest": b'{"format": "dl4jlegacy-batches-1", "columns": 6, "outcomes": 3, "batches": [{"examples": 8, '
    b'"sha256": "00"}]}',
    "no examples": b'{"format": "dl4jlegacy-batches-1", "columns": 6, "outcomes": 3, "batches": [{"examples": 0, '
    b'"sha256": "%s"}]}' % (b"0" * 64),
    "a field more": b'{"format": "dl4jlegacy-batches-1", "columns": 6, "outcomes": 3, "batches": [], "code": "x"}',
}


@pytest.mark.parametrize("content", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_that_is_none_is_refused_with_its_place(tmp_path: Path, content: bytes) -> None:
    export(parts(), tmp_path)
    (tmp_path / "batches.json").write_bytes(content)
    with pytest.raises(DataError, match=f"batches.json in {re.escape(str(tmp_path))} on {socket.gethostname()} is "):
        ExportedDataSetIterator.open(tmp_path)


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.long
def test_data_larger_than_the_memory_that_is_allowed_train(tmp_path: Path) -> None:
    """1.2 GB of batches in a process that may grow by 300 MB; no other one of the tests' process counts."""
    script = """
import numpy as np, psutil
from dl4jlegacy import ActorNetworkRunner, Conf, DataSet
from dl4jlegacy.nn import zoo

def batches():
    for number in range(300):
        generator = np.random.default_rng(number)
        yield DataSet.of_classes(generator.random((1000, 1000), dtype=np.float32), generator.integers(0, 3, 1000), 3)

process, sizes = psutil.Process(), []
with ActorNetworkRunner("master", batches()) as runner:
    before = process.memory_info().rss
    runner.setup(Conf(multi_layer_conf=zoo.mlp(1000, 3, hidden=(5,)), workers=2, epochs=1))
    result = runner.train(lambda status: sizes.append(process.memory_info().rss))
assert result.head.batches == 300
print((max(sizes) - before) // 2**20)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300
    assert not list(tmp_path.glob("dl4j-batches-*"))
