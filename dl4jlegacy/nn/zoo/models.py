"""Networks of the zoo for text and for reconstruction (see ``zoo``)."""

from __future__ import annotations

from dl4jlegacy.errors import ShapeError, counted
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.input_type import InputType
from dl4jlegacy.nn.layers.embedding import EmbeddingLayer
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.lstm import LSTM
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.layers.reconstruction_distribution import BernoulliReconstructionDistribution
from dl4jlegacy.nn.layers.rnn_output import RnnOutputLayer
from dl4jlegacy.nn.layers.variational import VariationalAutoencoder
from dl4jlegacy.nn.optimization.updaters import Adam

__all__ = ["char_lstm", "deep_autoencoder", "lstm", "vae", "word_lstm"]

_WORD_VECTOR = 64
_LARGE = 256  # number of inputs from which the large sizes apply


def char_lstm(
    n_in: int, n_out: int, *, hidden: tuple[int, ...] | None = None, drop_out: float = 0.0, seed: int = 123
) -> MultiLayerConfiguration:
    """Return LSTMs that predict the next character of a text, after DL4J's character modelling example.

    ``n_in`` is ``n_out`` characters times the length of a window.
    """
    if n_in % n_out:
        raise ShapeError(
            f"model char-lstm predicts the next character of a text, and the data set is not a text "
            f"({counted(n_in, 'feature')}, "
            f"{counted(n_out, 'class', 'classes')}); use --dataset sonnets or a .txt file"
        )
    lstms = tuple(LSTM(n_out=size, activation="tanh") for size in hidden or (128,))
    return MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=seed, updater=Adam(learning_rate=5e-3), drop_out=drop_out),
        layers=(*lstms, RnnOutputLayer(n_out=n_out, activation="softmax", loss="mcxent")),
        input_type=InputType.recurrent(n_out),
    )


def word_lstm(
    n_in: int, n_out: int, *, hidden: tuple[int, ...] | None = None, drop_out: float = 0.0, seed: int = 123
) -> MultiLayerConfiguration:
    """Return LSTMs that predict the next word of a text, with a learned embedding of the words.

    ``n_in`` is the length of a window, ``n_out`` the number of words.
    """
    lstms = tuple(LSTM(n_out=size, activation="tanh") for size in hidden or (128,))
    vectors = EmbeddingLayer(n_in=n_out, n_out=_WORD_VECTOR, activation="identity")
    return MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=seed, updater=Adam(learning_rate=5e-3), drop_out=drop_out),
        layers=(vectors, *lstms, RnnOutputLayer(n_out=n_out, activation="softmax", loss="mcxent")),
        input_type=InputType.recurrent(1),
    )


def lstm(
    n_in: int, n_out: int, *, hidden: tuple[int, ...] | None = None, drop_out: float = 0.0, seed: int = 123
) -> MultiLayerConfiguration:
    """Return LSTMs that predict the class of each time step of a sequence, or of the whole sequence at its end.

    ``n_in`` is the number of columns of a time step.
    """
    lstms = tuple(LSTM(n_out=size, activation="tanh") for size in hidden or (64,))
    return MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=seed, updater=Adam(learning_rate=5e-3), drop_out=drop_out),
        layers=(*lstms, RnnOutputLayer(n_out=n_out, activation="softmax", loss="mcxent")),
        input_type=InputType.recurrent(n_in),
    )


def deep_autoencoder(
    n_in: int, n_out: int, *, hidden: tuple[int, ...] | None = None, drop_out: float = 0.0, seed: int = 123
) -> MultiLayerConfiguration:
    """Return a deep autoencoder (Hinton and Salakhutdinov 2006): pretrained RBMs, then their mirror image.

    The output reconstructs the input. ``hidden`` are the sizes down to the code; ``n_out`` must be ``n_in``. Legacy:
    ``DeepAutoEncoder``.
    """
    if n_out != n_in:
        raise ShapeError(
            f"model deep-autoencoder reconstructs its input: n_in is {n_in} and n_out is {n_out}; make them equal"
        )
    sizes = hidden or ((500, 250, 30) if n_in >= _LARGE else (48, 24, 8))
    down = [RBM(n_out=size, k=1) for size in sizes]
    up = [DenseLayer(n_out=size) for size in reversed(sizes[:-1])]
    return MultiLayerConfiguration(
        conf=NeuralNetConfiguration(
            seed=seed,
            activation="sigmoid",
            weight_init="sigmoid_uniform",  # with "xavier" seven layers of sigmoids hardly learn
            updater=Adam(learning_rate=2e-3),
            drop_out=drop_out,
        ),
        layers=(*down, *up, OutputLayer(n_out=n_out, activation="sigmoid", loss="xent")),
        input_type=InputType.feed_forward(n_in),
        pretrain=True,
    )


def vae(
    n_in: int, n_out: int, *, hidden: tuple[int, ...] | None = None, drop_out: float = 0.0, seed: int = 123
) -> MultiLayerConfiguration:
    """Return a variational autoencoder (Kingma and Welling 2013) for data between 0 and 1; labels are ignored.

    ``hidden`` are the sizes of the encoder's hidden layers, followed by the size of the latent space.
    """
    *sizes, latent = hidden or ((256, 128, 16) if n_in >= _LARGE else (64, 8))
    around = tuple(sizes) or (latent,)
    layer = VariationalAutoencoder(
        n_in=n_in,
        n_out=latent,
        encoder_layer_sizes=around,
        decoder_layer_sizes=around[::-1],
        reconstruction_distribution=BernoulliReconstructionDistribution(),
        activation="leakyrelu",
        weight_init="relu",
    )
    return MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=seed, updater=Adam(learning_rate=1e-3), drop_out=drop_out),
        layers=(layer,),
        pretrain=True,
        backprop=False,
    )
