"""Reads the models of a run on request, and rarely enough to cost next to nothing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from dl4jlegacy.nn.networks import NetworkConfiguration
from dl4jlegacy.system.clock import RUNNING, Clock
from dl4jlegacy.ui.model_view import (
    ImageView,
    ModelView,
    NetworkView,
    RatioPoint,
    filters_of,
    network_view,
    parameter_views,
)
from dl4jlegacy.ui.run_models import Model, network_of
from dl4jlegacy.ui.watcher import Watcher

__all__ = ["ModelWatcher"]

_REST, _LEAST_SECONDS = 50, 0.5
"""Pause after a reading: this multiple of the reading's time, and at least the given number of seconds."""
_MOST_POINTS = 5000


class ModelWatcher:
    """The models of the run of a ``Watcher``. Thread-safe; its methods block while they read.

    Nothing is read unless a method is called. If the run stores no ratios, those observed by this dashboard are shown.

    Args:
        watcher: reads the run.
        clock: of running time.
    """

    def __init__(self, watcher: Watcher, clock: Clock = RUNNING) -> None:
        self._watcher, self._clock = watcher, clock
        self._lock = threading.Lock()
        self._conf: Mapping[str, Any] = {}
        self._network: NetworkConfiguration | None = None
        self._drawn: NetworkView | None = None
        self._last: Model | None = None
        self._view: ModelView | None = None
        self._filters: ImageView | None = None
        self._ratios: deque[RatioPoint] = deque(maxlen=_MOST_POINTS)
        self._next = float("-inf")

    def network(self) -> NetworkView | None:
        """Return the view of the run's network; None: nothing is known of the run yet, or its jobs train no network.

        Raises:
            ConfError: the network's configuration cannot be read.
        """
        with self._lock:
            self._follow()
            return self._drawn

    def model(self) -> ModelView | None:
        """Return the newest readable model, as of now or a moment ago; None: there is none yet.

        Raises:
            Dl4jError: the model cannot be read.
        """
        with self._lock:
            self._look()
            return self._view

    def filters(self) -> ImageView | None:
        """Return the first layer of the newest model as images; None: it processes no images. Raises as ``model``."""
        with self._lock:
            self._look()
            if self._filters is None and self._last is not None and self._network is not None:
                self._filters = filters_of(self._conf, self._network, self._last)
            return self._filters

    def _follow(self) -> None:
        """Switch to the network of the watcher's present run."""
        reading = self._watcher.reading
        conf = {} if reading is None else reading.conf
        if conf is self._conf or conf == self._conf:
            return
        self._conf, self._network, self._drawn = {}, None, None
        self._forget()
        self._next = float("-inf")
        network = network_of(conf)
        drawn = None if network is None else network_view(network, int(conf.get("batch_size") or 1))
        self._conf, self._network, self._drawn = conf, network, drawn

    def _forget(self) -> None:
        self._last, self._view, self._filters = None, None, None
        self._ratios.clear()

    def _look(self) -> None:
        self._follow()
        began = self._clock.now()
        if self._network is None or began < self._next:
            return
        try:
            for model in self._watcher.source.models(-1 if self._last is None else self._last.version):
                self._add(model, self._network)
            kept = self._watcher.source.ratios()
            if kept and self._view is not None:
                points = tuple(RatioPoint(version=each.version, versions=1, ratios=each.ratios) for each in kept)
                self._view = msgspec.structs.replace(self._view, ratios=points)
        finally:
            now = self._clock.now()
            self._next = now + max(_LEAST_SECONDS, _REST * (now - began))

    def _add(self, model: Model, network: NetworkConfiguration) -> None:
        if self._last is not None and model.version <= self._last.version:
            self._forget()  # the run went back, or was replaced
        before = self._last
        parameters = parameter_views(network, model, before)
        ratios = {each.name: each.ratio for each in parameters if each.ratio is not None}
        if before is not None and ratios:
            versions = model.version - before.version
            self._ratios.append(RatioPoint(version=model.version, versions=versions, ratios=ratios))
        self._last, self._filters = model, None
        self._view = ModelView(
            version=model.version,
            before=None if before is None else before.version,
            parameters=parameters,
            ratios=tuple(self._ratios),
        )
