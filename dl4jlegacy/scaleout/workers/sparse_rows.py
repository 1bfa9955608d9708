"""SparseRowsPerformer: trains a network with sparse features, only on the rows that a job uses.

The model stays in the worker's frame and is not copied, so a worker needs memory for one model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from dl4jlegacy.datasets import DataSet
from dl4jlegacy.datasets.sparse_features import SparseFeatures
from dl4jlegacy.errors import JobError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.listeners import TrainingListener
from dl4jlegacy.nn.network.input_rows import InputRows, narrow_conf, take_rows
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.scaleout.plan import VALIDATE
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE
from dl4jlegacy.scaleout.state.job import Job, Result
from dl4jlegacy.scaleout.strategies.row_averaging import row_update
from dl4jlegacy.scaleout.workers.perform import MultiLayerNetworkPerformer
from dl4jlegacy.system.resources import give_back_memory

__all__ = ["SparseRowsPerformer"]


class SparseRowsPerformer:
    """A ``WorkerPerformer`` for ``row-averaging``.

    Args:
        conf: of the network.
        kernels: for host memory.
        seed, sends_updater_state, listeners: as for ``MultiLayerNetworkPerformer``.
    """

    def __init__(
        self,
        conf: MultiLayerConfiguration,
        kernels: Kernels,
        *,
        seed: int,
        sends_updater_state: bool = True,
        listeners: Sequence[TrainingListener] = (),
    ) -> None:
        self._conf, self._kernels = conf, kernels
        self._rows = InputRows.of(tuple(stage.layer for stage in conf.stages()))
        self._options: dict[str, Any] = {"seed": seed, "listeners": listeners}
        self._sends_state = sends_updater_state
        self._network: MultiLayerNetwork | None = None
        self._inner: MultiLayerNetworkPerformer | None = None
        self._done = 0
        self._model: Result | None = None

    @property
    def progress(self) -> int:
        """See ``WorkerPerformer``."""
        return self._done + (0 if self._inner is None else self._inner.progress)

    def update(self, model: Result) -> None:
        """See ``WorkerPerformer``; the model is only read in ``perform``, when the job's columns are known."""
        params, state = model.arrays[PARAMS], model.arrays[STATE]
        if not self._rows.fits(params.size, state.size):
            raise JobError(
                f"the model has {params.size} parameters and {state.size} numbers of updater state, and this worker's "
                f"network others, {self._rows}; was the Conf changed during the run?"
            )
        if self._network is None:  # frees the memory used for reading the model
            give_back_memory()
        self._model = model

    def perform(self, job: Job) -> Result | None:
        """See ``WorkerPerformer``; returns the update of ``row_averaging.row_update``, or a validation's result."""
        batches = _batches(job)
        columns = np.unique(np.concatenate([batch.features.touched() for batch in batches]))
        network, inner = self._narrow(len(columns))
        model, self._model = self._model, None
        assert model is not None, "update comes before perform"
        narrow = self._rows.with_inputs(network.n_in).parts(network.params, network.updater_state)
        take_rows(self._rows.parts(model.arrays[PARAMS], model.arrays[STATE]), columns, narrow)
        if not self._sends_state:
            network.reset_updater()
        before = network.params.copy(), network.updater_state.copy()
        dense = [
            DataSet(batch.features.dense(columns, network.n_in), batch.labels, None, batch.labels_mask)
            for batch in batches
        ]
        result = inner.perform(dataclasses.replace(job, work=dense))
        if result is None or job.phase.kind == VALIDATE:
            return result
        if not self._sends_state:
            network.reset_updater()
        changes, count = [], len(columns)
        for now, then in zip(narrow, self._rows.with_inputs(network.n_in).parts(*before), strict=True):
            if now.W is not None and then.W is not None:
                changes.append(now.W[:count] - then.W[:count])
            changes.append(now.rest - then.rest)
        return row_update(result.values, self._rows, columns.astype(np.int32), changes)

    def _narrow(self, columns: int) -> tuple[MultiLayerNetwork, MultiLayerNetworkPerformer]:
        conf = narrow_conf(self._conf, columns)
        if self._network is None or self._inner is None or self._network.n_in != conf.layers[0].n_in:
            self._done = self.progress
            self._network = MultiLayerNetwork(conf, kernels=self._kernels, init=False)
            self._inner = MultiLayerNetworkPerformer(self._network, **self._options)
        return self._network, self._inner


def _batches(job: Job) -> list[DataSet]:
    if not isinstance(job.work, list) or not all(
        isinstance(batch, DataSet) and isinstance(batch.features, SparseFeatures) for batch in job.work
    ):
        raise JobError(f"round {job.slot.round}, slot {job.slot.slot} holds no DataSets of sparse features")
    return job.work
