"""Computes a model's answer from a request body, through the code of ``dl4j predict``, as if the body were its file.

A body of plain numbers is decoded directly. Any other body is written to a temporary file, so that the same code reads
it, scales it and splits it into blocks.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.precision import float_type_of
from dl4jlegacy.datasets.tables.table_files import column_names, is_table
from dl4jlegacy.errors import DataError, Dl4jError, NotFiniteError, OutputError, ShapeError, counted
from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.models.prediction import Form, PredictedRows, rows_in, texts_of
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.serving.body_limits import TooMuchError, check_json, check_lines
from dl4jlegacy.system import files
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.system.decoding import decodable
from dl4jlegacy.system.strict_json import to_json

__all__ = [
    "CSV",
    "JSON",
    "JSON_LINES",
    "LATE",
    "NPY",
    "TEXT",
    "Limits",
    "RefusedError",
    "accepted",
    "content_of",
    "error_body",
    "read_body",
    "refusal_of",
]

CSV, JSON, JSON_LINES, NPY, TEXT = (
    "text/csv",
    "application/json",
    "application/x-ndjson",
    "application/x-npy",
    "text/plain",
)
LATE = "DL4J-DEADLINE"
_SHOWN, _LONGEST = 20, 100  # column names that an answer lists, and characters of each
_HEADERS = 256
"""Number of cached ``.npy`` headers, each of at most 64 kB."""
_ENDINGS = {
    CSV: ".csv",
    JSON_LINES: ".jsonl",
    NPY: ".npy",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a request.

    Attributes:
        body_bytes: size of the body.
        rows: number of rows, or of time steps of a sequence.
        seconds: time from the end of the body to the answer.
        body_seconds: time in which the client must send the body.
        queue: pending requests of a model, including the one being computed.
    """

    body_bytes: int = 16 << 20
    rows: int = 10_000
    seconds: float = 30.0
    body_seconds: float = 10.0
    queue: int = 64


class RefusedError(Exception):
    """A request is refused: ``status`` is the HTTP status, ``code`` the error code, and the text the reason."""

    def __init__(self, status: int, message: str, code: str = "DL4J-USAGE") -> None:
        super().__init__(message)
        self.status, self.code = status, code


def refusal_of(error: Dl4jError) -> RefusedError:
    """Return the refusal sent to the client for an error in reading or computing its rows."""
    if isinstance(error, NotFiniteError) or error.exit_status == 3:  # the request's data
        return RefusedError(422, str(error), error.code)
    return RefusedError(500, str(error), error.code)


def accepted(model: TrainedModel) -> tuple[str, ...]:
    """Return the media types of bodies that a model accepts."""
    kind, reader = model.reading.kind, model.reading.reader
    if reader is None:
        return (CSV, JSON, JSON_LINES, NPY) if model.reading.feature_columns else (CSV, JSON, NPY)
    others = (JSON,) if kind.is_of_lines else (CSV, JSON, NPY) if kind.takes_features(reader) else ()
    return (*kind.media_types, *others)


def read_body(
    model: TrainedModel,
    media_type: str,
    body: bytes,
    limits: Limits,
    deadline: Deadline,
    unknown: list[str] | None = None,
) -> Iterator[Array]:
    """Yield the features in a body, in the same blocks in which ``dl4j predict`` computes a file of that content.

    Used by one thread at a time for a model.

    Args:
        model: the model; the features must fit it.
        media_type: of the body, one of those in ``accepted``.
        body: the contents of a file of that type; JSON: ``{"rows": [...]}``, see ``_file_of``.
        limits: the limit of rows.
        deadline: of the request.
        unknown: a list to which the ignored columns are added that the model does not know.

    Raises:
        RefusedError: the body is malformed (400), has too many rows (413), does not fit the model (422), or time is up
            (503). Messages are those of ``dl4j predict`` for a file called ``the body``.
    """
    if deadline.passed():
        raise RefusedError(503, f"others took all of its {deadline.seconds:g} s; try again soon", LATE)
    try:
        _check_size(model, media_type, body, limits.rows)
        rows = _array_of(model, media_type, body)
    except TooMuchError as exc:
        raise RefusedError(413, str(exc)) from exc
    except Dl4jError as exc:
        raise refusal_of(exc) from exc
    if rows is not None:
        blocks = (rows[start : start + ROWS] for start in range(0, len(rows), ROWS))
        yield from _within(blocks, model.answers, limits.rows, deadline)
        return
    ending, content = _file_of(model, media_type, body)
    with tempfile.NamedTemporaryFile(prefix="dl4j-serve-", suffix=ending) as file:
        try:
            with files.errors_as(OutputError, "the body cannot be kept while it is read"):
                file.write(content)
                file.flush()
            if unknown is not None:
                unknown += _unknown_columns(model, Path(file.name))
            yield from _within(rows_in(model, file.name, warns=False)[0], model.answers, limits.rows, deadline)
        except Dl4jError as exc:
            refused = refusal_of(exc)
            raise RefusedError(refused.status, str(exc).replace(file.name, "the body"), exc.code) from exc


