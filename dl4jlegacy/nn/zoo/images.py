"""Networks of the zoo for images (see ``zoo``)."""

from __future__ import annotations

import math

from dl4jlegacy.errors import ShapeError, counted
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.input_type import InputType, InputTypeConvolutionalFlat
from dl4jlegacy.nn.layers.convolution import ConvolutionLayer
from dl4jlegacy.nn.layers.layer import DenseLayer, Layer
from dl4jlegacy.nn.layers.normalization import LocalResponseNormalization
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.subsampling import SubsamplingLayer
from dl4jlegacy.nn.optimization.schedules import LinearSchedule
from dl4jlegacy.nn.optimization.updaters import AdaGrad, Adam, Nesterovs

__all__ = ["alexnet_small", "cnn", "lenet"]

_PLACES = 64  # pixels of a channel, at most, before the dense layer of cnn
_LENET_SIDE = 18  # for smaller images, nothing is left for the second pooling


def cnn(
    n_in: int,
    n_out: int,
    *,
    hidden: tuple[int, ...] | None = None,
    drop_out: float = 0.75,
    seed: int = 123,
    image: tuple[int, int, int] | None = None,
) -> MultiLayerConfiguration:
    """Return a network of 3x3 convolutions for images of any size, with 2x2 pooling after each.

    There are three convolutions, of 16, 32 and 64 filters, and more of 64 until at most 64 pixels are left. Sides of
    fewer than 4 pixels are not pooled. The rate falls linearly to zero over a run.

    Args:
        n_in, n_out, hidden, seed: as for the other models; ``hidden`` are the sizes of the dense layers.
        drop_out: the probability that a value before a dense layer is retained; 0 switches drop-out off.
        image: channels, height and width of an image; None: square images with 1 or 3 channels.
    """
    given = square_images("cnn", n_in) if image is None else InputType.convolutional_flat(image[1], image[2], image[0])
    height, width, stage = given.height, given.width, 0
    images: list[Layer] = []
    while stage < 3 or height * width > _PLACES:
        filters = min(16 << stage, 64)
        images.append(
            ConvolutionLayer(
                n_out=filters, kernel_size=(3, 3), convolution_mode="same", activation="relu", weight_init="relu"
            )
        )
        pool = (2 if height >= 4 else 1, 2 if width >= 4 else 1)
        if pool != (1, 1):
            images.append(SubsamplingLayer(kernel_size=pool, stride=pool))
        height, width, stage = height // pool[0], width // pool[1], stage + 1
    dense = [
        DenseLayer(n_out=size, activation="relu", weight_init="relu", drop_out=drop_out) for size in hidden or (128,)
    ]
    return MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=seed, updater=Adam(learning_rate=1e-3, schedule=LinearSchedule())),
        layers=(*images, *dense, OutputLayer(n_out=n_out, activation="softmax", drop_out=drop_out)),
        input_type=given,
    )


def lenet(
    n_in: int, n_out: int, *, hidden: tuple[int, ...] | None = None, drop_out: float = 0.0, seed: int = 123
) -> MultiLayerConfiguration:
    """Return the LeNet of DL4J's example for training on Spark: two convolutions, the second at stride 2.

    Sizes, rate 0.1 and L2 are the original's. In 0.9.1 AdaGrad's step was divided by the 32 examples of a batch; since
    1.0.0 the gradient is divided, which does not change AdaGrad's steps. Five epochs of MNIST on four workers reach
    0.964 with the rate 0.1 / 32 and 0.934 with 0.1, whose first steps are too long; ``epsilon`` shortens those: 0.990.

    The rate suits MNIST. On other images the network may stay at chance level for some seeds: then use a fifth of the
    rate, and ``weight_init="relu"``, which is designed for these activations.
    """
    convolutions = ((20, (1, 1)), (50, (2, 2)))
    images: list[Layer] = []
    for filters, stride in convolutions:
        images.append(ConvolutionLayer(n_out=filters, kernel_size=(5, 5), stride=stride, activation="relu"))
        images.append(SubsamplingLayer(kernel_size=(2, 2), pooling_type="max"))
    dense = [DenseLayer(n_out=size, activation="relu", drop_out=drop_out) for size in hidden or (200,)]
    loss = OutputLayer(n_out=n_out, activation="softmax", loss="negativeloglikelihood", drop_out=drop_out)
    return MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=seed, updater=AdaGrad(learning_rate=0.1, epsilon=0.1), l2=5e-4),
        layers=(*images, *dense, loss),
        input_type=square_images("lenet", n_in, least=_LENET_SIDE),
    )


def alexnet_small(
    n_in: int, n_out: int, *, hidden: tuple[int, ...] | None = None, drop_out: float = 0.5, seed: int = 123
) -> MultiLayerConfiguration:
    """Return a small AlexNet (Krizhevsky, Sutskever, Hinton 2012): its sequence of layers, for small images.

    ``drop_out`` is the probability that a value before a dense layer is retained; 0 switches drop-out off.
    """

    def convolution(filters: int, size: int) -> Layer:
        return ConvolutionLayer(n_out=filters, kernel_size=(size, size), convolution_mode="same", activation="relu")

    def pooling() -> Layer:
        return SubsamplingLayer(kernel_size=(3, 3), stride=(2, 2), convolution_mode="same")

    images: list[Layer] = []
    for filters in (32, 64):
        images += [convolution(filters, 5), LocalResponseNormalization(), pooling()]
    images += [convolution(96, 3), convolution(64, 3), pooling()]
    dense = [DenseLayer(n_out=size, activation="relu", drop_out=drop_out) for size in hidden or (256,)]
    loss = OutputLayer(n_out=n_out, activation="softmax", loss="negativeloglikelihood", drop_out=drop_out)
    updater = Nesterovs(learning_rate=0.01, momentum=0.9)
    return MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=seed, updater=updater, l2=5e-4, weight_init="relu"),
        layers=(*images, *dense, loss),
        input_type=square_images("alexnet-small", n_in),
    )


def square_images(model: str, n_in: int, *, least: int = 1) -> InputTypeConvolutionalFlat:
    """Return the type of square images of ``n_in`` values, 1 or 3 channels, at least ``least`` pixels wide.

    Raises:
        ShapeError: ``n_in`` values do not form such images.
    """
    for channels in (1, 3):
        side = math.isqrt(n_in // channels)
        if side * side * channels == n_in:
            if side < least:
                raise ShapeError(
                    f"model {model} takes images of at least {least}x{least}, and {counted(n_in, 'feature')} are "
                    f"images of {side}x{side}; use another model, or larger images such as mnist's"
                )
            return InputType.convolutional_flat(side, side, channels)
    raise ShapeError(
        f"model {model} takes square images of one or three channels, and {counted(n_in, 'feature')} cannot be "
        "such an image; use another model, or a configuration file with the right input_type"
    )
