"""Reconstructions by a trained model and samples drawn from it, in the units of the data and as images."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import NAMES, DataSet, ImageRecordReader, load
from dl4jlegacy.datasets.images.image_files import png_of
from dl4jlegacy.datasets.images.image_folders import find_images
from dl4jlegacy.datasets.images.image_grid import image_grid, pixels_of
from dl4jlegacy.datasets.images.image_kinds import is_image
from dl4jlegacy.errors import ConfError, DataError, OutputError, counted
from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.models.prediction import rows_in
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.nn.input_type import InputTypeConvolutional, InputTypeConvolutionalFlat
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.networks import input_type_of
from dl4jlegacy.nn.pretrain_stack import GIBBS_STEPS, check_gives_back, pretrain_stack, reconstruct_input, sample_input
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system import files

__all__ = [
    "Reconstruction",
    "draw_samples",
    "examples_of",
    "image_shape",
    "reconstruct",
    "reconstruction_grid",
    "sample_grid",
    "write_grid",
]

logger = logging.getLogger(__name__)

_COLUMNS = 10


@dataclass(frozen=True, slots=True, eq=False)
class Reconstruction:
    """The reconstructions by a model.

    Attributes:
        originals: the first examples, in the units of the data, ``(drawn, n_in)``.
        reconstructions: their reconstructions, likewise.
        examples: the number of all examples.
        mean_squared_error: the mean squared difference over the values of all examples.
    """

    originals: Array
    reconstructions: Array
    examples: int
    mean_squared_error: float


def reconstruct(
    model: TrainedModel, blocks: Iterable[Array], *, count: int = _COLUMNS, layer: int | None = None
) -> Reconstruction:
    """Reconstruct examples with a model, in one pass over them.

    ::

        model = load_model("vae.zip")
        found = reconstruct(model, [images])
        print(found.mean_squared_error)

    Args:
        model: an autoencoder: pretrain layers (RBM, AutoEncoder, VariationalAutoencoder), or a network that outputs its
            inputs.
        blocks: features ``(examples, n_in)``, before any scaling, for instance from ``examples_of``.
        count: the number of first examples that are kept for display.
        layer: the last encoding layer, see ``reconstruct_input``.

    Raises:
        ConfError: the model cannot reconstruct its input, or has no such layer; names it.
        DataError: there is no example. ShapeError: they do not fit. NotFiniteError: a value is NaN or infinite.
    """
    kept: list[tuple[Array, Array]] = []
    squares, examples = 0.0, 0
    for rows in blocks:
        given, found = _reconstructed(model, rows, layer)
        squares += float(np.square(found.astype(np.float64) - given).sum())
        if examples < count:
            kept.append((given[: count - examples].copy(), found[: count - examples].copy()))
        examples += len(given)
    if not examples:
        raise DataError("there are no examples to reconstruct")
    originals, reconstructions = (np.concatenate(each) for each in zip(*kept, strict=True))
    error = squares / (examples * originals.shape[1])
    return Reconstruction(originals, reconstructions, examples, error)


def _reconstructed(model: TrainedModel, rows: Array, layer: int | None) -> tuple[Array, Array]:
    """Return examples and their reconstructions, both ``(examples, n_in)`` in the units of the data."""
    if model.predicts_numbers or model.reading.is_multi_label:
        raise ConfError(f"model {model.name} predicts {', '.join(model.label_names[:3])}, and gives no examples back")
    model.check_width(math.prod(rows.shape[1:]), "the given data")
    with one_thread(), _named(model):
        found = reconstruct_input(model.network, model.normalize(DataSet(rows)).features, layer=layer)
    flat = np.asarray(rows).reshape(len(rows), -1)
    return flat, _in_units(model, found)


def draw_samples(
    model: TrainedModel,
    count: int = _COLUMNS * _COLUMNS,
    *,
    seed: int = 123,
    gibbs_steps: int = GIBBS_STEPS,
    layer: int | None = None,
) -> Array:
    """Draw ``count`` examples from a model, ``(count, n_in)``, in the units of its data; repeatable by seed.

    Args:
        model: a model that begins with pretrain layers, the last of which is a variational autoencoder or an RBM.
        count: the number of examples.
        seed: of the random numbers.
        gibbs_steps: Gibbs sampling steps in an RBM for each example.
        layer: the layer to sample from, see ``sample_input``.

    Raises:
        ConfError: there is nothing to draw from; names the model. NotFiniteError: a value is NaN or infinite.
    """
    stack = pretrain_stack(model.network)
    top = dict(enumerate(stack)).get(len(stack) - 1 if layer is None else layer)
    if isinstance(top, RBM) and model.network.conf.backprop:
        logger.warning(
            "the RBMs of model %s were trained further by backpropagation, and draw the worse for it (a network with "
            "backprop: false keeps them)",
            model.name,
        )
    stream = Stream.of(seed).at(purpose="sample")
    with one_thread(), _named(model):
        found = sample_input(model.network, count, stream, layer=layer, gibbs_steps=gibbs_steps)
    return _in_units(model, found)


@contextlib.contextmanager
def _named(model: TrainedModel) -> Iterator[None]:
    """Add the model's name to a ``ConfError``."""
    try:
        yield
    except ConfError as exc:
        if type(exc) is not ConfError:
            raise
        raise ConfError(f"model {model.name}: {exc}") from exc


