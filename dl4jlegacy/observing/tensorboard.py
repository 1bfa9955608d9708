"""A run's curves and histograms as event files for TensorBoard.

The format is TensorFlow's: records with a length and checksums, with a protocol buffer in each. tensorboardX provides
both without TensorFlow. Its writer is not used: its thread ends at the first error, such as a full disk, and callers
then wait for ever.

Each process that leads a run writes a file of its own. The file begins with ``SessionLog.START`` and its first version;
TensorBoard then drops everything from that version on in earlier files. A run that continues from a checkpoint repeats
some versions, and thus no point appears twice.

Legacy: DL4J's ``StatsListener`` with its ``UIServer``; the charts have the same names.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, Dl4jError, WireError, how_to_install
from dl4jlegacy.nn.multilayer_updater import MultiLayerUpdater
from dl4jlegacy.nn.networks import NetworkConfiguration
from dl4jlegacy.nn.optimization.updaters import Updater
from dl4jlegacy.nn.parameter_statistics import NamedSpan, Statistics, named_spans, statistics_of
from dl4jlegacy.nn.parameters import ParamLayout
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.observers import ObservedRun, RunObserver
from dl4jlegacy.scaleout.persistence.history import HistoryEntry
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol import NewModel
from dl4jlegacy.scaleout.state.aggregate import PARAMS
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.system import files
from dl4jlegacy.system.clock import RUNNING, Clock
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["MOST_WAITING", "TensorBoardObserver"]

logger = logging.getLogger(__name__)

MOST_WAITING = 10_000
"""Most points that wait for a full or hanging disk; beyond this number the oldest are dropped."""
_WRITE_SECONDS, _CLOSE_SECONDS = 2.0, 30.0  # TensorBoard looks for news every 30 s
_POINT_SECONDS = 0.1
"""Least seconds between two versions, except validations and the last version: TensorBoard shows some 1,000."""
_LAYERS_SECONDS, _LAYERS_SHARE = 1.0, 0.001
"""Least seconds between two versions with layers; largest share of the time spent on the layers."""
_BINS = 30
"""Bars of a histogram."""


@dataclass(frozen=True, slots=True)
class _Point:
    """A version to write: its numbers; for versions with layers also the model and the model before it."""

    version: int
    time: float
    numbers: Mapping[str, float]
    model: Buffer | None = None
    before: Buffer | None = None


class TensorBoardObserver(RunObserver):
    """Writes a run's curves into ``<folder>/<run>-<incarnation>``, for ``tensorboard --logdir FOLDER``.

    The steps are the versions of the model. Points that cannot be written cause a warning, and are written later.

    Args:
        folder: on this machine; created if missing.
        layers: whether to write the layers' parameters and updates as well, for some versions.
        clock: of running time.

    Raises:
        ConfError: tensorboardX is not installed, or the folder cannot be created or written to.
    """

    def __init__(self, folder: str | Path, *, layers: bool = True, clock: Clock = RUNNING) -> None:
        self._format = _Format()
        with files.errors_as(ConfError, f"the folder for TensorBoard, {folder}, cannot be used"):
            self._folder = files.expand(folder)
            self._folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "it must not be written to")
        self._shows_layers, self._clock = layers, clock
        self._curves: _Curves | None = None
        self._writer: _Writer | None = None

    def begin(self, run: ObservedRun) -> None:
        """See ``RunObserver``."""
        conf = run.conf
        network = conf.network_conf if self._shows_layers else None
        place = self._folder / _folder_of(self._folder, conf)
        layers = None if network is None else _Layers(named_spans(network), self._format, self._clock)
        self._writer = _Writer(_EventFile(place, self._format), self._format, layers)
        self._curves = _Curves(conf, run.plan, self._clock, self._writer)

    def new_version(self, version: HistoryEntry, event: NewModel) -> None:
        """See ``RunObserver``."""
        if self._curves is not None:
            self._curves.add(version, event)

    def end(self) -> None:
        """See ``RunObserver``: writes the last version, and ends the thread."""
        curves, writer, self._curves, self._writer = self._curves, self._writer, None, None
        if curves is not None:
            curves.end()
        if writer is not None:
            writer.close()


def _folder_of(folder: Path, conf: Conf) -> str:
    """Return the name of a run's folder: its existing one, since a run may continue under another name."""
    mark = f"-{conf.incarnation[:8]}"
    with files.errors_as(ConfError, f"the folder for TensorBoard, {folder}, cannot be looked into"):
        there = [name for name in files.names_in(folder) if name.endswith(mark)] if files.is_folder(folder) else []
    return there[0] if there else f"{conf.run}{mark}"


