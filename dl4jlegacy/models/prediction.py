"""Predictions of a trained model for blocks of rows: in their order, with only a few blocks in memory at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dl4jlegacy.arrays.backend import Array, to_host
from dl4jlegacy.datasets.kind import NewData
from dl4jlegacy.datasets.tables.csv_files import read_csv_blocks
from dl4jlegacy.datasets.tables.sparse_files import sparse_features_of
from dl4jlegacy.datasets.tables.svmlight_schema import features_only
from dl4jlegacy.datasets.tables.table_files import is_svmlight
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.datasets.unseen_words import UnseenWords
from dl4jlegacy.errors import NotFiniteError, OutputError
from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.scaleout.workers.device_choice import Compute, using_gpu
from dl4jlegacy.system import files
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.resources import check_threads
from dl4jlegacy.system.service_threads import ServiceThread
from dl4jlegacy.system.strict_json import to_json

__all__ = [
    "Form",
    "Predict",
    "PredictedRows",
    "named_rows",
    "predict_alone",
    "predict_blocks",
    "replicas",
    "rows_in",
    "texts_of",
    "write_texts",
]

Predict = Callable[[Array], Array]
"""A function that returns the outputs ``(rows, n_out)`` for the features ``(rows, n_in)`` of a block."""
_YES = 0.5  # probability above which a label is predicted, as in ``EvaluationBinary``
_AHEAD = 2  # blocks per worker that may be read ahead, or be done before earlier ones


@dataclass(frozen=True, slots=True, eq=False)
class PredictedRows:
    """The predictions for a block.

    Attributes:
        first: the number of its first row, from 0.
        n_in: the number of features of a row.
        outputs: the outputs of the network, ``(rows, n_out)``; a classifier's are the probabilities of its classes.
        classes: the most probable class of each row.
    """

    first: int
    n_in: int
    outputs: Array
    classes: list[int]


def replicas(model: TrainedModel, compute: Compute, count: int) -> list[Predict]:
    """Return ``count`` prediction functions for parallel use, each with its own network on its own device.

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
            return own.answer(rows)

    return predict


def predict_blocks(
    workers: Sequence[Predict], blocks: Iterable[Array], answers: Callable[[Array], int] = len
) -> Generator[PredictedRows, None, None]:
    """Yield the predictions for each block in order, as soon as they and all earlier ones are ready.

    The numbers do not depend on the number of ``workers``. If a block fails, the predictions before it are yielded
    first. One worker computes on the caller's thread; several workers have threads, and the blocks are read on one more
    thread. ``answers`` returns the number of predictions of a block.

    Raises:
        NotFiniteError: an output is NaN or infinite; names the row. Errors of ``blocks`` are raised, too.
    """
    with one_thread():  # so that sums are rounded alike for any number of workers
        if len(workers) == 1:
            yield from predict_alone(workers[0], blocks, answers)
        else:
            yield from _predicted_by_threads(workers, blocks, answers)


def predict_alone(
    predict: Predict, blocks: Iterable[Array], answers: Callable[[Array], int] = len
) -> Iterator[PredictedRows]:
    """Yield predictions as ``predict_blocks`` with one worker; the caller limits BLAS to one thread. Same errors."""
    for first, rows in _numbered(blocks, answers):
        yield _predicted(predict, first, rows)


def rows_in(model: TrainedModel, file: str, *, warns: bool = True) -> tuple[Iterable[Array], tuple[str, ...]]:
    """Return the blocks for a model to answer, and the file of each answer, if the blocks have files of their own.

    Args:
        model: the model that the blocks must fit.
        file: a table, a text, an image, a sequence, or a folder of images or sequences, here or in S3; ``-``: standard
            input.
        warns: whether to warn of columns and words that the model does not know, and of unusual images.

    Raises:
        DataError: names file, line, column and value. ShapeError: the model takes other features. Some errors are
            raised when the blocks are read.
    """
    reading = model.reading
    new = NewData(
        file=file,
        model=model.name,
        label_names=model.label_names,
        transform=reading.transform,
        rows=ROWS,
        warns=warns,
    )
    found = reading.kind.new_rows(new, reading.reader)
    if found is None:
        return _rows_of_table(model, new), ()
    return map(model.rows_as_read, found.blocks), tuple(map(str, found.files))


def _rows_of_table(model: TrainedModel, new: NewData) -> Iterator[Array]:
    """Yield the features of a table in blocks of ``ROWS`` rows; errors as for ``rows_in``."""
    for rows in _features_of(model, new.open(), new.name, warns=new.warns):
        model.check_width(rows.shape[1], new.name)
        yield model.rows_as_read(rows)


