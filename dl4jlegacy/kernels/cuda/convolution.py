"""Convolution on a GPU: one matrix product over the unrolled images, or cuDNN if it is installed.

Our own method keeps all examples of a batch side by side in one tile, ``(1, channels, height, width, rows)``. Unrolled,
that is a matrix of ``channels * kernel`` rows and ``pixels * rows`` columns, and its product with the weights is
the output. A large matrix is cut along the output's pixels into chunks of at most ``Convolutions.chunk_bytes``, which
are processed in a fixed order; the chunk size affects the last bits of the result, so it is a constant. In the forward
pass, kernels with few places, as in a network's first layer, need no unrolled images.

cuDNN gets images one after the other, ``(rows, channels, height, width, 1)``, in float32; float64 uses our own method.
"""

from __future__ import annotations

from collections.abc import Iterator

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.kernels.cuda.cudnn_convolution import CudnnConvolution, find_cudnn
from dl4jlegacy.kernels.cuda.launch import BLOCK, Launcher

__all__ = ["Convolutions"]

Pair = tuple[int, int]
_SPAN = 8 * BLOCK  # what a block works on at a time, as in convolution.cu
_PLACES, _FILTERS = 64, 8  # the largest kernel of conv_direct, and the filters of one of its blocks
_PACK = 16  # bytes that a thread moves at a time; it strides on where the lanes do not allow it
_MOST_BLOCKS = 1 << 16
_FAR = 1 << 31  # what the kernels count in 32 bits must stay below