class _Curves:
    """Makes points from a run's versions. For the master's thread."""

    def __init__(self, conf: Conf, plan: Plan, clock: Clock, writer: _Writer) -> None:
        self._plan, self._clock, self._writer = plan, clock, writer
        self._updaters = {} if conf.network_conf is None else _updaters(conf.network_conf)
        self._examples, self._seconds = -1, 0.0  # examples at the last point; the time since then
        self._written = float("-inf")
        self._held: tuple[HistoryEntry, NewModel] | None = None
        self._before: Buffer | None = None
        self._is_first = True

    def add(self, version: HistoryEntry, event: NewModel) -> None:
        """Queue a version for writing, or hold it back if it follows too soon: it may be the last."""
        self._seconds += version.seconds
        if version.validation is not None:
            self.end()
            self._write(version, event)
            return
        if self._examples < 0:
            self._examples = version.examples - sum(self._plan.examples_of(number) for number in event.jobs)
        before, self._before = self._before, None
        if before is not None or (self._is_first and self._writer.takes_layers()):
            self._is_first = False
            self._write(version, event, event.frame, before)
            return
        if self._writer.takes_layers():
            self._before = event.frame  # held until the next version only, as it takes up CPU caches
        if self._clock.now() - self._written >= _POINT_SECONDS:
            self._write(version, event)
        else:
            self._held = version, event

    def end(self) -> None:
        """Queue the last version for writing if it was held back."""
        if self._held is not None:
            self._write(*self._held)

    def _write(
        self, version: HistoryEntry, event: NewModel, model: Buffer | None = None, before: Buffer | None = None
    ) -> None:
        self._writer.add(_Point(version.version, version.time, self._numbers(version, event), model, before))
        self._held, self._written = None, self._clock.now()
        if version.validation is None:
            self._examples, self._seconds = version.examples, 0.0

    def _numbers(self, version: HistoryEntry, event: NewModel) -> dict[str, float]:
        if version.validation is not None:
            found = version.validation.fields()
            return {f"validation/{name}": value for name, value in found.items() if value is not None}
        numbers = {"progress/examples": version.examples, "progress/staleness": version.staleness}
        numbers["progress/workers"] = len(version.workers)
        if version.score is not None:
            numbers["score"] = version.score
        if self._seconds > 0:
            numbers["progress/examples_per_second"] = (version.examples - self._examples) / self._seconds
        slots = [self._plan.slot(*self._plan.at(number)) for number in event.jobs]
        done = [slot.iteration + slot.last - slot.first - 1 for slot in slots if not slot.validates]
        return numbers | (_learning_rates(self._updaters, max(done)) if done else {})


def _updaters(conf: NetworkConfiguration) -> dict[str, Updater]:
    """Return the updaters of a network that have a learning rate and differ, by the names of their curves."""
    layers, found = conf.resolved(), dict[str, Updater]()
    for block in MultiLayerUpdater(layers, ParamLayout.of(layers)).blocks:
        if hasattr(block.updater, "rate") and block.updater not in found.values():
            [first] = [one.name for one in named_spans(conf) if one.span.start == block.start]
            found[f"learning_rate/{first}"] = block.updater
    return found if len(found) != 1 else {"learning_rate": next(iter(found.values()))}


