"""Access to the models of a run for the dashboard: its checkpoints, or the model in its tracker.

Nothing is written for the dashboard, and models are read only on request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import CheckpointError, WireError
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration
from dl4jlegacy.nn.networks import NetworkConfiguration
from dl4jlegacy.observing.ratios import FollowedRatios, RatiosEntry
from dl4jlegacy.scaleout import protocol, saved_run
from dl4jlegacy.scaleout.state.aggregate import PARAMS
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system.strict_json import to_json

__all__ = ["FolderModels", "Model", "network_of", "newest_of"]

_MOST = 3


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The parameters of one model version, flat on the host."""

    version: int
    params: Array


class FolderModels:
    """The models in a run's checkpoint folder. For one thread.

    Args:
        folder: path of the folder, here or in S3.
        incarnation: of the run to read; None: any.
    """

    def __init__(self, folder: str, incarnation: str | None = None) -> None:
        self._folder, self._incarnation = folder, incarnation
        self._ratios = FollowedRatios(storage.open_folder(folder))

    def after(self, version: int) -> Sequence[Model]:
        """Return the newest few models after a version, oldest first; if the run went back, the newest few of all.

        Damaged models, and those deleted meanwhile, are omitted.

        Raises:
            CheckpointError: the folder cannot be read. CloudError and similar errors: what AWS reports.
        """
        checkpoints = saved_run.open_checkpoints(self._folder)
        if self._incarnation not in (None, checkpoints.kept("incarnation")):
            return []
        versions = checkpoints.versions()
        if versions and versions[0] < version:
            version = -1
        models = []
        for each in sorted(versions[:_MOST]):
            if each > version:
                with contextlib.suppress(CheckpointError, KeyError):
                    models.append(Model(each, checkpoints.model(each).arrays[PARAMS]))
        return models

    def ratios(self) -> Sequence[RatiosEntry]:
        """Return the ratios of update to parameter that the run has stored, if configured; raises as ``after``."""
        return self._ratios.read()


def newest_of(tracker: StateTracker, version: int) -> Sequence[Model]:
    """Return the newest complete model in a tracker, if its version differs from ``version``.

    Returns an empty list if there is none, or if it is being replaced at this moment. Raises ``TrackerError``.
    """
    head = tracker.head()
    if head is None or head.version - head.logged == version:
        return []
    frame = drive(protocol.read_frame(tracker.store, head.model))
    if frame is None:
        return []
    try:
        return [Model(head.version - head.logged, Result.decode(frame).arrays[PARAMS])]
    except (WireError, KeyError):
        return []


def network_of(conf: Mapping[str, Any]) -> NetworkConfiguration | None:
    """Return the network in a JSON Conf; None: its jobs train no network. Raises ``ConfError``."""
    stack, graph = conf.get("multi_layer_conf"), conf.get("computation_graph_conf")
    if stack is not None:
        return MultiLayerConfiguration.from_json(to_json(stack))
    return None if graph is None else ComputationGraphConfiguration.from_json(to_json(graph))