def _in_units(model: TrainedModel, rows: Array) -> Array:
    """Return features as they were before any scaling."""
    return rows if model.reading.normalizer is None else model.reading.normalizer.revert(DataSet(rows)).features


# -- examples and images -----------------------------------------------------------------------------------------------


def examples_of(
    model: TrainedModel, source: str, *, data_dir: str = "", shape: tuple[int, int, int] | None = None
) -> Iterator[Array]:
    """Yield the features of examples in blocks, for ``reconstruct``.

    Args:
        model: the model that they must fit.
        source: the held-out part of ``digits``, ``iris`` or ``mnist``; an image, a folder of images, or a table, here
            or in S3; ``-``: standard input.
        data_dir: the folder of MNIST.
        shape: channels, height and width of images, for a model that did not learn from image files itself.

    Raises:
        DataError: names what cannot be read. ShapeError: the model takes other features.
    """
    if source in NAMES:
        test = load(source, data_dir=storage.local(data_dir) or None).test
        model.check_width(test.n_in, source)
        yield from (batch.features for batch in test.batch_by(ROWS))
        return
    if shape is not None and model.reading.images is None and source != "-":
        paths = _image_files(source)
        if paths:
            channels, height, width = shape
            reader = ImageRecordReader(height=height, width=width, channels=channels)
            yield from reader.blocks(paths, rows=ROWS)
            return
    yield from rows_in(model, source)[0]


def _image_files(source: str) -> tuple[Path, ...]:
    """Return the image file at a path, or those in a folder; () if it is something else."""
    with files.errors_as(DataError, f"cannot read {source}"):
        place = files.expand(storage.local(source))
        if not (is_image(place.name) or files.is_folder(place)):
            return ()
    return tuple(find_images(place))


def image_shape(model: TrainedModel, size: tuple[int, int] | None = None) -> tuple[int, int, int]:
    """Return channels, height and width of the images that a model's examples are.

    The shape is known if the model learned from image files, or has an input type of images. Otherwise the images are
    taken as square, and as grayscale if the number of values allows it.

    Args:
        model: the model.
        size: height and width, if the user gave them.

    Raises:
        ConfError: the model cannot reconstruct its input; or an example is no square image, or no image of that size.
    """
    with _named(model):
        check_gives_back(model.network)
    n_in, kind = model.network.n_in, input_type_of(model.network)
    if size is not None:
        height, width = size
        if n_in not in (height * width, 3 * height * width):
            raise ConfError(
                f"an example of model {model.name} has {counted(n_in, 'value')}; an image of {height}x{width} has "
                f"{height * width:,}, or {3 * height * width:,} in colours"
            )
        return n_in // (height * width), height, width
    images = model.reading.images
    if images is not None and images.height:
        return n_in // (images.height * images.width), images.height, images.width
    if isinstance(kind, InputTypeConvolutional | InputTypeConvolutionalFlat) and kind.channels in (1, 3):
        return kind.channels, kind.height, kind.width
    for channels in (1, 3):
        side = math.isqrt(n_in // channels)
        if channels * side * side == n_in:
            return channels, side, side
    raise ConfError(
        f"an example of model {model.name} has {counted(n_in, 'value')}, which are no square image; say how they are "
        "to be drawn (--image-size HEIGHTxWIDTH)"
    )


def reconstruction_grid(found: Reconstruction, shape: tuple[int, int, int], *, columns: int = _COLUMNS) -> Array:
    """Return an image with rows of originals, and below each row their reconstructions.

    Values from 0 to 1 are drawn from black to white; if originals exceed that range, their minimum is black and their
    maximum white. Returns bytes ``(channels, height, width)``. Raises ``ShapeError`` if examples do not have this
    ``shape``.
    """
    low, high = _range(found.originals)
    above, below = (pixels_of(rows, shape, low, high) for rows in (found.originals, found.reconstructions))
    starts = range(0, len(above), columns)
    return image_grid([part[start : start + columns] for start in starts for part in (above, below)])


def sample_grid(samples: Array, shape: tuple[int, int, int], *, columns: int = _COLUMNS) -> Array:
    """Return an image of samples with ``columns`` in a row; values and errors as for ``reconstruction_grid``."""
    low, high = _range(samples)
    pixels = pixels_of(samples, shape, low, high)
    return image_grid([pixels[start : start + columns] for start in range(0, len(pixels), columns)])


def _range(rows: Array) -> tuple[float, float]:
    low, high = float(rows.min()), float(rows.max())
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


def write_grid(path: Path, grid: Array) -> None:
    """Write an image to a PNG file atomically; raises ``OutputError``, and ``DataError`` if Pillow is missing."""
    content = png_of(grid)
    with files.errors_as(OutputError, f"{path} cannot be written"):
        files.write(path, content)
