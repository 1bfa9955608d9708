"""Batches of any iterable, read once and stored in files, so that each can be read by its number.

A run reads batches by position, on any thread and again after a failure, which a forward-only iterator cannot do. One
pass over the iterator writes each batch to its own file; after that only the batches in use are in memory.
``batches.json``, written last, has the digest of each file: on every machine a reader of the folder gets exactly what
was exported, or an error.

Follows the "Export" approach of DL4J's ``ParameterAveragingTrainingMaster``, there with serialized ``DataSet``s.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import msgspec
import numpy as np

from dl4jlegacy.arrays import wire
from dl4jlegacy.datasets.batches import Batch, BatchIterator, each_batch
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.iterator import BatchCursor
from dl4jlegacy.datasets.multi_dataset import MultiDataSet
from dl4jlegacy.errors import DataError, WireError, counted
from dl4jlegacy.storage.folders import Folder
from dl4jlegacy.storage.paths import open_folder
from dl4jlegacy.system import files
from dl4jlegacy.system.decoding import decodable

__all__ = ["ExportedDataSetIterator", "ExportedMultiDataSetIterator", "export", "one_epoch", "open_batches"]

_MANIFEST, _MOST_ARRAYS = "batches.json", 10_000
B = TypeVar("B", bound=Batch)


class _Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of examples of a batch in a file, and the SHA-256 of the file in hex."""

    examples: int
    sha256: str


class _Manifest(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="format", tag="dl4jlegacy-batches-1"
):
    """The contents of a folder of exported ``DataSet``s."""

    columns: int
    outcomes: int
    batches: tuple[_Batch, ...]

    def decoded(self, arrays: dict[str, Any]) -> DataSet:
        """Return the batch made from these arrays; raises ``KeyError`` and ``DataError``."""
        return DataSet.from_arrays(arrays.get)


class _MultiManifest(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="format", tag="dl4jlegacy-multi-batches-1"
):
    """The contents of a folder of exported ``MultiDataSet``s, and their numbers of feature and label arrays."""

    features: Annotated[int, msgspec.Meta(ge=1, le=_MOST_ARRAYS)]
    labels: Annotated[int, msgspec.Meta(ge=0, le=_MOST_ARRAYS)]
    batches: tuple[_Batch, ...]

    def decoded(self, arrays: dict[str, Any]) -> MultiDataSet:
        """Return the batch made from these arrays; raises ``KeyError`` and ``DataError``."""
        return MultiDataSet.from_arrays(self.features, self.labels, arrays.get)


class _ExportedBatches(BatchCursor[B]):
    """Batches in files, in the same order every epoch."""

    _kind: str

    def __init__(self, folder: Folder, batches: tuple[_Batch, ...], decode: Callable[[dict[str, Any]], B]) -> None:
        self._folder, self._batches = folder, batches
        self._decode: Callable[[dict[str, Any]], B] = decode
        self._reading = threading.Lock()  # a folder is used by one thread at a time
        self.place, self.batch_size = folder.place, batches[0].examples
        self.total_examples = sum(batch.examples for batch in batches)
        self.digest = hashlib.sha256(b"".join(bytes.fromhex(batch.sha256) for batch in batches)).hexdigest()

    @classmethod
    def open(cls, folder: Folder | Path | str) -> Self:
        """Return the batches of this kind that were exported to a folder. Reads no batch yet.

        Raises:
            DataError: the folder cannot be read, or has no such batches; names this host.
        """
        found: Any = open_batches(folder)
        if not isinstance(found, cls):
            raise DataError(f"{found.place} has {found._kind}s: open it by Exported{found._kind}Iterator.open")
        return found

    @property
    def total_batches(self) -> int:
        """Batches per epoch."""
        return len(self._batches)

    def batch(self, epoch: int, index: int) -> B:
        """Return batch ``index`` of any epoch; safe on any thread.

        Raises:
            DataError: its file is missing, or differs from what was exported; names the file, both digests and this
                host.
        """
        self.check(epoch, index, self.total_batches - 1)
        file = f"{self.place.rstrip('/')}/{_name(index)}"
        what = f"batch {index} cannot be read from {file} on {socket.gethostname()}"
        with files.errors_as(DataError, what), self._reading:
            content = self._folder.read(_name(index))
        expected, found = self._batches[index].sha256, hashlib.sha256(content).hexdigest()
        if found != expected:
            raise DataError(
                f"batch {index} is not what was exported: {file} on {socket.gethostname()} has SHA-256 {found}, and "
                f"not {expected}; was it changed, or is its copy not whole?"
            )
        try:
            batch = self._decode(wire.decode(content)[1])
        except (WireError, DataError, KeyError) as exc:
            lacking = f"it has no {exc.args[0]}" if isinstance(exc, KeyError) else str(exc)
            raise DataError(f"{what}: it is no exported {self._kind}: {lacking}") from exc
        if batch.num_examples != self._batches[index].examples:
            raise DataError(
                f"{what}: it has {counted(batch.num_examples, 'example')}, and {_MANIFEST} says "
                f"{self._batches[index].examples}"
            )
        return batch