class Convolutions(Launcher):
    """The convolutions of ``Kernels`` for CuPy arrays; a part of ``CupyKernels``.

    ``matmul(a, b, out, accumulate)`` gets C-ordered matrices, ranges of their columns, and transposed views.

    Attributes:
        convolution_path: ``"cudnn 9.x.y"`` or ``"own"``. It never changes, since the two round differently.
        convolution_reason: why cuDNN is not used; empty if it is.
        chunk_bytes: maximum memory of unrolled images.
    """

    chunk_bytes = 256 << 20

    def __init__(self, device: int = 0, precision: str = "float32") -> None:
        super().__init__(device, precision)
        self._cudnn, self.convolution_reason = find_cudnn(self.xp, device, precision, self._scratch)
        self.convolution_path = self._cudnn.name if self._cudnn else "own"

    def lanes(self, char: str, rows: int) -> int:
        """See ``Kernels``: all rows side by side, or one for cuDNN."""
        return 1 if self._cudnn is not None and char == "f" else max(1, rows)

    def conv_forward(self, x: Array, W: Array, b: Array, y: Array, stride: Pair, dilation: Pair, relu: bool) -> None:
        """See ``Kernels``."""
        _check(x, W, y, stride, dilation)
        if b.shape != (len(W),):
            raise ShapeError(f"convolution with weights {W.shape} needs {len(W)} biases, got shape {b.shape}")
        self._on_device("conv_forward", x, W, b, y)
        if not y.size:
            return
        cudnn = self._for(x)
        if cudnn is None or not cudnn.forward(x, W, y, stride, dilation):
            weights = W.reshape(len(W), -1)
            if weights.shape[1] <= _PLACES and not _is_pointwise(W, stride):
                for index in range(len(x)):
                    self._direct(x[index], W, b, y[index], stride, dilation, relu)
                return
            for index, columns, first, last in self._unrolled(x, W, y, stride, dilation):
                self.matmul(weights, columns, y[index].reshape(len(W), -1)[:, first:last])
        rows, items = len(y) * len(W), y[0, 0].size
        packs = -(-y.size * y.itemsize // _PACK)
        self.launch("convolution", "conv_bias", y.dtype.char, packs, y, b, rows, len(W), items, int(relu))

    def _direct(self, x: Array, W: Array, b: Array, y: Array, stride: Pair, dilation: Pair, relu: bool) -> None:
        """Compute one tile without unrolling it, including bias and ReLU: for kernels with few places."""
        filters, down, across, lanes = y.shape
        if y[0].size >= _FAR:
            raise ShapeError(f"convolution: {y[0].size} pixels, more than 2^31, of {lanes} rows; use a smaller batch")
        packs = -(-y[0].size * y.itemsize // _PACK)
        grid = (min(-(-packs // BLOCK), _MOST_BLOCKS), -(-filters // _FILTERS))
        self.launch_blocks(
            "convolution", "conv_direct", y.dtype.char, grid, (BLOCK,), x, W, b, y, filters, *x.shape, *W.shape[2:],
            *stride, *dilation, down * across, across, int(relu),
        )  # fmt: skip

    def conv_backward_weights(self, x: Array, dz: Array, gW: Array, stride: Pair, dilation: Pair) -> None:
        """See ``Kernels``."""
        _check(x, gW, dz, stride, dilation)
        self._on_device("conv_backward_weights", x, dz, gW)
        if not dz.size:
            gW.fill(0)
            return
        cudnn = self._for(x)
        if cudnn is None or not cudnn.backward_weights(x, dz, gW, stride, dilation):
            total, is_first = gW.reshape(len(gW), -1), True
            for index, columns, first, last in self._unrolled(x, gW, dz, stride, dilation):
                slopes = dz[index].reshape(len(gW), -1)[:, first:last]
                self.matmul(slopes, columns.T, total, not is_first)
                is_first = False

    def conv_backward_input(self, dz: Array, W: Array, dx: Array, stride: Pair, dilation: Pair) -> None:
        """See ``Kernels``."""
        _check(dx, W, dz, stride, dilation)
        self._on_device("conv_backward_input", dz, W, dx)
        if not dz.size:
            dx.fill(0)
            return
        cudnn = self._for(dz)
        if cudnn is None or not cudnn.backward_input(dz, W, dx, stride, dilation):
            for index in range(len(dz)):
                self._tile_backward(dz[index], W, dx[index], stride, dilation)

    def _for(self, images: Array) -> CudnnConvolution | None:
        """Return cuDNN if it is in use and supports such images."""
        return self._cudnn if images.dtype.char == "f" and images.shape[-1] == 1 else None

    def _tile_backward(self, dz: Array, W: Array, dx: Array, stride: Pair, dilation: Pair) -> None:
        """Write the gradient of one tile, chunk by chunk, from the gradients of its columns."""
        weights, slopes = W.reshape(len(W), -1).T, dz.reshape(len(W), -1)
        if _is_pointwise(W, stride):
            self.matmul(weights, slopes, dx.reshape(len(dx), -1))
            return
        channels, height, width, lanes = dx.shape
        _, down, across, _ = dz.shape
        kh, kw = W.shape[2:]
        chunks = list(self._chunks(len(weights), dz))
        if len(chunks) > 1:
            dx.fill(0)
        for first, last in chunks:
            columns = self._scratch.buffer("columns", (len(weights), last - first), dz.dtype.char)
            self.matmul(weights, slopes[:, first:last], columns)
            pixel, count = first // lanes, (last - first) // lanes
            top, lines = 0, height
            if len(chunks) > 1:  # only the rows that these pixels saw
                top = pixel // across * stride[0]
                lines = ((pixel + count - 1) // across - pixel // across) * stride[0] + (kh - 1) * dilation[0] + 1
            args = (columns, dx, channels, height, width, lanes, kh, kw, *stride, *dilation, down, across,
                    pixel, count, top, lines, int(len(chunks) > 1))  # fmt: skip
            self._by_rows("conv_gather", dx, channels, lines * width * lanes, args)

    def _unrolled(
        self, x: Array, W: Array, y: Array, stride: Pair, dilation: Pair
    ) -> Iterator[tuple[int, Array, int, int]]:
        """Yield all chunks of every tile: the tile's index, the unrolled images, and their column range in ``y``.

        A chunk is valid until the next one is requested.
        """
        _, channels, height, width, lanes = x.shape
        size, across = W[0].size, y.shape[3]
        for index in range(len(x)):
            if _is_pointwise(W, stride):
                yield index, x[index].reshape(channels, -1), 0, height * width * lanes
                continue
            for first, last in self._chunks(size, y[index]):
                columns = self._scratch.buffer("columns", (size, last - first), x.dtype.char)
                args = (x[index], columns, channels, height, width, lanes, *W.shape[2:], *stride, *dilation, across,
                        first // lanes, (last - first) // lanes)  # fmt: skip
                self._by_rows("conv_columns", x, size, last - first, args)
                yield index, columns, first, last

    def _chunks(self, size: int, y: Array) -> Iterator[Pair]:
        """Yield first and last column of every chunk of a tile ``y``: whole rows of pixels if several fit."""
        _, down, across, lanes = y.shape
        count = max(1, self.chunk_bytes // (size * lanes * y.dtype.itemsize))
        if count > across:
            count -= count % across
        for first in range(0, down * across, count):
            yield first * lanes, min(first + count, down * across) * lanes

    def _by_rows(self, name: str, like: Array, rows: int, items: int, args: tuple[object, ...]) -> None:
        """Launch a kernel on ``rows`` of ``items`` elements; each block processes a span of one row."""
        spans = -(-items // _SPAN)
        if items >= _FAR or rows * spans >= _FAR:
            raise ShapeError(
                f"{name}: {rows} rows of {items} elements for arrays like {like.shape} are more than can be counted "
                "in 31 bits; use a smaller batch"
            )
        self.launch_blocks("convolution", name, like.dtype.char, (rows * spans,), (BLOCK,), *args)


def _is_pointwise(W: Array, stride: Pair) -> bool:
    """Return whether every output pixel depends only on the input pixel at its place: no unrolling is needed."""
    return W.shape[2:] == (1, 1) and tuple(stride) == (1, 1)


def _check(x: Array, W: Array, y: Array, stride: Pair, dilation: Pair) -> None:
    """Raise ``ShapeError`` unless a convolution of ``x`` (padded) with ``W`` gives ``y``."""
    reach = [(size - 1) * step + 1 for size, step in zip(W.shape[2:], dilation, strict=True)]
    out = [(size - far) // step + 1 for size, far, step in zip(x.shape[2:4], reach, stride, strict=True)]
    wanted = (len(x), len(W), *out, x.shape[4])
    if x.shape[1] != W.shape[1] or y.shape != wanted or min(out) < 1:
        raise ShapeError(
            f"convolution of tiles {x.shape} with weights {W.shape}, stride {stride}, dilation {dilation} gives "
            f"{wanted}, not {y.shape}"
        )
