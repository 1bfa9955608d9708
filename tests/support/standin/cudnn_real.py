"""Run by a test in a process of its own: the real front end of cuDNN on the stand-in for its library.

Prints what the library prints, then ``path``, and raises unless all results are NumPy's.
"""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np


class HostArray(np.ndarray):
    """As much of a device array as the way through cuDNN wants: an address."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)


def host_module() -> Any:
    """NumPy's functions, as a module whose arrays have addresses."""
    module = ModuleType("host")
    for name in ("asarray", "empty"):
        function = getattr(np, name)
        setattr(module, name, lambda *args, function=function: function(*args).view(HostArray))
    module.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        get_current_stream=lambda: SimpleNamespace(ptr=77), Device=lambda number: contextlib.nullcontext()
    )
    return module


def main(precision: str) -> None:
    """Compute the three convolutions of every shape."""
    from dl4jlegacy.kernels.cuda.cudnn_convolution import find_cudnn
    from dl4jlegacy.kernels.cuda.scratch import Scratch
    from dl4jlegacy.kernels.numpy import tiles

    xp = host_module()
    convolution, reason = find_cudnn(xp, 0, precision, Scratch(xp))
    assert convolution is not None, reason
    print("path", convolution.name)
    random = np.random.default_rng(0)
    for stride, dilation, size in (((1, 1), (1, 1), (7, 8)), ((2, 3), (1, 1), (8, 9)), ((1, 2), (2, 1), (9, 7))):
        x, W = (random.standard_normal(s).astype("f") for s in ((4, 3, *size, 1), (5, 3, 3, 2)))
        out = [(size[i] - (W.shape[2 + i] - 1) * dilation[i] - 1) // stride[i] + 1 for i in (0, 1)]
        dz = random.standard_normal((4, 5, *out, 1)).astype("f")
        wanted = [np.full_like(like, 7) for like in (dz, W, x)]
        tiles.conv_forward(x, W, np.zeros(5, "f"), wanted[0], stride, dilation, False)
        tiles.conv_backward_weights(x, dz, wanted[1], stride, dilation)
        tiles.conv_backward_input(dz, W, wanted[2], stride, dilation)
        for _ in range(2):
            x, W, dz = (array.view(HostArray) for array in (x, W, dz))
            y, gW, dx = (np.full_like(like, 7) for like in (dz, W, x))
            assert convolution.forward(x, W, y, stride, dilation), convolution.refused
            assert convolution.backward_weights(x, dz, gW, stride, dilation), convolution.refused
            assert convolution.backward_input(dz, W, dx, stride, dilation), convolution.refused
            for found, right in zip((y, gW, dx), wanted, strict=True):
                np.testing.assert_allclose(np.asarray(found), np.asarray(right), rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    main(sys.argv[1])