class ExportedDataSetIterator(_ExportedBatches[DataSet]):
    """``DataSet``s in files, in the same order every epoch; made by ``export``. A ``DataSetIterator``.

    Attributes:
        place: the folder of the files.
        digest: digest of the contents of all batches, 64 hex digits.
    """

    _kind = "DataSet"

    def __init__(self, folder: Folder, manifest: _Manifest) -> None:
        super().__init__(folder, manifest.batches, manifest.decoded)
        self.input_columns, self.total_outcomes = manifest.columns, manifest.outcomes


class ExportedMultiDataSetIterator(_ExportedBatches[MultiDataSet]):
    """``MultiDataSet``s in files, like ``ExportedDataSetIterator`` for ``DataSet``s. A ``MultiDataSetIterator``."""

    _kind = "MultiDataSet"

    def __init__(self, folder: Folder, manifest: _MultiManifest) -> None:
        super().__init__(folder, manifest.batches, manifest.decoded)


Exported = ExportedDataSetIterator | ExportedMultiDataSetIterator


def open_batches(folder: Folder | Path | str) -> Exported:
    """Return the batches of either kind that were exported to a folder. Reads no batch yet.

    Raises:
        DataError: the folder cannot be read, or has no exported batches; names this host.
    """
    folder = _as_folder(folder)
    where = f"{folder.place} on {socket.gethostname()}"
    try:
        content = folder.read(_MANIFEST)
    except FileNotFoundError as exc:
        raise DataError(f"there are no exported batches in {where}: it has no {_MANIFEST}") from exc
    except OSError as exc:
        raise DataError(f"the exported batches in {where} cannot be read: {exc.strerror or exc}") from exc
    return _of_manifest(folder, _decoded_manifest(content, where))


def _of_manifest(folder: Folder, manifest: _Manifest | _MultiManifest) -> Exported:
    if isinstance(manifest, _Manifest):
        return ExportedDataSetIterator(folder, manifest)
    return ExportedMultiDataSetIterator(folder, manifest)


def export(
    batches: Iterable[Any],
    folder: Folder | Path | str,
    *,
    on_batch: Callable[[int, int], None] = lambda count, nbytes: None,
    remedy: str = "",
) -> Exported:
    """Read ``batches`` once and store each in a file, with one batch in memory at a time; return the exported batches.

    Args:
        batches: ``DataSet``s, pairs of features and labels, or ``MultiDataSet``s; all of one size, only the last may
            have fewer examples.
        folder: the folder for the files; the ``open`` method of the result's class reads it again.
        on_batch: called after each batch with the numbers of batches and bytes so far.
        remedy: advice that ends the error message if the folder cannot take more data.

    Raises:
        DataError: there is no batch, one is no batch, or differs in shape from the others; the iterable raised an
            error; the files cannot be written; or the folder has exported batches already. The message has the batch's
            number.
    """
    folder = _as_folder(folder)
    _check_unused(folder)
    kept: list[_Batch] = []
    first: Batch | None = None
    nbytes = 0
    for index, batch in enumerate(each_batch(batches)):
        if first is not None:
            _check_like(first, batch, index)
            _check_full(kept, index)
        first = first or batch.rows(0, 1)
        content = bytes(wire.encode({}, batch.arrays()))
        with files.errors_as(DataError, f"batch {index} cannot be kept in {folder.place}", remedy):
            folder.write(_name(index), content)
        if kept and batch.num_examples > kept[0].examples:
            raise _uneven(index, batch.num_examples, kept[0].examples)
        kept.append(_Batch(batch.num_examples, hashlib.sha256(content).hexdigest()))
        nbytes += len(content)
        on_batch(len(kept), nbytes)
    manifest: _Manifest | _MultiManifest
    if isinstance(first, MultiDataSet):
        manifest = _MultiManifest(len(first.features), len(first.labels), tuple(kept))
    else:
        assert first is not None  # each_batch yields at least one
        manifest = _Manifest(first.n_in, first.n_out, tuple(kept))
    with files.errors_as(DataError, f"{_MANIFEST} cannot be kept in {folder.place}", remedy):
        folder.write(_MANIFEST, msgspec.json.encode(manifest))
    return _of_manifest(folder, manifest)


