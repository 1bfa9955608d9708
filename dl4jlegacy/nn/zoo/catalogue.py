"""The model zoo: networks by the names for ``--model``. Every builder returns a ``MultiLayerConfiguration``.

Sizes of ``dbn`` and ``sda`` depend on the data: images of MNIST's size get the seed's 500-250-100, small inputs a
smaller net.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dl4jlegacy.errors import ConfError, ShapeError, nearest
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.layers.rnn_output import RnnOutputLayer
from dl4jlegacy.nn.optimization.updaters import AdaGrad, Adam
from dl4jlegacy.nn.zoo.images import alexnet_small, cnn, lenet
from dl4jlegacy.nn.zoo.models import char_lstm, deep_autoencoder, lstm, vae, word_lstm

__all__ = ["ZOO", "ZooModel", "dbn", "for_multi_label", "for_regression", "mlp", "sda", "select", "select_for"]

_LARGE = 256  # number of inputs from which the large sizes apply


def mlp(
    n_in: int, n_out: int, *, hidden: tuple[int, ...] | None = None, drop_out: float = 0.0, seed: int = 123
) -> MultiLayerConfiguration:
    """Return a multilayer perceptron: ReLU hidden layers of 256 and 128 units unless ``hidden``, softmax output.

    ``drop_out`` is DL4J's: the probability that a hidden unit is retained; 0 switches it off.
    """
    dense = [DenseLayer(n_out=size, activation="relu", drop_out=drop_out) for size in hidden or (256, 128)]
    dense[0] = msgspec.structs.replace(dense[0], n_in=n_in, drop_out=0.0)
    return MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=seed, updater=Adam(learning_rate=1e-3)),
        layers=(*dense, OutputLayer(n_out=n_out, activation="softmax", drop_out=drop_out)),
    )


def dbn(
    n_in: int, n_out: int, *, hidden: tuple[int, ...] | None = None, drop_out: float = 0.0, seed: int = 123
) -> MultiLayerConfiguration:
    """Return a deep belief network (Hinton, Osindero, Teh 2006): RBMs pretrained one by one, then finetuned."""
    sizes = hidden or ((500, 250, 100) if n_in >= _LARGE else (128, 64))
    rbms = tuple(RBM(n_out=size, activation="sigmoid", k=1) for size in sizes)
    return MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=seed, updater=_adagrad(n_in), drop_out=drop_out),
        layers=(*_first(rbms, n_in), OutputLayer(n_out=n_out, activation="softmax")),
        pretrain=True,
    )


def sda(
    n_in: int,
    n_out: int,
    *,
    hidden: tuple[int, ...] | None = None,
    corruption_level: float = 0.3,
    drop_out: float = 0.0,
    seed: int = 123,
) -> MultiLayerConfiguration:
    """Return a stacked denoising autoencoder (Vincent et al. 2010): pretrained layer by layer, then finetuned."""
    sizes = hidden or ((500, 250, 100) if n_in >= _LARGE else (128, 64))
    layers = tuple(AutoEncoder(n_out=size, activation="sigmoid", corruption_level=corruption_level) for size in sizes)
    return MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=seed, updater=_adagrad(n_in), drop_out=drop_out),
        layers=(*_first(layers, n_in), OutputLayer(n_out=n_out, activation="softmax")),
        pretrain=True,
    )


def _adagrad(n_in: int) -> AdaGrad:
    """Return AdaGrad with the best rate found for small or large stacks of sigmoids, pretraining and finetuning."""
    return AdaGrad(learning_rate=0.05 if n_in >= _LARGE else 0.12)


def _first(layers: tuple[Any, ...], n_in: int) -> tuple[Any, ...]:
    return (msgspec.structs.replace(layers[0], n_in=n_in), *layers[1:])


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A named network: its builder and its legacy class. ``training.choices`` knows how it is trained.

    A model that ``reconstructs`` learns its features and ignores labels. A model ``of`` words or sequences accepts only
    that kind of data, and sequences are accepted by no other model. A builder ``of_images`` takes their shape as
    ``image``, and the model learns them with mean 0 and standard deviation 1 in each channel.
    """

    name: str
    build: Callable[..., MultiLayerConfiguration]
    clazz: str = "MultiLayerNetwork"
    reconstructs: bool = False
    of: str = ""
    of_images: bool = False