def _features_of(model: TrainedModel, file: BinaryIO, name: str, *, warns: bool) -> Iterator[Array]:
    transform = model.reading.transform
    if model.is_sparse and is_svmlight(name):
        return sparse_features_of(file, name, model.network.n_in, rows=ROWS)
    if transform is None and is_svmlight(name):
        transform = features_only(model.network.n_in)
    if transform is None:
        return read_csv_blocks(file, name, rows=ROWS, header=model.reading.header, warns=warns)
    return _transformed(transform, file, name, warns=warns)


def _transformed(transform: TransformProcess, file: BinaryIO, name: str, *, warns: bool) -> Iterator[Array]:
    """Yield the features of a table's blocks; warn of unknown columns first, and of unknown words at the end."""
    unseen = UnseenWords()
    for table in transform.blocks(file, name, rows=ROWS, warns=warns):
        yield transform.exact_features(table, new_rows=True, unseen=unseen)
    if warns:
        unseen.say(name)


def _predicted_by_threads(
    workers: Sequence[Predict], blocks: Iterable[Array], answers: Callable[[Array], int]
) -> Generator[PredictedRows, None, None]:
    free: queue.SimpleQueue[Predict] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)
    started: queue.Queue[Future[PredictedRows] | Exception | None] = queue.Queue(_AHEAD * len(workers))
    is_wanted = threading.Event()
    is_wanted.set()

    def perform(first: int, rows: Array) -> PredictedRows:
        worker = free.get_nowait()  # there are as many workers as threads
        try:
            return _predicted(worker, first, rows)
        finally:
            free.put(worker)

    def read() -> None:
        try:
            with exits_as_errors():
                for first, rows in _numbered(blocks, answers):
                    if not is_wanted.is_set():
                        return
                    started.put(pool.submit(perform, first, rows))
            started.put(None)
        except Exception as exc:  # noqa: BLE001  # raised again where the results are read
            started.put(exc)

    with ThreadPoolExecutor(len(workers), thread_name_prefix="dl4j-predict") as pool:
        # A daemon: reading from a pipe may never end, even if the predictions are no longer needed.
        ServiceThread(target=read, name="dl4j-read").start()
        try:
            while (item := started.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item.result()
        finally:
            is_wanted.clear()
            with contextlib.suppress(queue.Empty):
                while True:
                    started.get_nowait()


def _numbered(blocks: Iterable[Array], answers: Callable[[Array], int]) -> Iterator[tuple[int, Array]]:
    """Yield each block with the number of its first row."""
    first = 0
    for rows in blocks:
        yield first, rows
        first += answers(rows)


def _predicted(predict: Predict, first: int, rows: Array) -> PredictedRows:
    with named_rows(first):
        outputs = predict(rows)
    return PredictedRows(first, rows.shape[1], outputs, outputs.argmax(axis=1).tolist())


@contextlib.contextmanager
def named_rows(first: int, unit: str = "rows") -> Iterator[None]:
    """Add the start of a block to an error that names a row in it; ``unit`` is what ``first`` counts."""
    try:
        yield
    except NotFiniteError as exc:
        if not first:
            raise
        raise NotFiniteError(f"in the {unit} from {first} on (the first is 0), counted from there: {exc}") from exc


# -- output ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """How predictions are written.

    Attributes:
        name: the format. ``text``: a line for each row with the number and name of its class, or the predicted number.
            ``jsonl``: a JSON object for each row. ``json``: one object for all rows, held in memory until the end.
        with_outputs: whether text lines have the outputs after the class, separated by tabs.
        files: the file of each row, which is written first; empty: all rows come from one file.
    """

    name: str = "text"
    with_outputs: bool = False
    files: tuple[str, ...] = ()

    def line(self, row: int, *columns: str) -> str:
        """Return the text line for a row."""
        return "\t".join([self.files[row], *columns] if self.files else columns)

    def place(self, row: int) -> dict[str, Any]:
        """Return the JSON fields that identify a row."""
        return {"row": row, "file": self.files[row]} if self.files else {"row": row}


def texts_of(model: TrainedModel, predicted: Iterable[PredictedRows], form: Form) -> Iterator[str]:
    """Yield the predictions as text without the final line break: block by block, or for ``json`` all at once.

    Raises:
        ModelError: the model does not have one name for each class.
    """
    if form.name == "json":
        yield to_json({**_as_object(model, list(predicted)), **({"files": form.files} if form.files else {})})
        return
    names: tuple[str, ...] = ()
    for rows in predicted:
        names = names or model.output_names(rows.n_in)
        if model.reading.is_multi_label:
            yield _as_answers(rows, names, form)
        elif model.predicts_numbers:
            yield _as_numbers(model, rows, form)
        elif form.name == "jsonl":
            yield "\n".join(to_json(fields) for fields in _each_row(rows, names, form))
        else:
            yield _as_lines(rows, names, form)


def write_texts(path: Path, texts: Iterable[str]) -> None:
    """Write texts to a file, which appears in one step after the last text; raises ``OutputError``."""
    with files.errors_as(OutputError, f"{path} cannot be written"), files.replacing(path) as file:
        for text in texts:
            file.write(f"{text}\n".encode())


def _shown(name: str) -> str:
    """Return a class name that is safe in a line: a class of a text model may be a line break or a space."""
    return name if name.isprintable() and name.strip() else repr(name)


def _as_lines(rows: PredictedRows, names: Sequence[str], form: Form) -> str:
    numbered = all(name == str(number) for number, name in enumerate(names))
    words = [str(number) if numbered else f"{number} {_shown(name)}" for number, name in enumerate(names)]
    lines = [form.line(rows.first + index, words[number]) for index, number in enumerate(rows.classes)]
    if not form.with_outputs:
        return "\n".join(lines)
    columns = ["\t".join([f"{value:.6f}" for value in row]) for row in rows.outputs.tolist()]
    return "\n".join([f"{line}\t{row}" for line, row in zip(lines, columns, strict=True)])


def _each_row(rows: PredictedRows, names: Sequence[str], form: Form) -> Iterator[dict[str, Any]]:
    for index, (number, row) in enumerate(zip(rows.classes, rows.outputs.tolist(), strict=True)):
        probabilities = [round(value, 6) for value in row]
        fields = {**form.place(rows.first + index), "class": number, "label_name": names[number]}
        yield {**fields, "probabilities": probabilities}


def _number(value: Any) -> float:
    """Return an output as the shortest decimal number that is equal to it in its own type, float32 or float64."""
    return float(str(value))


def _as_numbers(model: TrainedModel, rows: PredictedRows, form: Form) -> str:
    """Return the numbers predicted for some rows, one row per line, with tabs between several numbers."""
    values, columns = [[_number(value) for value in row] for row in rows.outputs], model.output_names(rows.n_in)
    if form.name != "jsonl":
        return "\n".join(form.line(rows.first + i, *map(repr, row)) for i, row in enumerate(values))
    if len(columns) > 1:
        named = (dict(zip(columns, row, strict=True)) for row in values)
        return "\n".join(to_json({**form.place(rows.first + i), "values": row}) for i, row in enumerate(named))
    column = columns[0]
    return "\n".join(
        to_json({**form.place(rows.first + i), "column": column, "value": x}) for i, [x] in enumerate(values)
    )


def _as_answers(rows: PredictedRows, names: Sequence[str], form: Form) -> str:
    """Return the predicted labels of some rows, one row per line, separated by commas; ``-`` for none."""
    lines = []
    for index, row in enumerate(rows.outputs.tolist()):
        found = [name for name, value in zip(names, row, strict=True) if value > _YES]
        if form.name == "jsonl":
            likely = {name: round(value, 6) for name, value in zip(names, row, strict=True)}
            lines.append(to_json({**form.place(rows.first + index), "labels": found, "probabilities": likely}))
            continue
        values = [f"{value:.6f}" for value in row] if form.with_outputs else []
        lines.append(form.line(rows.first + index, ",".join(found) or "-", *values))
    return "\n".join(lines)


def _as_object(model: TrainedModel, blocks: list[PredictedRows]) -> dict[str, Any]:
    if model.predicts_numbers:
        numbers = [[_number(value) for value in row] for rows in blocks for row in rows.outputs]
        names, fields = model.output_names(blocks[0].n_in), {"model": model.name, "examples": len(numbers)}
        if len(names) > 1:
            return {**fields, "columns": list(names), "predictions": numbers}
        return {**fields, "column": names[0], "predictions": [x for [x] in numbers]}
    if model.reading.is_multi_label:
        outputs = [row for rows in blocks for row in rows.outputs.tolist()]
        return {
            "model": model.name,
            "examples": len(outputs),
            "label_names": list(model.output_names(blocks[0].n_in)),
            "predictions": [[int(value > _YES) for value in row] for row in outputs],
            "probabilities": [[round(value, 6) for value in row] for row in outputs],
        }
    return {
        "model": model.name,
        "examples": sum(len(rows.classes) for rows in blocks),
        "label_names": list(model.class_names(blocks[0].n_in)),
        "predictions": [number for rows in blocks for number in rows.classes],
        "probabilities": [[round(value, 6) for value in row] for rows in blocks for row in rows.outputs.tolist()],
    }