def _learning_rates(updaters: Mapping[str, Updater], iteration: int) -> dict[str, float]:
    return {name: updater.rate(iteration) for name, updater in updaters.items()}  # type: ignore[union-attr]


# -- what is written ---------------------------------------------------------------------------------------------------


class _Format:
    """Encodes records in TensorBoard's format. Raises ``ConfError`` without tensorboardX."""

    def __init__(self) -> None:
        try:
            from tensorboardX.proto import event_pb2, summary_pb2
            from tensorboardX.record_writer import masked_crc32c
        except ImportError as exc:
            raise ConfError(
                f"--tensorboard needs tensorboardX, which is not installed: {how_to_install('tensorboard')}"
            ) from exc
        self._events: ModuleType = event_pb2
        self._summaries: ModuleType = summary_pb2
        self._crc = masked_crc32c

    def start(self, step: int) -> bytes:
        """Return the beginning of a file: from ``step`` on the file replaces all earlier files."""
        version = self._events.Event(wall_time=time.time(), file_version="brain.Event:2")
        log = self._events.SessionLog(status=self._events.SessionLog.START)
        begins = self._events.Event(wall_time=time.time(), step=step, session_log=log)
        return self._record(version) + self._record(begins)

    def point(self, step: int, when: float, values: Sequence[Any]) -> bytes:
        """Return the record of a step."""
        summary = self._summaries.Summary(value=values)
        return self._record(self._events.Event(wall_time=when, step=step, summary=summary))

    def number(self, tag: str, value: float) -> Any:
        """Return a point of a curve."""
        return self._summaries.Summary.Value(tag=tag, simple_value=value)

    def histogram(self, tag: str, found: Statistics) -> Any:
        """Return a histogram."""
        histogram = self._summaries.HistogramProto(
            min=found.edges[0],
            max=found.edges[-1],
            num=len(found.sample),
            sum=float(found.sample.sum()),
            sum_squares=float(np.square(found.sample).sum()),
            bucket_limit=found.edges[1:],
            bucket=found.counts,
        )
        return self._summaries.Summary.Value(tag=tag, histo=histogram)

    def _record(self, event: Any) -> bytes:
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        return b"".join((length, struct.pack("<I", self._crc(length)), data, struct.pack("<I", self._crc(data))))


class _Layers:
    """Computes values of a network's parameters and updates, at intervals that keep the cost low."""

    def __init__(self, parameters: Sequence[NamedSpan], format: _Format, clock: Clock) -> None:
        self._parameters, self._format, self._clock = parameters, format, clock
        self._due, self._is_pending = float("-inf"), False

    def take(self) -> bool:
        """Return whether ``values`` is due; then it must be called once. For the master's thread."""
        if self._is_pending or self._clock.now() < self._due:
            return False
        self._is_pending = True
        return True

    def values(self, model: Buffer, before: Buffer | None) -> list[Any]:
        """Return the values of a version: mean magnitudes, the ratio of update to parameter, histograms."""
        began = self._clock.now()
        try:
            params = Result.decode(model).arrays[PARAMS]
            last = None if before is None else Result.decode(before).arrays[PARAMS]
            return [value for parameter in self._parameters for value in self._values_of(parameter, params, last)]
        except (WireError, KeyError) as exc:
            logger.debug("the layers of a version cannot be shown: %s", exc)
            return []
        finally:
            now = self._clock.now()
            self._due, self._is_pending = now + max(_LAYERS_SECONDS, (now - began) / _LAYERS_SHARE), False

    def _values_of(self, parameter: NamedSpan, params: Array, before: Array | None) -> list[Any]:
        number, histogram = self._format.number, self._format.histogram
        place, name = slice(parameter.span.start, parameter.span.stop), parameter.name
        mine = statistics_of(params[place], _BINS)
        if mine is None:
            return []
        size = mine.mean_magnitude
        values = [number(f"parameter_mean_magnitude/{name}", size), histogram(f"parameters/{name}", mine)]
        update = None if before is None else statistics_of(params[place] - before[place], _BINS)
        if update is None:
            return values
        step = update.mean_magnitude
        values += [number(f"update_mean_magnitude/{name}", step), histogram(f"updates/{name}", update)]
        if size:
            values.append(number(f"update_parameter_ratio/{name}", step / size))
        return values