ZOO: Mapping[str, ZooModel] = {
    model.name: model
    for model in (
        ZooModel("mlp", mlp),
        ZooModel("dbn", dbn, "DBN"),
        ZooModel("sda", sda, "StackedDenoisingAutoEncoder"),
        ZooModel("lenet", lenet),
        ZooModel("alexnet-small", alexnet_small),
        ZooModel("cnn", cnn, of_images=True),
        ZooModel("char-lstm", char_lstm),
        ZooModel("word-lstm", word_lstm, of="words"),
        ZooModel("lstm", lstm, of="sequences"),
        ZooModel("deep-autoencoder", deep_autoencoder, reconstructs=True),
        ZooModel("vae", vae, reconstructs=True),
    )
}


def for_regression(model: ZooModel, network: MultiLayerConfiguration) -> MultiLayerConfiguration:
    """Return a zoo model's network for regression: no activation, squared error, no drop-out at the output.

    Raises:
        ConfError: the model does not learn from labels, or predicts the characters or words of a text.
    """
    last = network.layers[-1]
    of_sequences = model.of == "sequences" and isinstance(last, RnnOutputLayer)
    if model.reconstructs or not (type(last) is OutputLayer or of_sequences):
        raise ConfError(f"model {model.name!r} predicts no numbers; for them take mlp, dbn or sda, of sequences lstm")
    output = msgspec.structs.replace(last, activation="identity", loss="mse", drop_out=0.0)
    return network.replace(layers=(*network.layers[:-1], output))


def for_multi_label(model: ZooModel, network: MultiLayerConfiguration) -> MultiLayerConfiguration:
    """Return a zoo model's network for multi-label data: sigmoid outputs and binary cross-entropy.

    Raises:
        ConfError: the model does not learn from labels, or predicts a label for each time step.
    """
    last = network.layers[-1]
    if model.reconstructs or type(last) is not OutputLayer:
        raise ConfError(f"model {model.name!r} learns no labels that do not exclude each other; take mlp, dbn or sda")
    output = msgspec.structs.replace(last, activation="sigmoid", loss="xent")
    return network.replace(layers=(*network.layers[:-1], output))


def select(name: str) -> ZooModel:
    """Return the zoo model of that name; raises ``ConfError`` naming the nearest known one."""
    if name not in ZOO:
        raise ConfError(f"unknown model {name!r}{nearest(name, list(ZOO))}")
    return ZOO[name]


def select_for(name: str, kind: str) -> ZooModel:
    """Return the model called ``name`` for data of a kind: "characters" or "words" of a text, "sequences", or "".

    Without a name: ``mlp``, or the LSTM for such data. Raises as ``select``, and ``ShapeError`` if the model is for
    words or sequences and the data are not, or the other way round.
    """
    model = select(name or _USUAL[kind])
    if kind in _ONLY and model.of != kind:
        does_not, option = _ONLY[kind]
        raise ShapeError(
            f"model {model.name} does not take {does_not} (--{option}); take --model {_USUAL[kind]}, or leave "
            f"--{option.split()[0]} out"
        )
    if model.of == "sequences" != kind:
        raise ShapeError(
            f"model {model.name} learns sequences of time steps, and the data set is none; give a folder of CSV files, "
            "one for each, with --sequences"
        )
    if model.of == "words" != kind:
        raise ShapeError(
            f"model {model.name} predicts the next word of a text, and the data set is "
            f"{'a text that is read by characters' if kind else 'not a text'}; give sonnets or a .txt file, with "
            "--tokens words"
        )
    return model


_USUAL = {"": "mlp", "characters": "char-lstm", "words": "word-lstm", "sequences": "lstm"}
_ONLY = {
    "words": ("words, by which the text is read", "tokens words"),
    "sequences": ("sequences, as which the files are read", "sequences"),
}
