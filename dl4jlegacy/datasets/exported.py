"""Batches of any iterable, read once and kept in files, so that each can be had by its number.

A run asks for batches by position, on any thread and again after a failure, which an iterator that only goes forward
cannot answer. One pass over it writes each batch to a file of its own; after that memory holds the batches in use only.
``batches.json``, written last, has the digest of each file: whoever opens the folder, on whichever machine, reads what
was exported or nothing.

Follows the "Export" approach of DL4J's ``ParameterAveragingTrainingMaster``, there with serialized ``DataSet``s.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from dl4jlegacy import files, wire
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.iterator import BatchCursor, DataSetIterator
from dl4jlegacy.datasets.multi_dataset import ListMultiDataSetIterator
from dl4jlegacy.decoding import described
from dl4jlegacy.errors import DataError, Dl4jError, WireError, counted
from dl4jlegacy.exits import error_text, exits_as_errors
from dl4jlegacy.folders import Folder, LocalFolder

__all__ = ["ExportedDataSetIterator", "batches_of", "export", "one_epoch"]

_MASKS = ("features_mask", "labels_mask")
_MANIFEST, _FORMAT = "batches.json", "dl4jlegacy-batches-1"


class _Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a batch in a file: its number of examples, and the SHA-256 of the file in hex."""

    examples: int
    sha256: str


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is in a folder of exported batches."""

    format: str
    columns: int
    outcomes: int
    batches: tuple[_Batch, ...]


class ExportedDataSetIterator(BatchCursor):
    """Batches in files, in the same order every epoch; made by ``export``. A ``DataSetIterator``.

    Attributes:
        place: the folder that they are in.
        digest: of the contents of all batches, as 64 hex digits.
    """

    def __init__(self, folder: Folder, manifest: _Manifest) -> None:
        self._folder, self._batches = folder, manifest.batches
        self._reading = threading.Lock()  # a folder is used by one thread at a time
        self.place, self.batch_size = folder.place, manifest.batches[0].examples
        self.input_columns, self.total_outcomes = manifest.columns, manifest.outcomes
        self.total_examples = sum(batch.examples for batch in manifest.batches)
        self.digest = hashlib.sha256(b"".join(bytes.fromhex(batch.sha256) for batch in manifest.batches)).hexdigest()

    @classmethod
    def open(cls, folder: Folder | Path | str) -> Self:
        """Return the batches that were exported to a folder. Reads none of them yet.

        Raises:
            DataError: the folder cannot be read, or nothing was exported to it; names this host.
        """
        folder = _as_folder(folder)
        where = f"{folder.place} on {socket.gethostname()}"
        try:
            content = folder.read(_MANIFEST)
        except FileNotFoundError as exc:
            raise DataError(f"there are no exported batches in {where}: it has no {_MANIFEST}") from exc
        except OSError as exc:
            raise DataError(f"the exported batches in {where} cannot be read: {exc.strerror or exc}") from exc
        return cls(folder, _decoded_manifest(content, where))

    @property
    def total_batches(self) -> int:
        """Batches per epoch."""
        return len(self._batches)

    def batch(self, epoch: int, index: int) -> DataSet:
        """Return batch ``index`` of any epoch; safe on any thread.

        Raises:
            DataError: its file is not there, or is not what was exported; names the file, both digests and this host.
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
        return _decoded(content)


def export(
    batches: Iterable[Any],
    folder: Folder | Path | str,
    *,
    on_batch: Callable[[int, int], None] = lambda count, nbytes: None,
    remedy: str = "",
) -> ExportedDataSetIterator:
    """Go through ``batches`` once, and keep each in a file; one batch is in memory at a time.

    Args:
        batches: ``DataSet``s, or pairs of features and labels; all of one size, only the last may have fewer examples.
        folder: for the files; to be opened by ``ExportedDataSetIterator.open``.
        on_batch: called after each with how many batches and bytes there are.
        remedy: what to do where the folder takes no more, to end that message with.

    Raises:
        DataError: there is none, one is no batch, or not of the shape of those before it; the iterable raised; the
            disk refuses; or the folder has exported batches already. The message has the batch's number.
    """
    folder = _as_folder(folder)
    _check_unused(folder)
    kept: list[_Batch] = []
    first: DataSet | None = None
    nbytes = 0
    for index, batch in enumerate(_each(batches)):
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
    if first is None:
        raise DataError("the data have no batch: the iterator ended before its first one; was it used up already?")
    manifest = _Manifest(_FORMAT, first.n_in, first.n_out, tuple(kept))
    with files.errors_as(DataError, f"{_MANIFEST} cannot be kept in {folder.place}", remedy):
        folder.write(_MANIFEST, msgspec.json.encode(manifest))
    return ExportedDataSetIterator(folder, manifest)


def one_epoch(data: DataSetIterator) -> Iterator[DataSet]:
    """Yield the batches of the first epoch of an iterator, all of whose epochs are to be that one.

    Raises:
        DataError: the iterator deals out its data differently in every epoch, as the first batches of two show.
    """
    first, second = data.batch(0, 0).arrays(), data.batch(1, 0).arrays()
    if first.keys() != second.keys() or not all(np.array_equal(first[name], second[name]) for name in first):
        raise DataError(
            f"{type(data).__name__} gives other batches in every epoch, and exported batches are the same in all: let "
            "it keep their order (shuffle=False), or let the data go with the jobs (no Conf.export_directory)"
        )
    for index in range(data.total_batches):
        yield data.batch(0, index)