class _EventFile:
    """One event file, created with its first record. For one thread.

    A record that does not fit on the disk is removed: readers take a partial record for the end of the file.
    """

    def __init__(self, folder: Path, format: _Format) -> None:
        self.folder, self._format = folder, format
        self._path: Path | None = None
        self._has_begun = False

    def append(self, first_step: int, records: bytes) -> None:
        """Append records, the first of which is for step ``first_step``; raises ``OSError``."""
        if self._path is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._path = self.folder / self._next_name()
        if not self._has_begun:
            records = self._format.start(first_step) + records
        with files.opened_folder(self.folder) as folder:
            file_number = files.open_in(folder, self._path.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with FileIO(file_number, "ab") as file:
            length, written = file.seek(0, os.SEEK_END), 0
            try:
                while written < len(records):
                    written += file.write(records[written:])
            except OSError:
                file.truncate(length)
                raise
        self._has_begun = True

    def _next_name(self) -> str:
        """Return a name that sorts after the existing ones, since files are read in the order of their names."""
        numbers = [
            name.split(".")[3] for name in files.names_in(self.folder) if name.startswith("events.out.tfevents.")
        ]
        newest = max((int(number) for number in numbers if number.isdecimal()), default=0)
        return f"events.out.tfevents.{max(int(time.time()), newest + 1):010}.{socket.gethostname()}.{os.getpid()}"


class _Writer:
    """Writes points on a thread of its own, so that a hanging disk delays no other thread."""

    def __init__(self, file: _EventFile, format: _Format, layers: _Layers | None) -> None:
        self._file, self._format, self._layers = file, format, layers
        self._points: deque[_Point] = deque(maxlen=MOST_WAITING)
        self._missing: deque[tuple[int, bytes]] = deque(maxlen=MOST_WAITING)
        self._has_failed = False
        self._closed = threading.Event()
        self._thread = ServiceThread(target=self._run, name="dl4j-tensorboard")
        self._thread.start()

    def takes_layers(self) -> bool:
        """Return whether layers are due; then a point with models must follow."""
        return self._layers is not None and self._layers.take()

    def add(self, point: _Point) -> None:
        """Queue a point for writing. Does not wait."""
        self._points.append(point)

    def close(self) -> None:
        """Write the remaining points, and end."""
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            logger.warning("TensorBoard's events were not written within %.0f s; the last are lost", _CLOSE_SECONDS)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closed.wait(_WRITE_SECONDS)
            try:
                with exits_as_errors():
                    self._write()
            except (OSError, Dl4jError) as exc:
                if not self._has_failed:
                    logger.warning("TensorBoard's events in %s cannot be written: %s", self._file.folder, exc)
                self._has_failed = True
            except Exception:  # the run continues without the events
                logger.exception("TensorBoard's events failed")

    def _write(self) -> None:
        while self._points:
            point = self._points.popleft()
            self._missing.append((point.version, self._record(point)))
        if self._missing:
            self._file.append(self._missing[0][0], b"".join(record for _, record in self._missing))
            self._missing.clear()
            self._has_failed = False

    def _record(self, point: _Point) -> bytes:
        values = [self._format.number(tag, value) for tag, value in point.numbers.items()]
        if point.model is not None and self._layers is not None:
            values += self._layers.values(point.model, point.before)
        return self._format.point(point.version, point.time, values)
