"""Conversion of batches between the layout outside a network and the one inside it, and checks of their shapes.

The two layouts are described in ``input_type``.
"""

from __future__ import annotations

from dl4jlegacy.arrays.backend import Array, as_contiguous, get_array_module
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.nn.input_type import (
    AnyInputType,
    InputTypeConvolutional,
    InputTypeConvolutionalFlat,
    InputTypeRecurrent,
)
from dl4jlegacy.nn.optimization.step import Step

__all__ = ["check_batch", "check_masks", "mask_to_internal", "to_external", "to_internal"]


def to_internal(x: Array, kind: AnyInputType, step: Step, name: str = "enter") -> Array:
    """Return a batch converted from the layout outside a network to the layout inside (see ``input_type``)."""
    if isinstance(kind, InputTypeRecurrent):
        inside = step.buffer(name, (x.shape[2], x.shape[0], x.shape[1]), x)
        if x.flags.c_contiguous:
            step.kernels.transpose(x.reshape(-1, x.shape[2]), inside.reshape(x.shape[2], -1))
        else:
            inside[...] = x.transpose(2, 0, 1)
        return inside
    if isinstance(kind, InputTypeConvolutional):
        lanes = step.kernels.lanes(x.dtype.char, len(x))
        inside = step.buffer(name, (-(-len(x) // lanes), *kind.shape, lanes), x)
        step.kernels.tile(x.reshape(len(x), kind.columns), inside)
        return inside
    return x.reshape(len(x), kind.columns)


def to_external(y: Array, kind: AnyInputType, rows: int) -> Array:
    """Return a copy of activations in the layout outside a network; ``rows`` is the number of images."""
    xp = get_array_module(y)
    if isinstance(kind, InputTypeRecurrent):
        outside: Array = xp.ascontiguousarray(y.transpose(1, 2, 0))
        return outside if outside.base is None else outside.copy()
    if isinstance(kind, InputTypeConvolutional):
        images: Array = xp.moveaxis(y, -1, 1).reshape(-1, *y.shape[1:4])[:rows]
        return images.copy()
    copy: Array = y.copy()
    return copy


def mask_to_internal(mask: Array | None, like: Array) -> Array | None:
    """Return a mask ``(examples, time steps)`` transposed; masks per example or per output are returned unchanged."""
    if mask is None:
        return None
    return as_contiguous(mask.T if like.ndim == 3 else mask, get_array_module(like), like.dtype)


def check_batch(x: Array, kind: AnyInputType, title: str) -> None:
    """Raise ``ShapeError`` unless a batch of this shape can enter a network of input type ``kind``.

    ``title`` names the network's first layer in the message.
    """
    if kind.fits(x.shape):
        return
    if isinstance(kind, InputTypeRecurrent):
        raise ShapeError(f"features have shape {x.shape}, {title} takes {kind}: (examples, {kind.size}, time steps)")
    if isinstance(kind, InputTypeConvolutional | InputTypeConvolutionalFlat):
        images = kind if isinstance(kind, InputTypeConvolutional) else kind.unflattened()
        last = x.shape[1:] == (images.height, images.width, images.channels)
        hint = "; move the channels forward with np.moveaxis(x, -1, 1)" if last else ""
        raise ShapeError(
            f"features have shape {x.shape}, {title} takes {kind}: (examples, {', '.join(map(str, images.shape))}) "
            f"or rows of {kind.columns} values{hint}"
        )
    features = x[:1].size
    raise ShapeError(
        f"examples have {features} features, {title} has n_in={kind.n_in}; features are (examples, {kind.n_in})"
    )


def check_masks(x: Array, labels: Array | None, features_mask: Array | None, labels_mask: Array | None) -> None:
    """Raise ``ShapeError`` unless the masks fit their arrays, all in the layout outside the network."""
    for what, array, mask in (("features", x, features_mask), ("labels", labels, labels_mask)):
        if mask is None or array is None:
            continue
        wanted: list[tuple[int, ...]] = [(array.shape[0], array.shape[-1])]
        if array.ndim != 3 and what == "labels":
            wanted = [(len(array),), (len(array), 1), array.shape]
        elif array.ndim != 3:
            raise ShapeError(f"a features mask came with features of shape {array.shape}; only sequences can have one")
        if mask.shape not in wanted:
            shapes = " or ".join(map(str, wanted))
            raise ShapeError(f"the {what} mask has shape {mask.shape}, {what} have {array.shape}; expected {shapes}")
