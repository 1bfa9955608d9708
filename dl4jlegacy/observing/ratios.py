"""Ratio of update to parameter magnitudes, stored in a run's folder for the dashboard (``--ui``).

DL4J's rule of thumb: about 0.001 is good; with much more, training is unsteady; with much less, it hardly learns. The
ratios have a file of their own, since checkpoints exist only for the newest few versions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import msgspec
import numpy as np

from dl4jlegacy.errors import CheckpointError, Dl4jError
from dl4jlegacy.nn.parameter_statistics import NamedSpan, named_spans
from dl4jlegacy.scaleout import saved_run
from dl4jlegacy.scaleout.monitoring.observers import ObservedRun, RunObserver
from dl4jlegacy.scaleout.persistence.history import HistoryEntry, versions_that_count
from dl4jlegacy.scaleout.persistence.jsonl import JsonlFile, JsonlWriter
from dl4jlegacy.scaleout.protocol import NewModel
from dl4jlegacy.scaleout.state.aggregate import PARAMS
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.storage.folders import LinesFolder
from dl4jlegacy.system.clock import RUNNING, Clock
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["FollowedRatios", "RatiosEntry", "RatiosFile", "RatiosObserver"]

logger = logging.getLogger(__name__)

_LEAST_SECONDS, _SHARE = 1.0, 0.001
"""Least seconds between two measured versions; largest share of the time spent on measuring."""
_CLOSE_SECONDS = 30.0


class RatiosEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The ratios of update to parameter, mean magnitudes, of a version and the one before it.

    ``began`` is that of ``HistoryEntry``; ``ratios`` are by DL4J's names, ``0_W``.
    """

    began: float
    version: int
    ratios: dict[str, float]


class RatiosFile(JsonlFile[RatiosEntry]):
    """The ratios in a run's folder."""

    NAME = "ratios.jsonl"

    def __init__(self, folder: LinesFolder) -> None:
        super().__init__(folder, self.NAME, RatiosEntry, "the run's ratios of update to parameter")


class FollowedRatios:
    """The ratios in a run's folder; each reading reads only the lines that were appended. For one thread."""

    def __init__(self, folder: LinesFolder) -> None:
        self._file = RatiosFile(folder)
        self._lines: list[RatiosEntry] = []
        self._entries: list[RatiosEntry] = []

    def read(self) -> Sequence[RatiosEntry]:
        """Return the entries by version; none if the run stores none.

        Raises:
            CheckpointError: the entries cannot be read. CloudError and similar errors: what AWS reports.
        """
        try:
            new, is_all = self._file.new_lines()
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise CheckpointError(f"{self._file.place} cannot be read: {exc.strerror or exc}") from exc
        if new or is_all:
            self._lines = new if is_all else [*self._lines, *new]
            self._entries = versions_that_count(self._lines)
        return self._entries


class RatiosObserver(RunObserver):
    """Writes the ratios of some versions of a run with a folder, on a thread of its own.

    Args:
        clock: of running time.
    """

    def __init__(self, clock: Clock = RUNNING) -> None:
        self._clock = clock
        self._parameters: list[NamedSpan] = []
        self._keeper: JsonlWriter[RatiosEntry] | None = None
        self._before: Buffer | None = None
        self._given: tuple[HistoryEntry, Buffer, Buffer] | None = None
        self._due = float("-inf")
        self._news, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, run: ObservedRun) -> None:
        """See ``RunObserver``."""
        folder = saved_run.open_lines(run.conf)
        if folder is None or run.conf.network_conf is None:
            return
        self._parameters = named_spans(run.conf.network_conf)
        self._keeper = JsonlWriter(RatiosFile(folder))
        self._closed.clear()
        self._thread = ServiceThread(target=self._run, args=(self._keeper,), name="dl4j-ratios")
        self._thread.start()

    def new_version(self, version: HistoryEntry, event: NewModel) -> None:
        """See ``RunObserver``."""
        if self._keeper is None or version.validation is not None:
            return
        before, self._before = self._before, None  # held until the next version only, to save memory
        if self._given is not None or self._clock.now() < self._due:
            return
        if before is None:
            self._before = event.frame
            return
        self._given = version, event.frame, before
        self._news.set()

    def end(self) -> None:
        """See ``RunObserver``."""
        thread, keeper = self._thread, self._keeper
        self._thread, self._keeper, self._before = None, None, None
        self._closed.set()
        self._news.set()
        if thread is not None:
            thread.join(_CLOSE_SECONDS)
        if keeper is not None:
            keeper.close()

    def _run(self, keeper: JsonlWriter[RatiosEntry]) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            given = self._given
            if given is not None:
                self._keep(keeper, *given)
                self._given = None
            if self._closed.is_set():
                return

    def _keep(self, keeper: JsonlWriter[RatiosEntry], version: HistoryEntry, model: Buffer, before: Buffer) -> None:
        began = self._clock.now()
        try:
            params, last = (Result.decode(frame).arrays[PARAMS] for frame in (model, before))
            ratios = {}
            for each in self._parameters:
                place = slice(each.span.start, each.span.stop)
                size = float(np.abs(params[place]).mean())
                ratio = float(np.abs(params[place] - last[place]).mean()) / size if size else float("nan")
                if np.isfinite(ratio):
                    ratios[each.name] = ratio
            keeper.add([RatiosEntry(began=version.began, version=version.version, ratios=ratios)])
        except (Dl4jError, KeyError, ValueError) as exc:
            logger.debug("the ratios of version %s cannot be told: %s", version.version, exc)
        finally:
            now = self._clock.now()
            self._due = now + max(_LEAST_SECONDS, (now - began) / _SHARE)