def content_of(
    model: TrainedModel, outputs: Sequence[Array], n_in: int, *, as_npy: bool = False, unknown: Sequence[str] = ()
) -> bytes:
    """Return outputs as ``dl4j predict --format json`` prints them, or as a ``.npy`` file.

    Args:
        model: the model; its ``name`` is in the answer.
        outputs: of each block, ``(rows, n_out)``.
        n_in: the number of features of a row.
        as_npy: return a ``.npy`` file, without rounding.
        unknown: ignored columns, listed in a JSON answer. They are not logged, because clients could flood the log, and
            only the client can correct them.

    Raises:
        RefusedError: there are no outputs (422), or the model has no names for them (500).
    """
    if not outputs:
        raise RefusedError(422, "the body holds no rows", "DL4J-DATA")
    if as_npy:
        return _npy_of(outputs)
    found, first = [], 0
    for block in outputs:
        found.append(PredictedRows(first, n_in, block, block.argmax(axis=1).tolist()))
        first += len(block)
    try:
        text = next(texts_of(model, found, Form("json")))
        return (text if not unknown else f'{text[:-1]}, "unknown_columns": {to_json(list(unknown))}}}').encode()
    except Dl4jError as exc:
        raise refusal_of(exc) from exc


def _check_size(model: TrainedModel, media_type: str, body: bytes, rows: int) -> None:
    """Raise ``TooMuchError`` for a text body with more rows or values than allowed for the model."""
    if model.reading.kind.is_of_lines:
        values = 1 if media_type == JSON else len(body)  # a line may have commas
    else:
        columns = model.reading.header.names if model.reading.header is not None else range(model.network.n_in)
        values = len(columns if model.reading.transform is None else model.reading.transform.columns)
    if media_type == JSON:
        check_json(body, rows, values)
    elif media_type in (CSV, TEXT, JSON_LINES):
        check_lines(body, rows, values, is_json=media_type == JSON_LINES)


def _array_of(model: TrainedModel, media_type: str, body: bytes) -> Array | None:
    """Return the rows of a body that is decoded without a file; None: it must be read, or diagnosed, through a file."""
    if media_type == NPY and model.reading.transform is None:
        rows = _decoded(body)
        model.check_width(rows.shape[1], "the body")
        return rows if rows.dtype == np.float32 else model.rows_as_read(rows)
    kind, reader = model.reading.kind, model.reading.reader
    is_plain = model.reading.transform is None and (reader is None or kind.takes_features(reader))
    return _plain_rows(model, body) if media_type == JSON and is_plain else None


def _plain_rows(model: TrainedModel, body: bytes) -> Array | None:
    """Return the numbers in a well-formed body; None for any other body, whose error the CSV reader reports."""
    try:
        rows = msgspec.json.decode(body, type=decodable(_Numbers)).rows
        array = np.array(rows, np.float64)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
        return None
    if array.ndim != 2 or array.shape[1] != model.network.n_in:
        return None
    with np.errstate(over="ignore"):
        is_finite = bool(np.isfinite(array.astype(np.float32)).all())
    return model.rows_as_read(array) if is_finite else None


def _unknown_columns(model: TrainedModel, file: Path) -> list[str]:
    """Return the columns in a body's file that are unknown to a model with named columns."""
    reading = model.reading
    named = reading.sequences.names if reading.sequences else ()
    known = {*reading.feature_columns, *reading.label_columns, *named}
    if not known or not is_table(file.name):
        return []
    names = column_names(file, known)
    return [] if known.isdisjoint(names) else [name[:_LONGEST] for name in names if name not in known][:_SHOWN]


def _within(blocks: Iterable[Array], answers: Callable[[Array], int], most: int, deadline: Deadline) -> Iterator[Array]:
    """Yield blocks until the deadline or the row limit is exceeded; raises ``RefusedError`` then."""
    rows = 0
    for block in blocks:
        rows += answers(block)
        if rows > most:
            raise RefusedError(413, f"the body has more than {counted(most, 'row')}; send it in parts")
        if deadline.passed():
            raise RefusedError(503, f"the answer took longer than {deadline.seconds:g} s; send fewer rows", LATE)
        yield block


def _npy_of(outputs: Sequence[Array]) -> bytes:
    array = np.ascontiguousarray(outputs[0] if len(outputs) == 1 else np.concatenate(outputs))
    return _header_for(array.shape, array.dtype) + array.tobytes()


_PARSER = threading.Lock()
"""For Python's parser, which NumPy reads headers with: up to 3.11.7 two threads in it may raise ``SystemError``."""


