"""Gradient checks: comparison of a network's gradient with central differences of its score, in float64.

Legacy: ``org.deeplearning4j.gradientcheck.GradientCheckUtil``, with its tolerances. The tests of layers and losses use
it; users can check their own configurations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array, to_host
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph, Several
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork

__all__ = ["GradientCheckReport", "GradientCheckUtil"]


@dataclass(frozen=True, slots=True)
class GradientCheckReport:
    """The number of checked parameters, and the failures as ``(name, index, analytic, numeric)``."""

    checked: int
    max_rel_error: float
    failures: tuple[tuple[str, int, float, float], ...]

    @property
    def passed(self) -> bool:
        """Whether all parameters agreed."""
        return not self.failures


@dataclass(frozen=True, slots=True)
class _Tolerance:
    """See the arguments of ``GradientCheckUtil.check_gradients``."""

    eps: float
    max_rel_error: float
    min_abs_error: float
    max_params: int | None


class GradientCheckUtil:
    """Gradient checks of a ``MultiLayerNetwork`` or ``ComputationGraph`` whose ``dtype`` is ``float64``."""

    @staticmethod
    def check_gradients(
        network: MultiLayerNetwork | ComputationGraph,
        x: Several,
        labels: Several,
        *,
        eps: float = 1e-6,
        max_rel_error: float = 1e-3,
        min_abs_error: float = 1e-8,
        max_params: int | None = None,
        stream: Stream | None = None,
        features_mask: Any = None,
        labels_mask: Any = None,
    ) -> GradientCheckReport:
        """Compare backpropagation (and regularization) with central differences, for every parameter.

        A parameter fails if its relative error ``|a - n| / (|a| + |n|)`` exceeds ``max_rel_error`` and its absolute
        error exceeds ``min_abs_error``. Values without a gradient step are skipped: visible biases, layers' state,
        frozen layers.

        Args:
            network: in float64; its parameters are restored at the end.
            x: ``(examples, n_in)``, or as in ``input_type``; for a graph one for every input.
            labels: ``(examples, n_out)``; for a graph one for every output.
            eps: the step of the differences.
            max_rel_error: tolerance.
            min_abs_error: absolute errors below this never fail.
            max_params: check this number of parameters, evenly spread, instead of all.
            stream: fixes the drop-out masks of all passes.
            features_mask: as in ``fit_batch``.
            labels_mask: as in ``fit_batch``.

        Raises:
            ConfError: the network is not float64, so the differences would be noise.
        """
        chosen = stream or Stream.of(0)
        batch: Any = (x, labels, chosen, features_mask, labels_mask)

        def score() -> float:
            return float(network.gradient_and_score(*batch)[1])

        def gradient() -> Array:
            found = network.gradient_and_score(*batch)[0]
            network.updater.regularize(network.params, found, network.kernels)
            return to_host(found).copy()

        spans = [span for span in network.layout.spans if not network.layers[span.layer].frozen]
        places = [i for span in spans if not (span.is_pretrain or span.is_state) for i in span.indices]
        return _compare(network, score, gradient, places, _Tolerance(eps, max_rel_error, min_abs_error, max_params))

    @staticmethod
    def check_pretrain_gradients(
        network: MultiLayerNetwork,
        layer: int,
        x: Array,
        *,
        eps: float = 1e-6,
        max_rel_error: float = 1e-3,
        min_abs_error: float = 1e-8,
        max_params: int | None = None,
        stream: Stream | None = None,
    ) -> GradientCheckReport:
        """Compare an autoencoder's pretraining gradient with central differences; arguments as above.

        ``x (examples, n_in of the layer)`` must have at most as many examples as a pretraining score uses
        (``reconstruction_loss.SCORED_ROWS``). An RBM has no check: contrastive divergence is no function's gradient.
        """
        chosen = stream or Stream.of(0)

        def score() -> float:
            return float(network.pretrain_gradient_and_score(layer, x, chosen)[1])

        def gradient() -> Array:
            found = network.pretrain_gradient_and_score(layer, x, chosen)[0]
            network.updater.regularize(network.params, found, network.kernels, layer)
            return to_host(found).copy()

        part = network.layer_slices[layer]
        places = list(range(part.start, part.stop))
        return _compare(network, score, gradient, places, _Tolerance(eps, max_rel_error, min_abs_error, max_params))


def _compare(
    network: MultiLayerNetwork | ComputationGraph,
    score: Callable[[], float],
    gradient: Callable[[], Array],
    places: list[int],
    tolerance: _Tolerance,
) -> GradientCheckReport:
    params = network.params
    if params.dtype != np.float64:
        raise ConfError(f"gradient checks need dtype float64, the network has {params.dtype}; set conf.dtype='float64'")
    if tolerance.max_params is not None and len(places) > tolerance.max_params:
        places = [places[i] for i in np.linspace(0, len(places) - 1, tolerance.max_params).astype(int)]
    analytic = gradient()
    failures: list[tuple[str, int, float, float]] = []
    worst = 0.0
    for i in places:
        numeric = _central_difference(params, i, score, tolerance.eps)
        error = abs(analytic[i] - numeric)
        if error <= tolerance.min_abs_error:
            continue
        relative = error / (abs(analytic[i]) + abs(numeric))
        worst = max(worst, relative)
        if not relative <= tolerance.max_rel_error:
            failures.append((_name(network, i), i, float(analytic[i]), numeric))
    return GradientCheckReport(len(places), worst, tuple(failures))


def _central_difference(params: Array, i: int, score: Callable[[], float], eps: float) -> float:
    kept = float(params[i])
    params[i] = kept + eps
    up = score()
    params[i] = kept - eps
    down = score()
    params[i] = kept
    return (up - down) / (2 * eps)


def _name(network: MultiLayerNetwork | ComputationGraph, i: int) -> str:
    """Return the name in DL4J's ``param_table`` of the parameter at index ``i`` of the flat vector."""
    spans = zip(network.param_table, network.layout.spans, strict=True)
    return next(name for name, span in spans if span.start <= i < span.stop)
