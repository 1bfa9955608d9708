"""FittedNetwork: a trained network inside an estimator, usable from any thread, copied and pickled as plain data."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.sparse_features import SparseFeatures
from dl4jlegacy.errors import ConfError, counted
from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import NoOp

__all__ = ["FittedNetwork", "Learned"]

_ROWS = 1024  # rows of sparse features per forward pass
_VALUES = 1 << 22  # values of sparse features in memory at once, if a network needs dense features


@dataclass(frozen=True, slots=True)
class Learned:
    """The progress of a network's training, from which training can continue.

    Attributes:
        seed: of the order of the examples.
        epochs, iteration: passes over the data, and updates, so far.
        updater_state: the flat state of the updater.
    """

    seed: int
    epochs: int
    iteration: int
    updater_state: Array


class FittedNetwork:
    """The configuration and the parameters of a trained network, and its outputs for examples.

    It computes in float64, so that the output for an example does not depend on the other examples, as scikit-learn
    requires: in float32, matrix products of different sizes may round differently. A pickle contains the configuration
    as JSON and the parameters as one array, and no objects that compute with them.

    Attributes:
        conf: the configuration, with all sizes.
        params: the flat parameter vector, read-only.
    """

    def __init__(self, conf: MultiLayerConfiguration, params: Array) -> None:
        self.conf = conf
        self.params = np.array(params)
        self.params.flags.writeable = False
        exact = conf.conf.replace(dtype="float64", updater=NoOp())  # an updater with state would allocate memory for it
        self._network = MultiLayerNetwork(conf.replace(conf=exact))
        self._network.set_params(self.params)
        self._using = threading.Lock()  # its work buffers are for one thread, but several threads may call predict

    def output(self, x: Any) -> Array:
        """Return the outputs ``(examples, n_out)`` in float64 for features ``(examples, n_in)``; thread-safe.

        Args:
            x: an array, or a matrix of scipy.sparse, of which only some rows are dense in memory at a time.

        Raises:
            NotFiniteError: an output is NaN or infinite; names row and layer.
        """
        with self._using, one_thread():  # equal sums for any number of cores
            if hasattr(x, "tocsr"):
                return self._of_sparse(SparseFeatures.of(x.astype(np.float64)))
            return np.array(self._network.output(np.asarray(x, np.float64)))

    def _of_sparse(self, x: SparseFeatures) -> Array:
        try:
            self._network.sparse_input()
        except ConfError:
            rows, columns = max(1, _VALUES // x.columns), np.arange(x.columns, dtype=np.int32)
            parts = (x[start : start + rows] for start in range(0, len(x), rows))
            return np.concatenate([self._network.output(part.dense(columns)) for part in parts])
        parts = (x[start : start + _ROWS] for start in range(0, len(x), _ROWS))
        return np.concatenate([self._network.output(part) for part in parts])

    def network(self) -> MultiLayerNetwork:
        """Return a new ``MultiLayerNetwork`` with these parameters, e.g. for ``write_model``."""
        network = MultiLayerNetwork(self.conf)
        network.set_params(self.params)
        return network

    def __repr__(self) -> str:
        layers = counted(len(self.conf.layers), "layer")
        return f"<FittedNetwork: {layers}, {self.params.size:,} parameters; network() makes a MultiLayerNetwork>"

    def __reduce__(self) -> tuple[object, tuple[str, Array]]:
        return _restored, (self.conf.to_json(), self.params)


def _restored(conf: str, params: Array) -> FittedNetwork:
    """Return the object for the arguments in ``FittedNetwork.__reduce__``."""
    return FittedNetwork(MultiLayerConfiguration.from_json(conf), params)