@functools.lru_cache(_HEADERS)
def _header_for(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the header of a ``.npy`` file."""
    content = io.BytesIO()
    fields = {"shape": shape, "fortran_order": False, "descr": np.lib.format.dtype_to_descr(dtype)}
    np.lib.format.write_array_header_1_0(content, fields)
    return content.getvalue()


# -- bodies ------------------------------------------------------------------------------------------------------------


class _Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: list[msgspec.Raw]


class _Numbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: list[list[float]]


def _file_of(model: TrainedModel, media_type: str, body: bytes) -> tuple[str, bytes]:
    """Return the file ending and the file contents for a body.

    ``{"rows": [...]}`` can have lists of numbers, which become lines of CSV. It can have objects if the model knows the
    names of its columns, and must if the model has a schema; they become lines of JSON unchanged. For a text model it
    has texts, which become lines.
    """
    if media_type != JSON:
        return {**_ENDINGS, **model.reading.kind.media_types}[media_type], body
    if body.startswith(b"\x1f\x8b"):
        raise RefusedError(400, "the body is packed by gzip, which this server does not unpack; send it as it is")
    try:
        rows = msgspec.json.decode(body, type=decodable(_Rows)).rows
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise RefusedError(400, f'the body is not {{"rows": [...]}} in JSON: {exc}') from exc
    if not rows:
        raise RefusedError(422, "rows is empty; give at least one", "DL4J-DATA")
    if model.reading.kind.is_of_lines:
        return ".txt", "".join(f"{_text(row, index)}\n" for index, row in enumerate(rows)).encode()
    is_named = bool(model.reading.feature_columns) and bytes(rows[0]).lstrip().startswith(b"{")
    if is_named or not model.reading.has_numbers_alone:
        return ".jsonl", b"".join(_object(bytes(row), index) for index, row in enumerate(rows))
    return ".csv", b"".join(_numbers(row, index) for index, row in enumerate(rows))


def _text(row: msgspec.Raw, index: int) -> str:
    with _row(index, "a text of one line"):
        found = msgspec.json.decode(row, type=decodable(str))
        if not found.strip() or len(found.splitlines()) > 1:
            raise msgspec.ValidationError("it is empty, or has several lines")
    return found


def _object(row: bytes, index: int) -> bytes:
    if not row.lstrip().startswith(b"{"):
        raise RefusedError(400, f"rows[{index}] must be an object of columns and values, by their names")
    return row.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"  # JSON texts contain no raw line ends


def _numbers(row: msgspec.Raw, index: int) -> bytes:
    with _row(index, "a list of numbers"):
        values = msgspec.json.decode(row, type=decodable(list[int | float]))
        if not values:
            raise msgspec.ValidationError("it is empty")
    return (",".join(map(repr, values)) + "\n").encode()


@contextlib.contextmanager
def _row(index: int, expected: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise RefusedError(400, f"rows[{index}] must be {expected}: {exc}") from exc


def _decoded(content: bytes) -> Array:
    """Return the array in a ``.npy`` file, ``(rows, n_in)``; its size is checked before anything is allocated.

    It is float32, or float64 if the file has float64 or integers that need it.

    The array is read-only if it shares the memory of the file's content.
    """
    shape, in_columns, dtype, start = _header_of(content[: _header_length(content)])
    if dtype.kind not in "fiub" or dtype.hasobject or len(shape) != 2:
        raise ShapeError(f"the body is an array of shape {shape} and type {dtype}; send numbers, (rows, values)")
    if len(content) - start != math.prod(shape) * dtype.itemsize:
        raise RefusedError(400, f"the body is a .npy file of shape {shape} that is cut off, or has more behind it")
    flat = np.frombuffer(content, dtype, offset=start)
    if dtype == np.float32 and dtype.isnative and not in_columns:
        return flat.reshape(shape)
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are refused as such
        array: Array = np.asarray(flat.reshape(shape, order="F" if in_columns else "C"), float_type_of(flat), order="C")
    return array


def _header_length(content: bytes) -> int:
    """Return the length of a ``.npy`` file's header, which begins with eight bytes and its own length."""
    size = 2 if content[6:7] == b"\1" else 4
    return 8 + size + int.from_bytes(content[8 : 8 + size], "little")


@functools.lru_cache(_HEADERS)
def _header_of(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, order, type and length of a ``.npy`` header; cached, since clients repeat the same header."""
    file = io.BytesIO(header)
    try:
        with files.damage_as(DataError, "the body is no .npy file", ""):
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            with _PARSER:
                shape, in_columns, dtype = read(file)
    except DataError as exc:
        raise RefusedError(400, str(exc)) from exc
    return shape, in_columns, dtype, file.tell()


def error_body(error: RefusedError) -> bytes:
    """Return the JSON error object for the client."""
    return to_json({"error": {"code": error.code, "message": str(error), "status": error.status}}).encode()