def one_epoch(data: BatchIterator) -> Iterator[Batch]:
    """Yield the batches of an iterator's first epoch, which will stand for every epoch.

    Raises:
        DataError: the iterator's epochs differ, as the first batches of two epochs show.
    """
    first, second = data.batch(0, 0).arrays(), data.batch(1, 0).arrays()
    if first.keys() != second.keys() or not all(np.array_equal(first[name], second[name]) for name in first):
        raise DataError(
            f"{type(data).__name__} gives other batches in every epoch, and exported batches are the same in all: let "
            "it keep their order (shuffle=False), or let the data go with the jobs (no Conf.export_directory)"
        )
    for index in range(data.total_batches):
        yield data.batch(0, index)


def _check_full(kept: list[_Batch], index: int) -> None:
    """Raise ``DataError`` if a batch that is not the last has fewer examples than the first."""
    if kept[-1].examples != kept[0].examples:
        raise _uneven(index - 1, kept[-1].examples, kept[0].examples)


def _uneven(index: int, examples: int, expected: int) -> DataError:
    return DataError(
        f"batch {index} has {counted(examples, 'example')}, the first one {expected}; only the last may have fewer: "
        "let the iterator give batches of one size"
    )


def _check_like(first: Batch, batch: Batch, index: int) -> None:
    """Raise ``DataError`` if a batch does not fit the first one; ``first`` is one example of the first batch.

    Sequences may be of any length.
    """
    if type(first) is not type(batch):
        raise DataError(f"batch {index} is a {type(batch).__name__}, and those before it {type(first).__name__}s")
    one, other = _shapes(first), _shapes(batch)
    for name in (*one, *(name for name in other if name not in one)):
        if "mask" in name and (name in one) != (name in other):
            raise DataError(f"batch {index} and those before it do not all have a {name}")
        if name not in one or name not in other:
            raise DataError(
                f"batch {index} is {batch!r}, and those before it are alike {first!r}; all have as many arrays of "
                "features and of labels"
            )
        if "mask" in name:
            continue
        sizes = slice(1, 2 if len(one[name]) == 3 else None)
        if len(one[name]) != len(other[name]) or one[name][sizes] != other[name][sizes]:
            raise DataError(
                f"batch {index} has {name} of shape {other[name][1:]} an example, those before it {one[name][1:]}"
            )


def _shapes(batch: Batch) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all features, labels and masks by name."""
    if isinstance(batch, MultiDataSet):
        return {name: array.shape for name, array in batch.arrays().items()}
    masks = {name: getattr(batch, name) for name in ("features_mask", "labels_mask")}
    return {"features": batch.features.shape, "labels": batch.labels.shape} | {
        name: mask.shape for name, mask in masks.items() if mask is not None
    }


def _decoded_manifest(content: bytes, where: str) -> _Manifest | _MultiManifest:
    kinds: Any = _Manifest | _MultiManifest
    try:
        manifest: _Manifest | _MultiManifest = msgspec.json.decode(content, type=decodable(kinds))
        for batch in manifest.batches:
            if batch.examples < 1 or len(bytes.fromhex(batch.sha256)) != hashlib.sha256().digest_size:
                raise ValueError(f"a batch of {counted(batch.examples, 'example')} and digest {batch.sha256[:80]!r}")
        if not manifest.batches:
            raise ValueError("it names no batch")
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise DataError(f"{_MANIFEST} in {where} is none of exported batches that this version reads: {exc}") from exc
    return manifest


def _check_unused(folder: Folder) -> None:
    """Raise ``DataError`` if a folder has exported batches already, because another run may use them."""
    with files.errors_as(DataError, f"{folder.place} cannot be looked into"):
        used = _MANIFEST in folder.names()
    if used:
        raise DataError(
            f"{folder.place} has exported batches already: give ActorNetworkRunner {folder.place!r} in the place of "
            "the iterator to train on them, or choose another folder"
        )


def _as_folder(folder: Folder | Path | str) -> Folder:
    return open_folder(str(folder)) if isinstance(folder, Path | str) else folder


def _name(index: int) -> str:
    return f"batch-{index:08d}"
