"""Where did the first NaN come from? Looked for only after a score was not finite, so it may take its time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dl4jlegacy.backend import Array, Scalar
from dl4jlegacy.errors import NotFiniteError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.layers.layer import Layer

__all__ = ["ScoreWatch", "not_finite"]

_REMEDY = "try a smaller learning rate, gradient clipping, or look for extreme values in the data"


class ScoreWatch:
    """Remembers on a GPU whether a score was NaN or infinite, so that nobody has to wait for each of them."""

    __slots__ = ("_sum",)

    def __init__(self) -> None:
        self._sum: Scalar = None

    def add(self, score: Scalar) -> None:
        """Remember a score that is on a device."""
        if self._sum is None:
            self._sum = score.copy()
        else:
            self._sum += score

    def take(self) -> float:
        """Return the sum of the scores since the last call, NaN or infinite if one was. Waits for the device."""
        if self._sum is None:
            return 0.0
        total = float(self._sum)
        self.forget()
        return total

    def forget(self) -> None:
        """Begin anew, whatever the scores were."""
        if self._sum is not None:
            self._sum.fill(0)


def not_finite(
    layers: Sequence[Layer],
    parts: Sequence[Array],
    activations: Iterable[Array],
    score: float,
    kernels: Kernels,
) -> NotFiniteError:
    """Return the error that names the first layer whose parameters, or else activations, are NaN or infinite.

    Args:
        layers: the network's, for their names.
        parts: each layer's flat parameters.
        activations: each layer's output for the batch, made while it is asked for; empty to look at parameters only.
        score: what was found not to be finite.
        kernels: for ``all_finite``.
    """
    for index, part in enumerate(parts):
        if not kernels.all_finite(part):
            return NotFiniteError(f"layer {index} ({layers[index].title()}): a parameter is NaN or infinite; {_REMEDY}")
    for index, y in enumerate(activations):
        if not kernels.all_finite(y.reshape(-1)):
            title = layers[index].title()
            return NotFiniteError(f"layer {index} ({title}): an activation is NaN or infinite; {_REMEDY}")
    last = len(layers) - 1
    return NotFiniteError(f"layer {last} ({layers[last].title()}): the score is {score}; {_REMEDY}")
