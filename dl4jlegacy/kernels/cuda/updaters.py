"""The updaters on a GPU: one pass over the flat vectors each, with the bits of NumPy's kernels."""

from __future__ import annotations

import math

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.kernels.cuda.launch import Launcher

__all__ = ["Updaters"]


def _rate(lr: float, beta1: float, beta2: float, t: int) -> float:
    """Adam's step size with both bias corrections."""
    return lr * math.sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1))


class Updaters(Launcher):
    """See ``Kernels``; numbers that change from step to step go through ``_scalars``."""

    def _update(self, name: str, vectors: tuple[Array, ...], *scalars: float) -> bool:
        char = self._alike(name, *vectors)
        size = vectors[0].size
        self.launch("updaters", name, char, size, *vectors, size, *self._scalars(*scalars))
        return True  # nobody looks: that would wait for the device

    def noop(self, params: Array, gradient: Array) -> bool:
        """See ``Kernels``."""
        char = self._alike("noop", params, gradient)
        self.launch("updaters", "noop", char, params.size, params, gradient, params.size)
        return True

    def sgd(self, params: Array, gradient: Array, lr: float) -> bool:
        """See ``Kernels``."""
        return self._update("sgd", (params, gradient), lr)

    def nesterovs(self, params: Array, gradient: Array, v: Array, lr: float, mu: float) -> bool:
        """See ``Kernels``."""
        return self._update("nesterovs", (params, gradient, v), lr, mu)

    def adagrad(self, params: Array, gradient: Array, h: Array, lr: float, eps: float) -> bool:
        """See ``Kernels``."""
        return self._update("adagrad", (params, gradient, h), lr, eps)

    def rmsprop(self, params: Array, gradient: Array, c: Array, lr: float, decay: float, eps: float) -> bool:
        """See ``Kernels``."""
        return self._update("rmsprop", (params, gradient, c), lr, decay, eps)

    def adam(self, params: Array, gradient: Array, m: Array, v: Array,
             lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
        """See ``Kernels``."""
        return self._update("adam", (params, gradient, m, v), _rate(lr, beta1, beta2, t), beta1, beta2, eps)

    def decay(self, params: Array, factor: float) -> None:
        """See ``Kernels``."""
        self._update("decay", (params,), factor)

    def adamax(self, params: Array, gradient: Array, m: Array, u: Array,
               lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
        """See ``Kernels``."""
        return self._update("adamax", (params, gradient, m, u), lr / (1 - beta1 ** (t + 1)), beta1, beta2)

    def adadelta(self, params: Array, gradient: Array, msg: Array, msdx: Array, rho: float, eps: float) -> bool:
        """See ``Kernels``."""
        return self._update("adadelta", (params, gradient, msg, msdx), rho, eps)

    def nadam(self, params: Array, gradient: Array, m: Array, v: Array,
              lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
        """See ``Kernels``."""
        return self._update("nadam", (params, gradient, m, v), lr / (1 - beta1 ** (t + 1)), beta1, beta2, eps)

    def amsgrad(self, params: Array, gradient: Array, m: Array, v: Array, v_hat: Array,
                lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
        """See ``Kernels``."""
        return self._update("amsgrad", (params, gradient, m, v, v_hat), _rate(lr, beta1, beta2, t), beta1, beta2, eps)

    def adabelief(self, params: Array, gradient: Array, m: Array, s: Array,
                  lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
        """See ``Kernels``."""
        return self._update("adabelief", (params, gradient, m, s), _rate(lr, beta1, beta2, t), beta1, beta2, eps)