def batches_of(data: Any) -> Iterable[Any] | None:
    """Return the batches of an iterable or of DL4J's classic iterator (``has_next``, ``next``).

    None for what has its batches, or its jobs, by number.

    Raises:
        DataError: it is nothing of that kind.
    """
    if isinstance(data, DataSetIterator | ListMultiDataSetIterator) or hasattr(data, "work"):
        return None
    if callable(getattr(data, "has_next", None)) and callable(getattr(data, "next", None)):
        return _classic(data)
    if isinstance(data, Mapping):
        some = ", ".join(map(repr, list(data)[:5]))
        raise DataError(f"the training data are {type(data).__name__}, and no batches; give one of what it has: {some}")
    if isinstance(data, Iterable) and not isinstance(data, DataSet | str | bytes):
        return data
    remedy = (
        "ListDataSetIterator(data, batch_size)" if isinstance(data, DataSet) else "an iterator, or a list of batches"
    )
    raise DataError(f"the training data are {type(data).__name__}, and no batches; give {remedy}")


def _classic(data: Any) -> Iterator[Any]:
    if callable(getattr(data, "reset", None)):
        data.reset()
    while data.has_next():
        yield data.next()


def _each(batches: Iterable[Any]) -> Iterator[DataSet]:
    """Yield the batches as ``DataSet``s; what the iterable raises names the batch that it came instead of."""
    index, iterator = 0, None
    while True:
        try:
            with exits_as_errors():
                iterator = iter(batches) if iterator is None else iterator
                item = next(iterator)
        except StopIteration:
            return
        except Exception as exc:
            what = str(exc) if isinstance(exc, Dl4jError) else error_text(exc)
            raise DataError(f"the data's iterator failed at batch {index}: {what}") from exc
        yield _as_batch(item, index)
        index += 1


def _as_batch(item: Any, index: int) -> DataSet:
    if isinstance(item, DataSet):
        batch = item
    elif isinstance(item, tuple | list) and len(item) == 2:
        try:
            batch = DataSet(*item)
        except DataError as exc:
            hint = "; in the place of a DataLoader of PyTorch's give MapDataSetIterator its data set"
            are_classes = getattr(item[1], "ndim", 0) == 1
            raise DataError(f"batch {index}: {exc}{hint if are_classes else ''}") from exc
    elif isinstance(item, Mapping):
        raise DataError(
            f"batch {index} is a row of columns ({', '.join(map(str, list(item)[:5]))}), and no batch: give a data set "
            "that has its rows by number (of Hugging Face's, without streaming), or pairs of features and labels"
        )
    else:
        raise DataError(
            f"batch {index} is {type(item).__name__}; a batch is a DataSet, or a pair of features and labels"
        )
    if not batch.num_examples:
        raise DataError(f"batch {index} has no example")
    return batch


def _check_full(kept: list[_Batch], index: int) -> None:
    """Raise ``DataError`` if the batch before another one has fewer examples than the first."""
    if kept[-1].examples != kept[0].examples:
        raise _uneven(index - 1, kept[-1].examples, kept[0].examples)


def _uneven(index: int, examples: int, expected: int) -> DataError:
    return DataError(
        f"batch {index} has {counted(examples, 'example')}, the first one {expected}; only the last may have fewer: "
        "let the iterator give batches of one size"
    )


def _check_like(first: DataSet, batch: DataSet, index: int) -> None:
    """Raise ``DataError`` if a batch does not go with the first one, of which ``first`` is an example.

    Sequences may be of any length.
    """
    for name, one, other in (("features", first.features, batch.features), ("labels", first.labels, batch.labels)):
        sizes = slice(1, 2 if one.ndim == 3 else None)
        if one.ndim != other.ndim or one.shape[sizes] != other.shape[sizes]:
            raise DataError(
                f"batch {index} has {name} of shape {other.shape[1:]} an example, those before it {one.shape[1:]}"
            )
    for name in _MASKS:
        if (getattr(first, name) is None) != (getattr(batch, name) is None):
            raise DataError(f"batch {index} and those before it do not all have a {name}")


def _decoded(content: bytes) -> DataSet:
    try:
        arrays = wire.decode(content)[1]
    except WireError as exc:
        raise DataError(f"a batch's file is damaged: {exc}") from exc
    return DataSet.from_arrays(arrays.get)


def _decoded_manifest(content: bytes, where: str) -> _Manifest:
    try:
        manifest = msgspec.json.decode(content, type=described(_Manifest))
        for batch in manifest.batches:
            if batch.examples < 1 or len(bytes.fromhex(batch.sha256)) != hashlib.sha256().digest_size:
                raise ValueError(f"a batch of {counted(batch.examples, 'example')} and digest {batch.sha256[:80]!r}")
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise DataError(f"{_MANIFEST} in {where} is none of exported batches: {exc}") from exc
    if manifest.format != _FORMAT or not manifest.batches:
        raise DataError(
            f"{_MANIFEST} in {where} is of format {manifest.format[:80]!r} with "
            f"{counted(len(manifest.batches), 'batch', 'batches')}; this version reads {_FORMAT!r} with at least one"
        )
    return manifest


def _check_unused(folder: Folder) -> None:
    """Raise ``DataError`` if a folder has exported batches already, which somebody may be training on."""
    with files.errors_as(DataError, f"{folder.place} cannot be looked into"):
        used = _MANIFEST in folder.names()
    if used:
        raise DataError(
            f"{folder.place} has exported batches already: give ActorNetworkRunner {folder.place!r} in the place of "
            "the iterator to train on them, or choose another folder"
        )


def _as_folder(folder: Folder | Path | str) -> Folder:
    return LocalFolder(folder) if isinstance(folder, Path | str) else folder


def _name(index: int) -> str:
    return f"batch-{index:08d}"
