"""Predictions of a trained model for rows that come in blocks: in their order, a few blocks in memory at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from dl4jlegacy import files, storage
from dl4jlegacy.backend import Array, to_host
from dl4jlegacy.datasets.csv_files import read_csv_blocks
from dl4jlegacy.errors import DataError, NotFiniteError, OutputError
from dl4jlegacy.inference import TrainedModel
from dl4jlegacy.machine import check_threads
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.scaleout.compute import Compute, using_gpu
from dl4jlegacy.strict_json import to_json

__all__ = [
    "Form",
    "Predict",
    "PredictedRows",
    "blocks_of",
    "named_rows",
    "predict_blocks",
    "replicas",
    "texts_of",
    "write_texts",
]

Predict = Callable[[Array], Array]
"""Returns the outputs ``(rows, n_out)`` for the features ``(rows, n_in)`` of a block."""
_AHEAD = 2  # blocks for each worker that wait or are done before those in front of them


@dataclass(frozen=True, slots=True, eq=False)
class PredictedRows:
    """The predictions for a block.

    Attributes:
        first: the number of its first row, from 0.
        n_in: the number of features of a row.
        outputs: of the network, ``(rows, n_out)``; the probabilities of the classes, if it classifies.
        classes: the most probable class of each row.
    """

    first: int
    n_in: int
    outputs: Array
    classes: list[int]


def replicas(model: TrainedModel, compute: Compute, count: int) -> list[Predict]:
    """Return so many ways to use ``model`` at the same time, each with a network of its own, on its own device.

    Raises:
        ConfError: this machine cannot have so many threads, or networks.
    """
    check_threads(count, int(model.network.params.nbytes))
    return [_replica(model, compute, index) for index in range(count)]


def _replica(model: TrainedModel, compute: Compute, index: int) -> Predict:
    kernels = compute.kernels(index)

    def on_device() -> contextlib.AbstractContextManager[None]:
        return using_gpu(kernels, compute.device(index)) if compute.on_gpu else contextlib.nullcontext()

    with on_device():
        network = build_network(model.network.conf, kernels)
        network.set_params(to_host(model.network.params))
    own = dataclasses.replace(model, network=network)

    def predict(rows: Array) -> Array:
        with on_device():
            return own.output(rows)

    return predict


def predict_blocks(workers: Sequence[Predict], blocks: Iterable[Array]) -> Generator[PredictedRows, None, None]:
    """Yield the predictions for each block, in their order, as soon as they and those before them are there.

    The numbers do not depend on how many ``workers`` there are. Of what goes wrong in a block the blocks before it are
    yielded first. One worker computes on this thread; more have threads, and the blocks are read on another one.

    Raises:
        NotFiniteError: an output is NaN or infinite; names the row. And what ``blocks`` raise.
    """
    with threadpool_limits(limits=1, user_api="blas"):  # so that sums are rounded alike for any number of workers
        if len(workers) == 1:
            for first, rows in _numbered(blocks):
                yield _predicted(workers[0], first, rows)
            return
        yield from _predicted_by_threads(workers, blocks)


def blocks_of(model: TrainedModel, file: str) -> Iterator[Array]:
    """Yield the features in a CSV file, ``ROWS`` rows at a time, for a model.

    Args:
        model: that they must fit.
        file: here or in S3; ``-``: standard input.

    Raises:
        DataError: names file, line, column and value. ShapeError: the model takes other features.
    """
    name = "standard input" if file == "-" else file
    with files.errors_as(DataError, f"cannot read {name}"):
        # Its own file: a thread that still waits for standard input must not hold up the end of the process.
        opened = os.fdopen(os.dup(0), "rb") if file == "-" else files.open_to_read(storage.local(file))
    for rows in read_csv_blocks(opened, name, rows=ROWS):
        model.check_width(rows.shape[1], name)
        yield rows


def _predicted_by_threads(workers: Sequence[Predict], blocks: Iterable[Array]) -> Generator[PredictedRows, None, None]:
    free: queue.SimpleQueue[Predict] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)
    started: queue.Queue[Future[PredictedRows] | BaseException | None] = queue.Queue(_AHEAD * len(workers))
    is_wanted = threading.Event()
    is_wanted.set()

    def perform(first: int, rows: Array) -> PredictedRows:
        worker = free.get_nowait()  # there are as many as threads
        try:
            return _predicted(worker, first, rows)
        finally:
            free.put(worker)

    def read() -> None:
        try:
            for first, rows in _numbered(blocks):
                if not is_wanted.is_set():
                    return
                started.put(pool.submit(perform, first, rows))
            started.put(None)
        except BaseException as exc:  # noqa: BLE001  # raised again where the results are read
            started.put(exc)

    with ThreadPoolExecutor(len(workers), thread_name_prefix="dl4j-predict") as pool:
        # A daemon, since reading from a pipe may take for ever, and nobody may want it any more.
        threading.Thread(target=read, name="dl4j-read", daemon=True).start()
        try:
            while (item := started.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item.result()
        finally:
            is_wanted.clear()
            with contextlib.suppress(queue.Empty):
                while True:
                    started.get_nowait()


def _numbered(blocks: Iterable[Array]) -> Iterator[tuple[int, Array]]:
    """Yield each block with the number of its first row."""
    first = 0
    for rows in blocks:
        yield first, rows
        first += len(rows)


def _predicted(predict: Predict, first: int, rows: Array) -> PredictedRows:
    with named_rows(first):
        outputs = predict(rows)
    return PredictedRows(first, rows.shape[1], outputs, outputs.argmax(axis=1).tolist())


@contextlib.contextmanager
def named_rows(first: int) -> Iterator[None]:
    """Add to an error that names a row of a block where the block begins."""
    try:
        yield
    except NotFiniteError as exc:
        if not first:
            raise
        raise NotFiniteError(f"in the rows from {first} on (the first is 0), counted from there: {exc}") from exc


# -- what is printed ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """How predictions are written.

    Attributes:
        name: ``text``, a line for each row: the number of its class, and its name; ``jsonl``, a JSON object for each
            row; ``json``, one object for all of them, which is in memory until the end.
        with_outputs: in text, the outputs stand behind each class, after tabs.
    """

    name: str = "text"
    with_outputs: bool = False


def texts_of(model: TrainedModel, predicted: Iterable[PredictedRows], form: Form) -> Iterator[str]:
    """Yield the predictions as text, without the last line break of each: block by block, or all of them at once.

    Raises:
        ModelError: the model's names are not one for each class.
    """
    if form.name == "json":
        yield to_json(_as_object(model, list(predicted)))
        return
    names: tuple[str, ...] = ()
    for rows in predicted:
        names = names or model.class_names(rows.n_in)
        if form.name == "jsonl":
            yield "\n".join(to_json(fields) for fields in _each_row(rows, names))
        else:
            yield _as_lines(rows, names, with_outputs=form.with_outputs)


def write_texts(path: Path, texts: Iterable[str]) -> None:
    """Write texts to a file, in one step at their end; raises ``OutputError``."""
    with files.errors_as(OutputError, f"{path} cannot be written"), files.replacing(path) as file:
        for text in texts:
            file.write(f"{text}\n".encode())


def _as_lines(rows: PredictedRows, names: Sequence[str], *, with_outputs: bool) -> str:
    numbered = all(name == str(number) for number, name in enumerate(names))
    words = [str(number) if numbered else f"{number} {name}" for number, name in enumerate(names)]
    if not with_outputs:
        return "\n".join([words[number] for number in rows.classes])
    columns = ["\t".join([f"{value:.6f}" for value in row]) for row in rows.outputs.tolist()]
    return "\n".join([f"{words[number]}\t{row}" for number, row in zip(rows.classes, columns, strict=True)])


def _each_row(rows: PredictedRows, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for index, (number, row) in enumerate(zip(rows.classes, rows.outputs.tolist(), strict=True)):
        probabilities = [round(value, 6) for value in row]
        yield {"row": rows.first + index, "class": number, "label_name": names[number], "probabilities": probabilities}


def _as_object(model: TrainedModel, blocks: list[PredictedRows]) -> dict[str, Any]:
    return {
        "model": model.name,
        "examples": sum(len(rows.classes) for rows in blocks),
        "label_names": list(model.class_names(blocks[0].n_in)),
        "predictions": [number for rows in blocks for number in rows.classes],
        "probabilities": [[round(value, 6) for value in row] for rows in blocks for row in rows.outputs.tolist()],
    }
