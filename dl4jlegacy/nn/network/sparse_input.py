"""SparseInput: training of a network with millions of inputs, of which a batch uses some thousands.

A batch goes through the narrow network of its columns (``input_rows``), so no other part of a network handles sparse
features. The result equals training with all columns, provided that the updater does not change a weight with
gradient 0. Other updaters are an error, and so is regularization that shrinks all weights with each batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array, Scalar
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets.sparse_features import SparseFeatures
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.network.input_rows import InputRows, check_sparse_input, narrow_conf, put_rows, take_rows

__all__ = ["SparseInput"]


class SparseInput:
    """Trains and applies a ``MultiLayerNetwork`` on sparse features. Used by one thread at a time.

    Args:
        network: a network on the host, whose parameters and updater state are changed.
        build: returns a network of another configuration with the same kernels.

    Raises:
        ConfError: the network cannot take sparse features.
    """

    def __init__(self, network: Any, build: Callable[[MultiLayerConfiguration], Any]) -> None:
        check_sparse_input(network.layers)
        if network.kernels.xp is not np:
            raise ConfError("sparse features are for networks on the CPU; leave --device gpu (kernels cupy) out")
        self._network, self._build = network, build
        self._rows = InputRows.of(network.layers)
        self._narrow: Any = None

    def fit_batch(
        self, x: SparseFeatures, labels: Any, *, iteration: int, stream: Stream, labels_mask: Array | None = None
    ) -> Scalar:
        """Do one update from a batch, as ``MultiLayerNetwork.fit_batch``; raises likewise."""
        columns, narrow, dense = self._load(x)
        score = narrow.fit_batch(dense, labels, iteration=iteration, stream=stream, labels_mask=labels_mask)
        put_rows(self._whole(), columns, self._parts(narrow))
        return score

    def masked_output(self, x: SparseFeatures) -> tuple[Array, Array | None]:
        """Return the result of ``MultiLayerNetwork.masked_output``; raises likewise."""
        _, narrow, dense = self._load(x)
        found: tuple[Array, Array | None] = narrow.masked_output(dense)
        return found

    def gradient_and_score(
        self, x: SparseFeatures, labels: Any, stream: Stream
    ) -> tuple[npt.NDArray[np.int32], dict[str, Array], Scalar]:
        """Return the columns of a batch, the gradient of the parameters by name, and the score.

        ``0_W`` has a row for each of these columns; the gradient of all other columns is 0.
        """
        columns, narrow, dense = self._load(x)
        gradient, score = narrow.gradient_and_score(dense, labels, stream)
        views = narrow.layout.views(gradient)
        named = {f"{index}_{name}": view for index, layer in enumerate(views) for name, view in layer.items()}
        return columns, {**named, "0_W": named["0_W"][: len(columns)]}, score

    def _load(self, x: SparseFeatures) -> tuple[npt.NDArray[np.int32], Any, Array]:
        """Return the columns of a batch, the narrow network with their weights, and the batch for that network."""
        if x.columns > self._rows.n_in:
            title = self._network.layers[0].title()
            raise ShapeError(f"the features have {x.columns} columns, layer 0 ({title}) has n_in={self._rows.n_in}")
        columns = x.touched()
        conf = narrow_conf(self._network.conf, len(columns))
        if self._narrow is None or self._narrow.n_in != conf.layers[0].n_in:
            self._narrow = self._build(conf)
        take_rows(self._whole(), columns, self._parts(self._narrow))
        return columns, self._narrow, x.dense(columns, self._narrow.n_in)

    def _whole(self) -> Any:
        return self._rows.parts(self._network.params, self._network.updater_state)

    def _parts(self, narrow: Any) -> Any:
        return self._rows.with_inputs(narrow.n_in).parts(narrow.params, narrow.updater_state)
